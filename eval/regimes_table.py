"""The tables of the regimes, readable at 100 columns, and what they say of the paper's claims."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from entmtp_env.prompts import SPLITS
from eval.labels import fold_spec, label_paths
from eval.regimes_analysis import FAMILIES, TaskRegimes
from eval.regimes_statistics import Estimate

PAPER_AUROC = (0.55, 0.70)
"""Range over the paper's tasks."""

LEGEND = (
    "r: Pearson, with the accept length of the step that follows; ★: the largest |r|; AUROC: telling the "
    "steps that accept no draft, on texts not trained on; within: AUROC among the steps of one text; "
    "[low, high]: bootstrap over generations, 95 %, for AUROC with the networks as they are: what training "
    "them anew, or with another seed, would change is not in it"
)
"""What the tables mean; said once below them."""

_CLAIMS = {
    "chat": ("history", "ShareGPT"),
    "sharegpt": ("history", "ShareGPT"),
    "math": ("entropy", "GSM8K"),
    "gsm8k": ("entropy", "GSM8K"),
    "humaneval": ("entropy", "HumanEval"),
}
"""The family that leads in the paper, and on which task, by name of ours."""
_LABEL_WIDTH = 17


def correlation_table(tasks: Mapping[str, TaskRegimes]) -> Table:
    """Build the table of Pearson's r: a row per feature, a column per task.

    Args:
        tasks: What was found, by task.
    """
    table = _table("r with the next accept length", tasks)
    strongest = [own.strongest() for own in tasks.values()]
    families = next(iter(tasks.values())).families
    for family in FAMILIES:
        for name in (name for name, own in families.items() if own == family):
            cells = [
                f"[bold]★ {_cell(own.correlations[name])}[/]"
                if name == best
                else _cell(own.correlations[name])
                for own, best in zip(tasks.values(), strongest, strict=True)
            ]
            table.add_row(name, *cells)
        table.add_section()
    return table


def auroc_table(tasks: Mapping[str, TaskRegimes]) -> Table:
    """Build the table of the steps and of the AUROC by family.

    Args:
        tasks: What was found, by task.
    """
    table = _table("which steps accept no draft", tasks)
    rows = tasks.values()
    table.add_row("texts", *(str(own.generations) for own in rows))
    table.add_row("steps", *(str(own.steps) for own in rows))
    table.add_row("tokens per step", *(f"{own.tokens_per_step:.2f}" for own in rows))
    table.add_row("accept no draft", *(f"{own.none_accepted:.0%}" for own in rows))
    table.add_section()
    for family in next(iter(rows)).aurocs:
        table.add_row(f"AUROC {family}", *(_cell(own.aurocs[family]) for own in rows))
    table.add_section()
    for family in next(iter(rows)).within:
        table.add_row(f"within: {family}", *(_cell(own.within[family]) for own in rows))
    return table


def verdicts(tasks: Mapping[str, TaskRegimes]) -> list[str]:
    """Sentences on the paper's claims: who leads on each task, and the range of the AUROC."""
    sentences = [_who_leads(task, own) for task, own in tasks.items()]
    aurocs = {task: own.aurocs["all"] for task, own in tasks.items()}
    low, high = PAPER_AUROC
    inside = sum(own is not None and low <= own.low <= own.high <= high for own in aurocs.values())
    outside = any(own is not None and (own.high < low or own.low > high) for own in aurocs.values())
    verdict = "holds" if inside == len(aurocs) else "does not hold" if outside else "is not decided"
    values = ", ".join(f"{task} {write(own)}" for task, own in aurocs.items())
    sentences.append(
        f"AUROC of all features between {low:.2f} and {high:.2f}: "
        f"{verdict}, whole intervals inside on {inside} of {len(aurocs)} ({values})."
    )
    return sentences


def _who_leads(task: str, own: TaskRegimes) -> str:
    strongest = own.strongest()
    if own.lead is None or strongest is None:
        return f"{task}: history or entropy does not vary."
    lead, sides = own.lead, {"history": own.lead.history, "entropy": own.lead.entropy}
    values = " against ".join(
        f"{family} {write(own.correlations[name])} ({name})" for family, name in sides.items()
    )
    leader = "history" if lead.difference.low > 0 else "entropy" if lead.difference.high < 0 else "neither"
    claim = ""
    name = task
    for split in SPLITS:
        name = name.removesuffix(f":{split}")
    if known := _CLAIMS.get(Path(name).stem.lower()):
        expected, where = known
        verdict = {expected: "holds", "neither": "is not decided"}.get(leader, "does not hold")
        claim = f"{expected} leads, as on {where} in the paper: {verdict}; "
    best = own.correlations[strongest]
    return (
        f"{task}: {claim}r of {values}, difference of |r| {write(lead.difference)}, "
        f"AUROC {write(own.aurocs['history'])} against {write(own.aurocs['entropy'])}; "
        f"the strongest feature is {strongest} ({own.families[strongest]}), {write(best)}."
    )


def write(own: Estimate | None) -> str:
    """An estimate with its interval, as in ``-.31 [-.36, -.25]``."""
    if own is None:
        return "–"
    value, low, high = (f"{v:.2f}".replace("0.", ".") for v in (own.value, own.low, own.high))
    return f"{value} [{low}, {high}]"


def _table(title: str, tasks: Mapping[str, TaskRegimes]) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    table.add_column("", no_wrap=True)
    labels = label_paths(tasks)
    for task, own in tasks.items():
        label = escape(fold_spec(labels[task], _LABEL_WIDTH)) + "\n(approximate)" * own.approximate
        table.add_column(label, justify="right", no_wrap=True)
    return table


def _cell(own: Estimate | None) -> str:
    return escape(write(own))
