"""The oldest versions that are tested are those that the package asks for at least."""

import re
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNTESTED = {"mypy", "ruff", "ray"}


def test_the_oldest_versions_tested_are_the_lower_bounds():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    bounds = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?>=([\d.]+)", "\n".join(wanted), re.MULTILINE))
    pins = re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE)
    assert dict(pins) == {name: version for name, version in bounds.items() if name not in UNTESTED}
