"""Make prompts that ask for Python functions, from the signatures and docstrings of installed packages.

    python examples/code_prompts.py code.jsonl --packages json statistics networkx sympy --limit 2000
    python -m train distill --prompts code.jsonl --out code.jsonl.gz

The base model then writes code of its own to train draft heads on; the functions' bodies are not used.
"""

import argparse
import ast
import importlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

COMPLETE = "Complete the following Python function.\n\n```python\n{head}\n```"
WRITE = "Write a Python function `{name}`. {summary}"


def functions(package: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Undecorated functions with a docstring, from all files of a package or module."""
    source = getattr(importlib.import_module(package), "__file__", None)
    if source is None:
        raise SystemExit(f"package {package!r} has no Python source here")
    path = Path(source)
    for file in sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]:
        if "tests" in file.parts:
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.name.startswith("_"):
                continue
            if docstring := ast.get_docstring(node):
                yield node, docstring


def prompt(node: ast.FunctionDef, docstring: str, chance: float) -> str:
    """Two thirds show signature and docstring, one third asks in words."""
    if chance < 1 / 3:
        summary = " ".join(docstring.split("\n\n")[0].split())
        return WRITE.format(name=node.name, summary=summary)
    lines = docstring.splitlines()[:12]
    quoted = "\n".join(f"    {line}".rstrip() for line in ['"""' + lines[0], *lines[1:], '"""'])
    return COMPLETE.format(head=f"def {node.name}({ast.unparse(node.args)}):\n{quoted}")


def main() -> None:
    """Write the prompts, shuffled, each text once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", nargs="+", default=["json", "statistics", "textwrap", "heapq", "numpy"])
    parser.add_argument("--limit", type=int, default=2000, help="prompts to write")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    found = [pair for package in options.packages for pair in functions(package)]
    texts = sorted({prompt(node, docstring, rng.random()) for node, docstring in found})
    rng.shuffle(texts)
    with options.out.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts[: options.limit]):
            file.write(json.dumps({"id": f"code-{number}", "prompt": text}) + "\n")
    print(f"{min(len(texts), options.limit)} of {len(texts)} prompts written to {options.out}")


if __name__ == "__main__":
    main()
