"""What a decode step costs: a measured table, or a formula, by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from entmtp_env.replay.analytic_costs import AnalyticCosts
from entmtp_env.replay.cost_table import CostTable, StepCosts
from entmtp_env.replay.interpolated_costs import InterpolatedCosts
from entmtp_env.spec import parse_spec
from entmtp_env.trees import TopologyBank

__all__ = [
    "NOT_PRICED",
    "AnalyticCosts",
    "CostTable",
    "Costs",
    "InterpolatedCosts",
    "StepCosts",
    "check_probe",
    "load_costs",
    "shipped_costs",
    "warn_of_others",
]

NOT_PRICED = {"accept_seconds": 0.0, "commit_seconds": 0.0, "feature_seconds": 0.0}
"""Parts of a step that have no price of their own: what a replay says of them in ``info``."""

_DEFAULT_MODEL = "smollm2"
_INTERPOLATED = "interpolated:"


class Costs(Protocol):
    """What prices the decode steps of a replay."""

    @property
    def name(self) -> str:
        """Name, for tables and manifests."""
        ...

    @property
    def manifest(self) -> dict[str, Any]:
        """Where the numbers come from; JSON values."""
        ...

    @property
    def probe(self) -> str | None:
        """The probe whose time is in the seconds; ``None`` when they serve any."""
        ...

    def at(self, bank: TopologyBank, lengths: npt.NDArray[np.integer], /) -> StepCosts:
        """Price the trees of a bank at the context lengths ``(N,)``.

        Raises:
            ValueError: When a tree has no price.
        """
        ...


def check_probe(costs: Costs, probe: str) -> None:
    """Check that the time of a probe is in the seconds of a step.

    Raises:
        ValueError: When they were measured with another one.
    """
    if costs.probe not in (None, probe):
        raise ValueError(
            f"the costs {costs.name!r} were measured with probe={costs.probe!r}, not {probe!r}; measure them "
            f"with 'python -m train costs --probe {probe}'"
        )


def warn_of_others(
    costs: Costs, here: Mapping[str, Any], keys: Sequence[str] = ("model_fingerprint",)
) -> None:
    """Warn when costs were measured with something else than what they are to price.

    Args:
        costs: Seconds of a step; a formula does not tell where it is from.
        here: Manifest of what is to be priced.
        keys: What is compared where both tell it.
    """
    others = [
        f"{key} {costs.manifest[key]!r} (here {here[key]!r})"
        for key in keys
        if key in here and costs.manifest.get(key, here[key]) != here[key]
    ]
    if others:
        warnings.warn(
            f"seconds of a step are those of the costs {costs.name!r}, measured with {', '.join(others)}; "
            "measure yours with 'python -m train costs' and name them by costs=",
            stacklevel=3,
        )


def shipped_costs() -> dict[str, Path]:
    """The measured tables that come with the package, by name."""
    folder = Path(str(resources.files("entmtp_env") / "data" / "costs"))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def load_costs(spec: str) -> CostTable | InterpolatedCosts | AnalyticCosts:
    """Costs by name, from a file, or from a few numbers.

    Args:
        spec: One of

            - the name of a shipped table, or ``"auto"`` for the first one of the default model;
            - the path of a ``.json`` file written by ``python -m train costs``;
            - ``interpolated:<name or path>``, between the trees of that table by size and depth, so that it
              prices any tree;
            - ``analytic:base=0.03,node=0.001,...``, the arguments of :class:`AnalyticCosts`;
            - ``analytic:<name or path>``, the formula fitted to that table; numbers may follow and replace
              those of the fit.

    Raises:
        FileNotFoundError: When it is neither a known name nor a file.
        ValueError: When the file is no cost table, or the numbers are none of the above.

    Examples:
        >>> load_costs("analytic:base=0.02,depth=0.001")
        AnalyticCosts(base=0.02, node=0.0, depth=0.001, context=0.0, attention=0.0, free=0.0)
    """
    if spec == "analytic" or spec.startswith("analytic:"):
        return _analytic(spec)
    if spec.startswith(_INTERPOLATED):
        return InterpolatedCosts(_table(spec.removeprefix(_INTERPOLATED)))
    return _table(spec)


def _table(spec: str) -> CostTable:
    shipped = shipped_costs()
    if spec == "auto":
        spec = next((name for name in shipped if name.startswith(f"{_DEFAULT_MODEL}-")), spec)
    path = shipped.get(spec, Path(spec))
    if path.suffix != ".json" or not path.is_file():
        raise FileNotFoundError(
            f"no costs {spec!r}: expected one of {', '.join(['auto', *shipped])}, the path of a .json file "
            "written by 'python -m train costs', interpolated:<one of these>, or "
            "analytic:base=<seconds>,node=...,depth=...,context=..."
        )
    return CostTable.load(path)


def _analytic(spec: str) -> AnalyticCosts:
    parsed = parse_spec(spec)
    if parsed.file:
        raise ValueError(
            f"costs {spec!r}: nothing may follow '@'; write a table behind the colon, analytic:<cost table>"
        )
    known = list(AnalyticCosts.__dataclass_fields__)
    if parsed.options.keys() - set(known) or not (parsed.argument or "base" in parsed.options):
        raise ValueError(
            f"costs {spec!r}: write analytic:base=<seconds>, then any of {', '.join(known[1:])}, or "
            "analytic:<cost table> for a fit to it"
        )
    numbers: dict[str, Any] = dict(parsed.options)
    if parsed.argument:
        numbers = asdict(AnalyticCosts.fit(_table(parsed.argument))) | numbers
    return AnalyticCosts(**numbers)
