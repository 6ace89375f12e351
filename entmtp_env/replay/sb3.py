"""``EntMTP/Replay-v0`` for Stable-Baselines3: thousands of replayed episodes behind its ``VecEnv``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from entmtp_env.replay.staged_vector_env import StagedReplayVectorEnv
from entmtp_env.replay.vector_env import ReplayVectorEnv

Indices = int | Iterable[int] | None


class ReplaySB3VecEnv(VecEnv):
    """A :class:`~entmtp_env.replay.vector_env.ReplayVectorEnv` for Stable-Baselines3 to train and test on.

    It goes through what a ``DummyVecEnv`` of monitored ``ReplayEnv`` goes through with the same seeds, but in
    lock-step. Only where an episode ends does ``infos`` hold anything: the info of the last step,
    ``terminal_observation``, ``TimeLimit.truncated``, and ``episode`` as ``Monitor`` writes it. Whatever else
    policies read of their environment, such as ``bank``, ``tables`` or ``last_step``, is that of the
    ``ReplayVectorEnv``.

    Args:
        num_envs: N.
        **settings: Those of :class:`~entmtp_env.replay.env.ReplayEnv`.

    Raises:
        ValueError: When a setting is wrong, or there is not at least one environment.

    Example:
        >>> env = ReplaySB3VecEnv(64, recording="math", reward="throughput_advantage:reference=45")
        >>> PPO("MlpPolicy", env).learn(1_000_000)                                  # doctest: +SKIP
    """

    _kind: ClassVar[Callable[..., Any]] = ReplayVectorEnv

    def __init__(self, num_envs: int = 1, **settings: Any) -> None:
        envs = self._kind(num_envs, AutoresetMode.SAME_STEP, **settings)
        self._envs, self.render_mode = envs, envs.render_mode
        self._began = time.time()
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        super().__init__(num_envs, envs.single_observation_space, envs.single_action_space)

    def __getattr__(self, name: str) -> Any:
        """What the replayed environments have, as it is now."""
        # Copies are asked for names before they have environments.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._envs, name)

    def reset(self) -> npt.NDArray[np.float32]:
        """Begin a text in every environment, with the seeds and options set before.

        Returns:
            Observations, float32 ``(N, F)``.

        Raises:
            ValueError: When an option or a prompt id is unknown; the options are those of
                :meth:`ReplayEnv.reset() <entmtp_env.replay.env.ReplayEnv.reset>`.
        """
        options = {key: [own.get(key) for own in self._options] for key in set().union(*self._options)}
        observations, info = self._envs.reset(seed=self._seeds, options=options)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = _by_environment(info, np.arange(self.num_envs))
        self._returns[:], self._lengths[:] = 0, 0
        return np.ascontiguousarray(observations)

    def step_async(self, actions: npt.NDArray[np.int64]) -> None:
        """Take the actions ``(N,)`` of the next step."""
        self._actions = actions

    def step_wait(
        self,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.bool_], list[dict[str, Any]]]:
        """Replay the step; where a text ends, the next one begins at once.

        Returns:
            Observations, float32 ``(N, F)``, rewards, float32 ``(N,)``, whether a text has ended, ``(N,)``,
            and N infos, each a new dictionary.

        Raises:
            ResetNeeded: Before the first reset.
            ValueError: When the actions are not one existing tree per environment.
        """
        observations, rewards, terminated, truncated, info = self._envs.step(self._actions)
        dones = terminated | truncated
        self._returns += rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = np.flatnonzero(dones)
        if len(ended):
            seconds = round(time.time() - self._began, 6)
            returns, lengths = self._returns[ended].tolist(), self._lengths[ended].tolist()
            last, first = _by_environment(info["final_info"], ended), _by_environment(info, ended)
            for k, row in enumerate(ended.tolist()):
                self.reset_infos[row] = first[k]
                infos[row] = last[k] | {
                    "terminal_observation": info["final_obs"][row],
                    "TimeLimit.truncated": bool(truncated[row]),
                    "episode": {"r": round(returns[k], 6), "l": lengths[k], "t": seconds},
                }
            self._returns[ended], self._lengths[ended] = 0, 0
        return np.ascontiguousarray(observations), rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Nothing is left open."""
        self._envs.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute, the same for every environment.

        Raises:
            AttributeError: When there is none of that name.
        """
        return [getattr(self, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> NoReturn:
        """Refused: the environments are one object.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            f"cannot set {attr_name!r}: replayed environments share their settings; make new ones with others"
        )

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Refused: the environments are one object.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            f"cannot call {method_name!r}: replayed environments step together; to call methods of single "
            "ones, put EntMTP/Replay-v0 into a DummyVecEnv"
        )

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Whether each environment has a wrapper: that of ``Monitor``, as it were, and no other."""
        return [wrapper_class is Monitor] * len(list(self._get_indices(indices)))


class StagedReplaySB3VecEnv(ReplaySB3VecEnv):
    """A :class:`~entmtp_env.replay.staged_vector_env.StagedReplayVectorEnv` for Stable-Baselines3.

    As :class:`ReplaySB3VecEnv`, but ``bank`` are the stages. sb3-contrib's ``MaskablePPO`` finds the legal
    actions by ``env_method("action_masks")``.

    Args:
        num_envs: N.
        **settings: Those of :class:`~entmtp_env.replay.staged_env.StagedReplayEnv`.

    Raises:
        ValueError: When a setting is wrong, or there is not at least one environment.
    """

    _kind = StagedReplayVectorEnv

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal now, ``(N, actions)``."""
        masks: npt.NDArray[np.bool_] = self._envs.action_masks()
        return masks

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """The ``action_masks`` of each environment; nothing else can be called.

        Raises:
            NotImplementedError: When it is another method.
        """
        if method_name != "action_masks":
            return super().env_method(method_name, *method_args, indices=indices, **method_kwargs)
        return [*self.action_masks()[list(self._get_indices(indices))]]


def _by_environment(info: dict[str, Any], rows: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """The infos of some environments, with plain values; a row of an array is an array."""
    # The rest are masks (_key) and what belongs to texts that have ended (final_key).
    keys = [key for key in info if not key.startswith(("_", "final_"))]
    columns = [info[key][rows] for key in keys]
    columns = [list(column) if column.ndim > 1 else column.tolist() for column in columns]
    return [dict(zip(keys, values, strict=True)) for values in zip(*columns, strict=True)]
