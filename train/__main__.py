"""``python -m train``: draft heads and calibrated policies."""

from __future__ import annotations

import tyro

from train.heads import HeadsTraining, train_heads


def main() -> None:
    """Parse the command line and run."""
    train_heads(tyro.cli(HeadsTraining))


if __name__ == "__main__":
    main()
