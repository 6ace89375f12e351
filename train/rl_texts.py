"""Which recorded texts a scheduler is trained on, and which ones it is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from entmtp_env.replay.shipped import load_recording

_HELD_OUT = 4


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
        ValueError: When there are no texts to train on or none to hold out, or a text is in both.
    """
    own = load_recording(recordings)
    ids = [text.prompt_id for text in own.texts]
    if held_out:
        common = sorted({text.prompt_id for text in load_recording(held_out).texts} & set(ids))
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
