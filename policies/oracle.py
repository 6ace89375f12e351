"""The best possible schedule of recorded texts, as a policy: what no scheduler can beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.tables import ReplayTables
from policies.base import Memory, SchedulerPolicy, SchedulingEnv
from policies.options import names


class Oracle(SchedulerPolicy):
    """The tree that the best schedule takes, found by dynamic programming over the recorded text.

    It knows what will be accepted, so it is no scheduler but the bound of all. It reads where the text is
    from ``env.unwrapped.place`` and ignores the observations, hence runs only in the environment that it was
    built with, a single one or a :class:`~entmtp_env.replay.vector_env.ReplayVectorEnv`.

    A replay environment has all that is needed: ``oracle``. A live one needs a recording of its prompts under
    ``greedy`` and the costs of its machine: ``oracle:recording=chat.npz,costs=costs.json``. Live in bfloat16
    or float16 a text may leave the recorded one; the plan is then followed by position alone, and past the
    end of the recorded text the best static tree goes on.

    Args:
        env: The environment to schedule; it is kept.
        recording: What the plan is made from, see :func:`~entmtp_env.replay.shipped.load_recording`; several
            as ``a.npz|b.npz``. By default what the environment replays.
        costs: With a recording, see :func:`~entmtp_env.replay.costs.load_costs`; in a spec the numbers of a
            formula are separated by ``|``, as in ``analytic:base=0.03|node=0.001``. By default ``"auto"``.

    Raises:
        ValueError: When a live environment comes without a recording, or with one of another model, other
            heads or another acceptance rule; or when recording, costs and bank do not fit together.
        FileNotFoundError: When a file is not to be had.
    """

    name = "oracle"
    argument: ClassVar[str | None] = "recording"
    observes = False

    def __init__(
        self, env: SchedulingEnv, recording: str | Sequence[str] = "", costs: str | Sequence[str] = ""
    ) -> None:
        super().__init__(env)
        self._env: Any = env.unwrapped
        if recording:
            recordings, prices = names("recording", recording), names("costs", costs or "auto")
            tables = self._tables(recordings, ",".join(prices))
            self.options = {"recording": recordings, "costs": prices}
        elif costs:
            raise ValueError(f"policy 'oracle': costs={costs!r} need a recording; write both or neither")
        elif hasattr(self._env, "tables"):
            tables = self._env.tables
        else:
            raise ValueError(
                "policy 'oracle' needs to know the texts: write oracle:recording=<file>,costs=<file> with a "
                "recording of these prompts by 'python -m train record', or run it in EntMTP/Replay-v0"
            )
        oracle = solve(tables)
        # An ended text has no plan; the action there matters only when a live text goes on.
        self._plan = np.where(tables.stops > 0, oracle.best_static, oracle.actions)
        self._starts, self._ends = tables.starts, tables.ends
        self._index = {text.prompt_id: i for i, text in enumerate(tables.recording.texts)}

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.int64], Memory]:
        """The planned tree where each text is.

        Raises:
            ValueError: When a prompt was not recorded, or the observations are not those of the environment.
        """
        prompt_ids, positions = map(np.atleast_1d, self._env.place)
        if len(prompt_ids) != len(observations):
            raise ValueError(
                f"policy 'oracle' got {len(observations)} observations, its environment has "
                f"{len(prompt_ids)} texts; run it only in the environment that it was built with"
            )
        try:
            texts = [self._index[prompt_id] for prompt_id in prompt_ids]
        except KeyError as error:
            raise ValueError(
                f"policy 'oracle': prompt {str(error.args[0])!r} is not in the recording; add it with "
                "'python -m train record'"
            ) from None
        return self._plan[np.minimum(self._starts[texts] + positions, self._ends[texts])], memory

    def _tables(self, recordings: Sequence[str], costs: str) -> ReplayTables:
        env, recording = self._env, load_recording(recordings)
        recording.check_origin(env.manifest, f"the environment of policy {self.name!r}")
        if recording.manifest["acceptance"] != "greedy" and not hasattr(env, "tables"):
            raise ValueError(
                f"policy 'oracle': under {recording.manifest['acceptance']!r} a live text is another one "
                "than the recorded; use acceptance greedy, or run it in EntMTP/Replay-v0"
            )
        return ReplayTables.build(
            recording, load_costs(costs), self.bank, env.max_new_tokens, env.capacity, env.feature_set.probe
        )
