"""Comparisons of the tiny model on disk, made once; for tests of what reads results."""

import functools
from pathlib import Path

from eval.compare import Compare, compare


@functools.cache
def tiny_results(files):
    """Folder of a comparison on ``tiny_files``; copy it before changing it."""
    return _compare(files, "results", ("static:tree-4x2", "ladder"))


@functools.cache
def staged_results(files, turns="text"):
    """The same of staged policies."""
    policies = ("eagle2:nodes=12", "staged-threshold:thresholds=0|0.4|0.1|0.05")
    return _compare(files, f"staged-results-{turns}", policies, turns=turns)


def _compare(files, name, policies, **settings):
    out = Path(files.prompts).with_name(name)
    compare(
        Compare(
            policies=policies,
            prompts=(files.prompts,),
            num_prompts=3,
            bootstrap_samples=50,
            out=out,
            **{key: value for key, value in files.kwargs.items() if key != "prompts"},
            **settings,
        )
    )
    return out
