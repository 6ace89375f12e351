"""The folder of one evaluation: every step as it comes, then summary, manifest and plot."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from entmtp_env.files import write_text_atomically
from eval.interleave import Run

FILES = ("manifest.json", "steps.jsonl", "episodes.jsonl", "summary.json", "plot.png")
"""What an evaluation leaves behind; the first three also when it is cut short."""


class ResultFolder:
    """Context manager that writes an evaluation's files.

    ``steps.jsonl`` has a line per decode step, ``episodes.jsonl`` one per text; both are flushed after every
    episode, so a run that is cut short loses the episode that it was in and no more.

    Args:
        path: The folder; it is made when missing.
        overwrite: Remove results that are there already.

    Raises:
        FileExistsError: When it holds results and ``overwrite`` is off.
    """

    def __init__(self, path: Path, overwrite: bool = False) -> None:
        self.path = path
        present = [name for name in FILES if (path / name).exists()]
        if present and not overwrite:
            raise FileExistsError(
                f"{path} already holds results ({', '.join(present)}); choose another --out, or add "
                "--overwrite to replace them"
            )

    def __enter__(self) -> ResultFolder:
        """Remove what is replaced and open the two line files."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)
        self._steps: IO[str] = (self.path / "steps.jsonl").open("w", encoding="utf-8")
        self._episodes: IO[str] = (self.path / "episodes.jsonl").open("w", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close them."""
        self._steps.close()
        self._episodes.close()

    def add(self, prompts: str, run: Run) -> None:
        """Append one episode.

        Args:
            prompts: Name of the prompt set.
            run: The episode.
        """
        episode = run.episode
        which = {"prompts": prompts, "policy": run.policy, "prompt_id": episode.prompt_id}
        lines = [which | {"step": i} | vars(step) for i, step in enumerate(episode.steps)]
        self._steps.write("".join(json.dumps(line) + "\n" for line in lines))
        self._steps.flush()
        whole = {
            "seed": run.seed,
            "steps": len(episode.steps),
            "tokens": episode.tokens,
            "seconds": episode.seconds,
            "policy_seconds": episode.policy_seconds,
            "prefill_seconds": episode.prefill_seconds,
            "finish_reason": episode.finish_reason,
            "text": episode.text,
        }
        self._episodes.write(json.dumps(which | whole) + "\n")
        self._episodes.flush()

    def write_json(self, name: str, document: Any) -> None:
        """Write one of the JSON files, atomically."""
        write_text_atomically(self.path / name, json.dumps(document, indent=2, allow_nan=False) + "\n")
