"""The folder of one evaluation: every step as it comes, then summary, manifest and plot."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from entmtp_env.files import full_disk_named, write_text_atomically
from eval.interleave import Run
from eval.resume import continued_manifest, keep_finished, only_begun, stored_part
from eval.stored import StoredRun
from eval.watch import StepDetail

FILES = ("manifest.json", "steps.jsonl", "episodes.jsonl", "summary.json", "plot.png")
"""What an evaluation leaves behind; the first three also when it is cut short."""

REPORT = "report.html"
"""The page that ``eval report`` makes of the others."""

LOSSLESSNESS = "losslessness.json"
"""What ``eval losslessness`` says of the texts."""


class ResultFolder:
    """Context manager that writes an evaluation's files.

    ``steps.jsonl`` has a line per decode step, ``episodes.jsonl`` one per text; both are flushed after every
    episode, so a run that is cut short loses the episode that it was in and no more.

    Args:
        path: The folder; it is made when missing.
        overwrite: Remove results that are there already.
        resume: Keep the episodes that are there already and go on.

    Raises:
        FileExistsError: When it holds results and neither is on, or no comparison that could be resumed.
        ValueError: When both are on, or what is to be kept is damaged.
    """

    def __init__(self, path: Path, overwrite: bool = False, resume: bool = False) -> None:
        if overwrite and resume:
            raise ValueError("overwrite removes what resume would keep; pass one of them")
        self.path = path
        self._stored = stored_part(path) if resume else None
        self._kept = {*FILES[:3], LOSSLESSNESS} if self._stored else set()
        present = [name for name in FILES if (path / name).exists() and (path / name).stat().st_size]
        if present and not (overwrite or self._stored or (resume and only_begun(path))):
            what, advice = "", ", or add --overwrite to replace them"
            if resume:
                what, advice = "other ", ": there is no comparison to resume"
            raise FileExistsError(
                f"{path} already holds {what}results ({', '.join(present)}); choose another --out{advice}"
            )

    @property
    def finished(self) -> tuple[StoredRun, ...]:
        """The episodes that were kept."""
        return self._stored.runs if self._stored else ()

    def continued(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The manifest to write: that of the run that is resumed, else the one given.

        Raises:
            ValueError: When the run to resume was another one.
        """
        if not self._stored:
            return manifest
        merged = continued_manifest(self._stored, manifest)
        if merged["settings"]["exclude"] != self._stored.settings.get("exclude", []):
            # It is of the prompts that were left before.
            self._kept.discard(LOSSLESSNESS)
        return merged

    def clear(self) -> None:
        """Make the folder and remove what is replaced; no file of other results may stay beside these."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self._stored:
            keep_finished(self._stored)
        for name in {*FILES, REPORT, LOSSLESSNESS} - self._kept:
            (self.path / name).unlink(missing_ok=True)

    def __enter__(self) -> ResultFolder:
        """Remove what is replaced and open the two line files."""
        self.clear()
        self._steps: IO[str] = (self.path / "steps.jsonl").open("a", encoding="utf-8")
        self._episodes: IO[str] = (self.path / "episodes.jsonl").open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close them."""
        with full_disk_named(self.path):
            try:
                self._steps.close()
            finally:
                self._episodes.close()

    def add(self, prompts: str, run: Run) -> None:
        """Append one episode.

        Args:
            prompts: Name of the prompt set.
            run: The episode.

        Raises:
            OSError: When the disk is full; what came before is kept, and can be resumed.
        """
        # It is of the texts before this one.
        (self.path / LOSSLESSNESS).unlink(missing_ok=True)
        details = run.details or [StepDetail()] * len(run.episode.steps)
        lines = [
            _which(prompts, run) | {"step": i} | vars(step) | vars(detail)
            for i, (step, detail) in enumerate(zip(run.episode.steps, details, strict=True))
        ]
        with full_disk_named(self.path):
            self._steps.write("".join(json.dumps(line) + "\n" for line in lines))
            self._steps.flush()
            self._episodes.write(episode_line(prompts, run))
            self._episodes.flush()

    def write_json(self, name: str, document: Any) -> None:
        """Write one of the JSON files, atomically."""
        write_text_atomically(self.path / name, json.dumps(document, indent=2, allow_nan=False) + "\n")


def episode_line(prompts: str, run: Run) -> str:
    """The line of ``episodes.jsonl`` of one episode.

    Args:
        prompts: Name of the prompt set, or of the recording.
        run: The episode.
    """
    episode = run.episode
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
    return json.dumps(_which(prompts, run) | whole) + "\n"


def _which(prompts: str, run: Run) -> dict[str, str]:
    return {"prompts": prompts, "policy": run.policy, "prompt_id": run.episode.prompt_id}
