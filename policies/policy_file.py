"""A policy in a file: its options, the bank they were calibrated for, and how."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from entmtp_env.files import read_json, write_text_atomically
from policies.base import SchedulerPolicy, SchedulingEnv, env_probe

_FORMAT = 1

SHARES = {"generated_fraction": "max_new_tokens", "context_fraction": "capacity"}
"""Features that are shares of a setting of the environment, and of which."""


def feature_fingerprint(feature_names: Sequence[str]) -> str:
    """Hash of the features in their order; a policy that reads them by position carries it."""
    return hashlib.sha256(repr(tuple(feature_names)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PolicyFile:
    """The contents of a policy file, read by ``name@path``.

    Attributes:
        policy: The policy's name: a built-in one, or ``module:Class``.
        bank_fingerprint: Fingerprint of the bank that the options belong to.
        options: Keyword arguments of the policy.
        feature_fingerprint: See `feature_fingerprint`; ``None`` when features are read by name.
        calibration: How the options were found; free, and never read back but for its ``environment``, the
            manifest of where, see `factors`.
        probe: What was drafted before each decision when they were found; ``None`` when it does not matter or
            is not known.
        features: Groups of the features that it reads, separated by commas, or "all"; ``None`` when that is
            not known.
    """

    policy: str
    bank_fingerprint: str
    options: Mapping[str, Any] = field(default_factory=dict)
    feature_fingerprint: str | None = None
    calibration: Mapping[str, Any] = field(default_factory=dict)
    probe: str | None = None
    features: str | None = None

    def __post_init__(self) -> None:
        """Check the types, which a file may have wrong.

        Raises:
            ValueError: When one is; the message names the entry.
        """
        for key, value in vars(self).items():
            expected = Mapping if key in ("options", "calibration") else str
            optional = key in ("feature_fingerprint", "probe", "features")
            if not (isinstance(value, expected) or (optional and value is None)):
                raise ValueError(f"{key} must be a JSON {'string' if expected is str else 'object'}")

    @classmethod
    def of(cls, policy: SchedulerPolicy, calibration: Mapping[str, Any] | None = None) -> PolicyFile:
        """Describe a policy with the options that it has in force."""
        return cls(
            policy.name,
            policy.bank.fingerprint,
            dict(policy.options),
            calibration=dict(calibration or {}),
            probe=policy.probe,
            features=policy.reads,
        )

    def save(self, path: str | Path) -> None:
        """Write the file as JSON, atomically."""
        document = {"format": _FORMAT} | {
            key: value for key, value in asdict(self).items() if value is not None
        }
        write_text_atomically(path, json.dumps(document, indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> PolicyFile:
        """Read a policy file.

        Raises:
            FileNotFoundError: When there is no such file.
            ValueError: When it is not a policy file, or one of another format.
        """
        try:
            document = read_json(path)
        except ValueError as error:
            raise ValueError(f"{path} is not a policy file: {error}") from error
        if not isinstance(document, dict) or not {"format", "policy", "bank_fingerprint"} <= document.keys():
            raise ValueError(f"{path} is not a policy file: it lacks format, policy or bank_fingerprint")
        if document.pop("format") != _FORMAT:
            raise ValueError(f"{path} has another format than {_FORMAT}; write it anew with this version")
        unknown = document.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            raise ValueError(f"{path} is not a policy file: unknown key {', '.join(sorted(unknown))}")
        try:
            return cls(**document)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def factors(self, env: SchedulingEnv) -> dict[str, float]:
        """What observations are to be multiplied by, so that they mean what they meant where it was made.

        Returns:
            By the names of those of :data:`SHARES` that are observed, and are of another number here; none
            where the file or the environment does not tell the number.
        """
        unwrapped: Any = env.unwrapped
        made_in = self.calibration.get("environment")
        there = made_in if isinstance(made_in, Mapping) else {}
        numbers = {
            name: (getattr(unwrapped, setting, None), there.get(setting))
            for name, setting in SHARES.items()
            if name in unwrapped.feature_names
        }
        return {
            name: here / own
            for name, (here, own) in numbers.items()
            if here and isinstance(own, int) and own > 0 and own != here
        }

    def check(self, policy: str, env: SchedulingEnv) -> None:
        """Refuse to run as another policy, or with another bank or other features.

        Raises:
            ValueError: When the file does not fit; the message says in what.
        """
        unwrapped: Any = env.unwrapped
        if self.policy != policy:
            raise ValueError(
                f"the policy file is for {self.policy!r}, not {policy!r}; write {self.policy}@<file>"
            )
        if self.bank_fingerprint != unwrapped.bank.fingerprint:
            raise ValueError(
                f"the policy file belongs to the bank {self.bank_fingerprint}, this environment has "
                f"{unwrapped.bank.name!r} ({unwrapped.bank.fingerprint}); calibrate again, or pass the bank "
                "it was made with"
            )
        features = feature_fingerprint(unwrapped.feature_names)
        if self.feature_fingerprint not in (None, features):
            raise ValueError(
                f"the policy file belongs to the features {self.feature_fingerprint}, this environment has "
                f"{features}; train again, or pass the features= it was made with"
            )
        probe = env_probe(env)
        if self.probe not in (None, probe):
            raise ValueError(
                f"the policy file was made with probe={self.probe!r}, this environment has {probe!r}; pass "
                f"probe={self.probe!r} to it"
            )
