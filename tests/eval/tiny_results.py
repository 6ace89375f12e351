"""A comparison of the tiny model on disk, made once; for tests of what reads results."""

import functools
from pathlib import Path

from eval.compare import Compare, compare


@functools.cache
def tiny_results(files):
    """Folder of a comparison on ``tiny_files``; copy it before changing it."""
    out = Path(files.prompts).with_name("results")
    compare(
        Compare(
            policies=("static:tree-4x2", "ladder"),
            prompts=(files.prompts,),
            num_prompts=3,
            bootstrap_samples=50,
            out=out,
            **{key: value for key, value in files.kwargs.items() if key != "prompts"},
        )
    )
    return out
