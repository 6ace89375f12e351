"""Which recorded texts a scheduler is trained on, and which ones it is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from entmtp_env.prompts import PROMPT_SETS, SPLITS
from entmtp_env.replay.recording import IDENTITY
from entmtp_env.replay.shipped import load_recording

CALIBRATION, EVALUATION = (tuple(f"{name}:{part}" for name in PROMPT_SETS) for part in SPLITS)
"""Both halves of the shipped recordings."""

_HELD_OUT = 4


def held_out_of(recordings: Sequence[str], held_out: Sequence[str]) -> tuple[str, ...]:
    """Recordings to hold out: those named, else the other halves of the shipped ones where these are all."""
    return tuple(held_out) or (EVALUATION if tuple(recordings) == CALIBRATION else ())


def split_texts(
    recordings: Sequence[str], held_out: Sequence[str], folder: Path
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Recordings to train on, and recordings of other texts.

    Without ``held_out`` every fourth text of ``recordings`` is set aside, whatever the seed, and both parts
    are written into ``folder``.

    Args:
        recordings: Recordings, see :func:`~entmtp_env.replay.shipped.load_recording`.
        held_out: Recordings, or none.
        folder: Where parts are written.

    Raises:
        FileNotFoundError: When a recording is not to be had.
        ValueError: When there are no texts to train on or none to hold out, a text is in both, or both were
            not made by the same model, heads and settings.
    """
    own = load_recording(recordings)
    ids = [text.prompt_id for text in own.texts]
    if held_out:
        others = load_recording(held_out)
        for key in IDENTITY:
            if others.manifest[key] != own.manifest[key]:
                raise ValueError(
                    f"held-out recordings have {key} {others.manifest[key]!r}, those to train on "
                    f"{own.manifest[key]!r}; hold out texts that the same model and heads were recorded on, "
                    "or none, so that every fourth of --recordings is"
                )
        common = sorted({text.prompt_id for text in others.texts} & set(ids))
        if common:
            raise ValueError(
                f"{len(common)} held-out texts are trained on, too, such as {common[0]!r}; hold out others, "
                "as in --recordings chat:calibration --held-out chat:evaluation"
            )
        return tuple(recordings), tuple(held_out)
    if len(ids) < 2:
        raise ValueError(
            "a recording of one text leaves none to hold out; name more, or others as --held-out"
        )
    # At least one, and of several recordings some of each.
    aside = range(min(_HELD_OUT, len(ids)) - 1, len(ids), _HELD_OUT)
    parts = {"train": [i for i in range(len(ids)) if i not in aside], "held-out": list(aside)}
    for name, texts in parts.items():
        own.select(texts).save(folder / f"{name}.npz")
    train, rest = (str(folder / f"{name}.npz") for name in parts)
    return (train,), (rest,)
