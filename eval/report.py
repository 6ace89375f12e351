"""``python -m eval report RESULT_DIR``: a comparison as one HTML page that needs nothing else."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from entmtp_env.files import write_text_atomically
from entmtp_env.progress import progress_bar
from eval.labels import label_specs
from eval.losslessness import load_losslessness
from eval.losslessness_scores import BOUND, RUN_WORDS
from eval.page import render_page, tree_colours
from eval.report_sections import ACCEPTED, make_section
from eval.results import REPORT
from eval.stored import load_results


@dataclass(frozen=True)
class Report:
    """Make one HTML page of a comparison: no network, no other files, for the screen and for print.

    It has, for each prompt set, a table with paired bootstrap intervals, tokens per second against tokens
    per step, where the time goes, histograms of the scores, the accept lengths along each text coloured by
    tree, the regret against the oracle where a recording is named, and losslessness where "python -m eval
    losslessness" has scored the texts; then the manifest.

    Example: python -m eval report runs/compare-20260101-120000 --recordings chat

    Attributes:
        results: Folder that "python -m eval compare" wrote; of a run that was cut short, the prompts that
            all policies have finished are shown.
        recordings: Recordings of the same prompts, to measure regret on: shipped ones or .npz files.
        costs: Seconds of a step in the replay: auto, a shipped cost table, a JSON file, or
            analytic:base=B,node=N,depth=D.
        out: The page; by default report.html in the folder.
    """

    results: Annotated[Path, tyro.conf.Positional]
    recordings: tuple[str, ...] = ()
    costs: str = "auto"
    out: Path | None = None


def report(config: Report) -> Path:
    """Write the page.

    Returns:
        Where it is.

    Raises:
        ValueError: When a file of the folder is damaged, no prompt was finished by all policies, or the
            recordings have none of the prompts or are of another model, heads or acceptance rule.
        FileNotFoundError: When the folder, a recording or a cost table is missing.
    """
    results = load_results(config.results)
    sets = results.sets()
    if not sets:
        raise ValueError(f"{results.path}: no prompt was finished by all policies; run the comparison on")
    colours, losses = tree_colours(own.run for own in results.runs), load_losslessness(results.path)
    with progress_bar() as bar:
        sections = [
            make_section(name, policies, results.manifest, colours, config.recordings, config.costs)
            for name, policies in bar.track(sets.items(), description="prompt sets", total=len(sets))
        ]
    if config.recordings and not any(section.regret for section in sections):
        raise ValueError(f"{', '.join(config.recordings)}: none of the comparison's prompts is recorded")
    page = render_page(
        "report.html",
        title=f"{results.settings['model']}: {', '.join(sets)}",
        results=results,
        manifest_text=json.dumps(results.manifest, indent=2, ensure_ascii=False),
        sections=sections,
        labels=label_specs(policy for policies in sets.values() for policy in policies),
        losses=losses,
        bound=BOUND,
        run_words=RUN_WORDS,
        colours=colours,
        accepted=ACCEPTED,
        costs=config.costs,
    )
    out = config.out or results.path / REPORT
    write_text_atomically(out, page)
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(f"report: {out}", soft_wrap=True, highlight=False, markup=False)
    return out
