"""Staged drafts of recorded texts, and path values calibrated on them: what staged schedulers replay on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.stages import Stages, default_stages
from entmtp_env.engine import get_engine
from entmtp_env.files import refuse_existing
from entmtp_env.prompts import load_prompts
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.staged_drafts import StagedDrafts
from entmtp_env.replay.staged_recorder import record_stages
from entmtp_env.replay.staged_tables import fit_stages


@dataclass(frozen=True)
class StagesCommand:
    """Draft in stages at every position of recorded texts, and calibrate path values on them.

    Example: python -m train stages --recordings chat:calibration math:calibration --out runs/stages

    Attributes:
        recordings: Recordings: chat, math, ... or .npz files, or halves of them, as in chat:calibration.
        out: Folder for drafts.npz and stages.json.
        prompts: The prompt sets that were recorded; by default those named like the recordings.
        fit: Write calibrated stages; without it only drafts, as of texts that are for evaluation.
        model: Base model: a known name, a folder or a Hugging Face repository.
        heads: Draft heads: auto, medusa or a checkpoint.
        expand: How many nodes are expanded to draft each depth.
        children: How many children each of them gets.
        budgets: Numbers of nodes that may be verified, rising from 0.
        dtype: auto, float32, bfloat16 or float16; that of the recordings.
        device: auto, cpu or cuda.
        overwrite: Replace the files that are there.
    """

    recordings: tuple[str, ...]
    out: Path
    prompts: tuple[str, ...] = ()
    fit: bool = True
    model: str = "smollm2"
    heads: str = "auto"
    expand: tuple[int, ...] = default_stages().shape.expand
    children: tuple[int, ...] = default_stages().shape.children
    budgets: tuple[int, ...] = default_stages().budgets
    dtype: str = "auto"
    device: str = "auto"
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that draft nothing."""
        if not self.recordings:
            raise ValueError("recordings must name at least one")
        # Checks all three before the model is loaded.
        Stages(self.out.name, self.shape, self.budgets)

    @property
    def shape(self) -> DraftShape:
        """How wide each depth is."""
        return DraftShape(self.expand, self.children)


def make_stages(config: StagesCommand) -> StagedDrafts:
    """Write ``<out>/drafts.npz`` and ``<out>/stages.json``.

    Returns:
        The drafts.

    Raises:
        FileExistsError: When one of them is there already.
        FileNotFoundError: When a recording, a prompt set, the model or the heads are not there.
        ValueError: When they do not belong together.
    """
    drafts_path, stages_path = config.out / "drafts.npz", config.out / "stages.json"
    refuse_existing(drafts_path, *[stages_path] * config.fit, overwrite=config.overwrite)
    recording = load_recording(config.recordings)
    prompts = [prompt for name in config.prompts or config.recordings for prompt in load_prompts(name)]
    engine = get_engine(config.model, config.heads, config.dtype, config.device)
    tokens = {prompt.prompt_id: engine.encode(prompt) for prompt in prompts}
    drafts = record_stages(engine, recording, tokens, config.shape)
    drafts.save(drafts_path)
    if config.fit:
        stages = fit_stages(config.out.name, config.budgets, [(recording, drafts)])
        stages.save(stages_path)
    _note(f"{len(recording.texts)} texts with {recording.lengths.sum()} tokens drafted into {config.out}")
    return drafts


def _note(text: str) -> None:
    print(text, file=sys.stderr)
