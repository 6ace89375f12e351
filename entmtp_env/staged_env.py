"""``EntMTP/Staged-v0``: one step is one decision, draft a depth more or verify the best nodes."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from entmtp_env.decoding.session import Step
from entmtp_env.decoding.staged import StagedDecoder
from entmtp_env.decoding.stages import DEEPER, load_stages
from entmtp_env.live import LiveEnv, Observation
from entmtp_env.model_errors import named_errors
from entmtp_env.staged_features import StagedFeatures, StagedTracker, observe_draft


class StagedEnv(LiveEnv):
    """Decide after every drafted depth while a model writes a text; one episode is one text.

    Action 0 drafts one more depth, action k verifies with the k-th node budget of the stages: so many nodes,
    those with the highest path values. ``info["action_mask"]`` and :meth:`action_masks` say which actions are
    legal; any other is taken as the largest budget that the draft can fill. The observation is described in
    :mod:`entmtp_env.staged_features`. Rewards are those of the other environments, from the tokens
    (0 when it drafts) and seconds of a decision, so that their sums are those of the whole text.

    Args:
        model: As in :class:`~entmtp_env.live.LiveEnv`, as are those not listed here.
        heads: Draft heads.
        stages: ``"default"``, ``"smollm2-staged"``, or a JSON file of
            :class:`~entmtp_env.decoding.stages.Stages`.
        prompts: A prompt set.
        acceptance: Acceptance rule.
        max_new_tokens: Token cap of a text.
        dtype: Element type.
        device: Where to run.
        reward: Reward name or spec.
        features: ``"all"``, or names of :data:`~entmtp_env.staged_features.GROUPS`; those of the stages are
            always there.
        capacity: KV rows; prompt, text and the largest budget must fit.
        render_mode: ``"ansi"`` or ``None``.

    Raises:
        ValueError: When an argument is not one of the above.
        FileNotFoundError: When stages, prompts, heads or model are not to be had.

    Example:
        >>> env = gymnasium.make("EntMTP/Staged-v0", prompts="math")                     # doctest: +SKIP
        >>> observation, info = env.reset(seed=0)                                        # doctest: +SKIP
        >>> action = env.action_space.sample(info["action_mask"])                        # doctest: +SKIP
        >>> observation, reward, terminated, truncated, info = env.step(action)          # doctest: +SKIP
    """

    def __init__(
        self,
        model: str = "smollm2",
        heads: str = "auto",
        stages: str = "default",
        prompts: str = "chat",
        acceptance: str = "greedy",
        max_new_tokens: int = 256,
        dtype: str = "auto",
        device: str = "auto",
        reward: str = "tokens_per_second",
        features: str | list[str] | tuple[str, ...] = "all",
        capacity: int = 2048,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            model=model,
            heads=heads,
            prompts=prompts,
            acceptance=acceptance,
            max_new_tokens=max_new_tokens,
            dtype=dtype,
            device=device,
            reward=reward,
            capacity=capacity,
            render_mode=render_mode,
        )
        self.stages = load_stages(stages)
        # What the actions mean; manifests and policy files ask for its name and fingerprint alone.
        self.bank = self.stages  # type: ignore[assignment]
        self.feature_set = StagedFeatures(self.stages, features)  # type: ignore[assignment]
        self.feature_names = self.feature_set.names
        self._tracker: StagedTracker = StagedTracker(self.feature_set, self.stages)  # type: ignore[arg-type]
        self.observation_space = gymnasium.spaces.Box(
            self.feature_set.low, self.feature_set.high, dtype=np.float32
        )
        self.action_space = cast("gymnasium.Space[int]", gymnasium.spaces.Discrete(len(self.stages)))

    @cached_property
    def decoder(self) -> StagedDecoder:
        """This environment's own decoding session.

        Raises:
            ValueError: When the stages are deeper or wider than the heads.
        """
        return self.engine.staged_decoder(
            self.stages,
            capacity=self.capacity,
            clock=lambda: self.clock(),
        )

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal now, ``(actions,)``: the convention of sb3-contrib's MaskablePPO."""
        return self.stages.masks[self.decoder.table.depth].copy()

    def _warm_up(self, prompt: list[int]) -> None:
        """Make every decision twice."""
        self.decoder.start(prompt, self._rule, max_new_tokens=self.max_new_tokens)
        for depth, mask in enumerate(self.stages.masks):
            for action in np.repeat(mask[1:].nonzero()[0], 2):
                if self.decoder.finish_reason:
                    self.decoder.start(prompt, self._rule, max_new_tokens=self.max_new_tokens)
                for _ in range(depth):
                    self.decoder.deepen()
                self.decoder.verify_best(self.stages.budgets[action])

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Draft one more depth, or decode a step.

        Raises:
            ResetNeeded: When the text has ended.
            ValueError: When there is no such action.
            FloatingPointError: When the model's logits are not finite; the text has ended.
        """
        if not self._running:
            raise ResetNeeded("the text has ended or none was begun: call reset() before step()")
        depth = self.decoder.table.depth
        action = self.stages.settle(int(action), depth)
        name, step, reason, features, self._running = self.stages.names[action], None, "", 0.0, False
        where = f"prompt {self.place[0]!r}, step {len(self._history) + 1}, depth {depth}, {name}"
        with self.engine.lock:
            begin = self.clock()
            try:
                with named_errors(where):
                    if action == DEEPER:
                        seconds = self.decoder.deepen()
                        ready = self.clock()
                        observe_draft(self._tracker, self.decoder.table)
                    else:
                        # Its drafting was counted by the decisions that did it.
                        drafting = self.decoder.drafting_seconds
                        step = self.decoder.verify_best(self.stages.budgets[action - 1])
                        seconds = step.seconds - drafting
                        reason = step.finish_reason
                        ready = self.clock()
                        self._tracker.step(self._signals(action - 1, step))
                    features = self.clock() - ready
                    seconds += features
            except MemoryError as error:
                reason = f"error: {error}"
                seconds = self.clock() - begin
        tokens = 0 if step is None else len(step.tokens)
        reward = self._reward(tokens, seconds, self._total_tokens, self._total_seconds)
        self._total_tokens += tokens
        self._total_seconds += seconds
        if step is not None:
            self._history.append(step)
        self._running = not reason
        info = self._info("" if action == DEEPER else name, step, seconds, features, reason)
        truncated = reason not in ("", "eos")
        return self._tracker.observe(), float(reward), reason == "eos", truncated, info

    def _info(
        self, tree: str, step: Step | None, seconds: float, features: float, reason: str
    ) -> dict[str, Any]:
        """As in the other environments; ``tree`` is ``""`` and the step's numbers are 0 when it drafted."""
        info = super()._info(tree, step, seconds, features, reason)
        # What was drafted before has been counted by the decisions that did it.
        drafted = step is None and not reason
        mask = self.stages.masks[self.decoder.table.depth].astype(np.int8)
        return info | {"draft_seconds": seconds - features if drafted else 0.0, "action_mask": mask}
