"""The render modes that an environment has, checked when it is made."""

from __future__ import annotations

import gymnasium


class UnsupportedRenderModeError(ValueError, TypeError):
    """A render mode that the environment does not have.

    It is a ``TypeError``, too, because Stable-Baselines3's ``make_vec_env`` asks for ``rgb_array`` and, when
    that raises one, makes the environment without.
    """


def check_render_mode(env: type[gymnasium.Env], mode: str | None) -> str | None:
    """A render mode, when an environment has it.

    Args:
        env: The class of the environment; its metadata list the modes.
        mode: The mode, or ``None``.

    Raises:
        UnsupportedRenderModeError: When it has no such mode.
    """
    modes = (*env.metadata["render_modes"], None)
    if mode not in modes:
        raise UnsupportedRenderModeError(
            f"render_mode {mode!r} is not supported; use {' or '.join(map(repr, modes))}"
        )
    return mode
