"""The paper's appendix on one task: which features tell how much of the next draft is accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from entmtp_env.features import Feature
from eval.regimes_classifier import assign_folds, out_of_fold_scores
from eval.regimes_log import StepLog
from eval.regimes_statistics import Estimate, Floats, auroc, draw_weights, estimate, pearson

FAMILIES = ("history", "entropy", "heads", "token", "position")
"""What features tell of: past acceptance, entropy of the base model, confidences, the root's text, place."""
CLASSIFIED = ("history", "entropy", "heads", "all")
"""Families that a network of their own is trained on, and all features together."""


def family_of(feature: Feature) -> str:
    """The family of a feature."""
    if feature.name == "base_entropy":
        return "entropy"
    return {"acceptance": "history", "base": "heads", "trees": "heads"}.get(feature.group, feature.group)


@dataclass(frozen=True)
class Lead:
    """The strongest feature of the history against the strongest of the entropies.

    Attributes:
        history: Name of the former.
        entropy: Name of the latter.
        difference: Absolute r of the former minus that of the latter, paired over generations.
    """

    history: str
    entropy: str
    difference: Estimate


@dataclass(frozen=True)
class TaskRegimes:
    """What was found on one task.

    Attributes:
        generations: Number of texts.
        steps: Number of steps.
        tokens_per_step: Their mean accept length, as the paper counts: accepted drafts + 1.
        none_accepted: Share of the steps that accept no draft.
        families: Family by feature.
        correlations: Pearson's r with the accept length of the step to come, by feature; ``None`` where a
            feature does not vary.
        aurocs: AUROC of telling the steps that accept no draft, by family; ``None`` when all or none do.
        within: The same over pairs of steps of one text: what tells steps apart, and not only texts. History
            without skill can fall below 1/2 here: what a text has accepted already, its later steps lack.
        lead: History against entropy; ``None`` when one of them does not vary.
        approximate: Whether texts were replayed that depend on the schedule.
    """

    generations: int
    steps: int
    tokens_per_step: float
    none_accepted: float
    families: dict[str, str]
    correlations: dict[str, Estimate | None]
    aurocs: dict[str, Estimate | None]
    within: dict[str, Estimate | None]
    lead: Lead | None
    approximate: bool

    def strongest(self) -> str | None:
        """The feature with the largest absolute r; ``None`` when none varies."""
        found = {name: abs(r.value) for name, r in self.correlations.items() if r is not None}
        return max(found, key=found.__getitem__, default=None)


def analyse(
    log: StepLog,
    folds: int = 5,
    samples: int = 10_000,
    seed: int = 0,
    approximate: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> TaskRegimes:
    """Correlate and classify the steps of one task.

    Args:
        log: The steps.
        folds: Folds of generations for the classifier.
        samples: Bootstrap resamples of generations; networks are not trained anew for them.
        seed: Seed of the folds, the networks and the bootstrap.
        approximate: Whether texts were replayed that depend on the schedule.
        advance: Called after each of the ``folds * len(CLASSIFIED)`` trainings.

    Raises:
        ValueError: When there are fewer different texts than folds, or fewer than three folds.
    """
    weights = draw_weights(len(log.texts), samples, seed)
    # A text without a step would leave its fold with less than the others have.
    present = np.unique(log.generations)
    dealt = np.zeros(len(log.texts), dtype=np.int64)
    dealt[present] = assign_folds([log.texts[k] for k in present], folds, seed)
    families = {feature.name: family_of(feature) for feature in log.features}
    r = pearson(log.values, log.accepted, log.generations, weights)
    none_accepted = log.accepted == 0
    aurocs, within = {}, {}
    one_each = np.arange(len(log.texts))
    for family in CLASSIFIED:
        columns = np.array([family in ("all", own) for own in families.values()])
        scores = out_of_fold_scores(
            log.values[:, columns], none_accepted, dealt[log.generations], seed, advance
        )
        aurocs[family], within[family] = (
            estimate(auroc(scores, none_accepted, log.generations, folds_of_texts, weights))
            for folds_of_texts in (dealt, one_each)
        )
    return TaskRegimes(
        generations=len(log.texts),
        steps=len(log.accepted),
        tokens_per_step=float(log.accepted.mean()) + 1,
        none_accepted=float(none_accepted.mean()),
        families=families,
        correlations={name: estimate(own) for name, own in zip(families, r.T, strict=True)},
        aurocs=aurocs,
        within=within,
        lead=leading(families, np.abs(r)),
        approximate=approximate,
    )


def leading(families: dict[str, str], strengths: Floats) -> Lead | None:
    """The strongest feature of history against that of entropy.

    Args:
        families: Family by feature.
        strengths: Absolute r of each feature, those of the resamples behind those of the sample,
            ``(1 + resamples, features)``.

    Returns:
        ``None`` when none of a family varies.
    """
    names, own = list(families), np.array(list(families.values()))
    best, most = [], []
    for family in ("history", "entropy"):
        varying = np.flatnonzero((own == family) & ~np.isnan(strengths[0]))
        if not len(varying):
            return None
        best.append(names[varying[strengths[0, varying].argmax()]])
        # Each resample has its own strongest one, or the choice would count as known.
        most.append(np.nanmax(strengths[:, varying], axis=1))
    difference = estimate(most[0] - most[1])
    assert difference is not None
    return Lead(best[0], best[1], difference)
