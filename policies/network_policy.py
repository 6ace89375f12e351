"""What the policies that are a trained network share: the file, and the check that it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from entmtp_env.sealed_npz import load_sealed, save_sealed
from policies.base import SchedulerPolicy, SchedulingEnv
from policies.network import Network
from policies.policy_file import SHARES, PolicyFile, feature_fingerprint

_KIND = "policy"


class NetworkPolicy(SchedulerPolicy):
    """Base of the policies that are a network: ``name@file.npz``, ``name:key=value@file.npz``.

    The file is a sealed ``.npz`` (:mod:`entmtp_env.sealed_npz`): the entries of a `PolicyFile` as its header
    and the network's arrays. PyTorch is not needed to act. Where the token cap or the capacity is another
    than that of the training, the features that are shares of it are brought to the unit of the training.

    Args:
        env: The environment to schedule.
        network: F observations to K outputs, one for each tree.
        file: Where it was read from; it only shows in `spec`.

    Raises:
        ValueError: When the network has another number of inputs or outputs.
    """

    def __init__(self, env: SchedulingEnv, network: Network, file: str = "") -> None:
        super().__init__(env)
        expected = len(self.feature_names), len(self.bank)
        if network.shape != expected:
            raise ValueError(
                f"policy {self.name!r}: the network has {network.shape[0]} inputs and {network.shape[1]} "
                f"outputs, the environment {expected[0]} features and {expected[1]} trees"
            )
        self.network, self.file = network, file
        self._settings = {
            name: getattr(env.unwrapped, name) for name in SHARES.values() if hasattr(env.unwrapped, name)
        }

    @property
    def reads(self) -> str | None:
        """All that are observed: the network reads every feature."""
        return self._observed

    @property
    def spec(self) -> str:
        """The spec with every option in force, and the file."""
        return f"{super().spec}@{self.file}" if self.file else super().spec

    def save(self, path: str | Path, training: Mapping[str, Any] | None = None) -> None:
        """Write the file, atomically.

        Args:
            path: The file, which should end in ``.npz``.
            training: How the network was trained; free JSON values. Its ``environment`` is the manifest of
                where; by default it has what `PolicyFile.factors` reads.
        """
        features = feature_fingerprint(self.feature_names)
        where = {"environment": self._settings} if self._settings else {}
        header = replace(PolicyFile.of(self, where | dict(training or {})), feature_fingerprint=features)
        save_sealed(path, _KIND, asdict(header), self.network.to_arrays())

    @classmethod
    def load(cls, path: str | Path, env: SchedulingEnv, **options: Any) -> Self:
        """Read the policy for an environment.

        Args:
            path: The file.
            env: The environment to schedule.
            **options: Options that replace those in the file.

        Raises:
            FileNotFoundError: When there is no such file.
            ValueError: As `read_file`, and when an option is wrong.
        """
        return cls(env, **cls.read_file(path, env) | options)

    @classmethod
    def read_file(cls, path: str | Path, env: SchedulingEnv) -> dict[str, Any]:
        """Keyword arguments of the class from a file.

        Raises:
            FileNotFoundError: When there is no such file.
            ValueError: When the file is damaged, of another policy, or for another bank or other features.
        """
        file, network = cls._load(path)
        file.check(cls.name, env)
        unwrapped: Any = env.unwrapped
        for name, factor in file.factors(env).items():
            # A share is at most 1.
            network = network.rescaled(unwrapped.feature_names.index(name), factor, high=1)
        return dict(network=network, file=str(path), **file.options)

    @classmethod
    def describe_file(cls, path: str | Path) -> PolicyFile:
        """What a file says of the policy, its network left out.

        Raises:
            FileNotFoundError: When there is no such file.
            ValueError: When the file is damaged.
        """
        return cls._load(path)[0]

    @staticmethod
    def _load(path: str | Path) -> tuple[PolicyFile, Network]:
        header, arrays = load_sealed(path, _KIND)
        try:
            file, network = PolicyFile(**header), Network.from_arrays(arrays)
            if {"network", "file"} & file.options.keys():
                raise ValueError("its options name what only the reader gives")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is no valid policy: {error}") from error
        return file, network
