"""``EntMTP/Live-v0``: every step is a real tree-decoding step of a real model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from entmtp_env.decoding.acceptance import make_acceptance
from entmtp_env.decoding.decoder import TreeDecoder
from entmtp_env.decoding.session import Step
from entmtp_env.engine import GRAPHS, Engine, get_engine
from entmtp_env.features import FeatureSet, Probe
from entmtp_env.model_errors import named_errors
from entmtp_env.prompt_queue import PromptQueue
from entmtp_env.prompts import Prompt, load_prompts
from entmtp_env.render import render_ansi
from entmtp_env.render_modes import check_render_mode
from entmtp_env.rewards import make_reward
from entmtp_env.token_shapes import TokenShapes
from entmtp_env.tracker import FeatureTracker, Signals
from entmtp_env.trees import DraftTree, TopologyBank, load_bank

Observation = npt.NDArray[np.float32]

_READ_BASE = frozenset(("base", "entropy", "heads"))
"""Groups of features in which the base model's own signals are."""


class LiveEnv(gymnasium.Env[Observation, int]):
    """Schedule draft trees while a model writes a text; one episode is one text.

    The observation is a float32 vector of named features (:mod:`entmtp_env.features`), the action the index
    of a tree of the bank, the reward one of :mod:`entmtp_env.rewards`. A step drafts and verifies the tree
    and commits what was accepted. EOS terminates an episode; the token cap, a full KV cache or a device out
    of memory truncates it.

    Arguments are names, paths and numbers only; the model is loaded at the first reset, once per process.

    Args:
        model: A known model (``"smollm2"``), a path, or a Hugging Face repository.
        heads: Draft heads: ``"auto"``, ``"medusa"`` (both ship with the package), or a checkpoint.
        bank: ``"default"``, a shipped one such as ``"smollm2-pooled"``, or a JSON file of a topology bank.
        prompts: A prompt set, ``name``, ``name:calibration``, ``name:evaluation``, or a ``.jsonl`` file.
        acceptance: ``greedy``, ``sample:temperature=…``, or ``typical:temperature=…,epsilon=…,alpha=…``.
        max_new_tokens: Token cap of a text.
        dtype: ``"auto"``, ``"float32"``, ``"bfloat16"`` or ``"float16"``, on a CPU that of the weights alone.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, or ``"cuda-graphs"`` for steps as captured CUDA graphs.
        reward: Reward name or spec.
        features: ``"all"``, or names of feature groups, comma-separated or as a sequence.
        probe: What is drafted before the decision: ``"none"``, ``"first"`` (the first depth, which every
            tree but the empty one drafts anyway), ``"chain"`` or ``"union"``. The ``heads`` features tell of
            what it drafts and of no deeper depth (:data:`~entmtp_env.features.Probe`).
        capacity: KV rows; prompt, text and the largest tree must fit.
        render_mode: ``"ansi"`` or ``None``.

    Raises:
        ValueError: When an argument is not one of the above.
        FileNotFoundError: When bank, prompts, heads or model are not to be had (the last two at reset).

    Example:
        >>> env = gymnasium.make("EntMTP/Live-v0", prompts="math")          # doctest: +SKIP
        >>> observation, info = env.reset(seed=0)                           # doctest: +SKIP
        >>> observation, reward, terminated, truncated, info = env.step(3)  # doctest: +SKIP
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as Gymnasium declares it
        "render_modes": ["ansi"],
        "render_fps": 10,
    }

    def __init__(
        self,
        model: str = "smollm2",
        heads: str = "auto",
        bank: str = "default",
        prompts: str = "chat",
        acceptance: str = "greedy",
        max_new_tokens: int = 256,
        dtype: str = "auto",
        device: str = "auto",
        reward: str = "tokens_per_second",
        features: str | list[str] | tuple[str, ...] = "all",
        probe: Probe = "none",
        capacity: int = 2048,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = check_render_mode(type(self), render_mode)
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        self.prompts = load_prompts(prompts)
        self.max_new_tokens, self.capacity = max_new_tokens, capacity
        self.clock: Callable[[], float] = time.perf_counter
        self._engine_key = (model, heads, dtype, device)
        self._acceptance, self._prompt_set = acceptance, prompts
        self._rule = make_acceptance(acceptance)
        self._reward = make_reward(reward)
        self._use_bank(load_bank(bank), features, probe)
        self._queue = PromptQueue([prompt.prompt_id for prompt in self.prompts], prompts)
        self._prompt: Prompt | None = None
        self._last_step = 0, 0.0
        self._running = False

    def _use_bank(self, bank: TopologyBank, features: str | Sequence[str], probe: Probe) -> None:
        """Let the actions be the trees of a bank."""
        self.bank = bank
        self.feature_set = FeatureSet(bank.depth, [len(tree) for tree in bank], features, probe)
        self.feature_names = self.feature_set.names
        self._tracker = FeatureTracker(self.feature_set)
        union, depth = bank.union, bank.depth
        self._probe_tree = {
            "none": None,
            "first": DraftTree.chain(min(1, depth)),
            "chain": DraftTree.chain(depth),
            "union": union,
        }[probe]
        self._members = np.array([[node in tree.rows for node in union.nodes] for tree in bank], dtype=float)
        self.observation_space = gymnasium.spaces.Box(
            self.feature_set.low, self.feature_set.high, dtype=np.float32
        )
        self.action_space = cast("gymnasium.Space[int]", gymnasium.spaces.Discrete(len(bank)))

    @cached_property
    def engine(self) -> Engine:
        """The loaded model and heads."""
        return get_engine(*self._engine_key)

    @cached_property
    def decoder(self) -> TreeDecoder:
        """This environment's own decoding session.

        Raises:
            ValueError: When a tree of the bank is deeper than the heads.
        """
        decoder = self.engine.tree_decoder(
            capacity=self.capacity,
            max_nodes=self.bank.max_nodes,
            clock=lambda: self.clock(),
        )
        for tree in self.bank:
            decoder.check_tree(tree)
        return decoder

    @property
    def manifest(self) -> dict[str, Any]:
        """What a result made with this environment depends on; loads the model."""
        return {
            **self.engine.manifest,
            "device": self._device,
            "bank": self.bank.name,
            "bank_fingerprint": self.bank.fingerprint,
            "features_fingerprint": self.feature_set.fingerprint,
            "probe": self.feature_set.probe,
            "prompts": self._prompt_set,
            "acceptance": self._acceptance,
            "max_new_tokens": self.max_new_tokens,
            "capacity": self.capacity,
        }

    @property
    def _device(self) -> str:
        """Where and how steps really run: none behind a probe is a captured one."""
        device = self.engine.manifest["device"]
        return device if self._probe_tree is None else device.removesuffix(GRAPHS)

    @property
    def place(self) -> tuple[str, int]:
        """Prompt id, and the tokens of its text so far: what an oracle looks its plan up by."""
        assert self._prompt is not None
        return self._prompt.prompt_id, len(self.decoder.tokens)

    @property
    def last_step(self) -> tuple[int, float]:
        """Tokens and seconds of the last step, both 0 before a text's first: what an online learner reads."""
        return self._last_step

    def warm_up(self, prompt_id: str | None = None) -> None:
        """Run every tree a few times, so that first-use costs fall into no timing; a reset must follow.

        Args:
            prompt_id: The prompt to do it with; by default the first.
        """
        self._running = False
        prompt = self.prompts[0 if prompt_id is None else self._queue.find(prompt_id)]
        with self.engine.lock, named_errors(f"warm-up with prompt {prompt.prompt_id!r}"):
            self._warm_up(self.engine.encode(prompt))

    def _warm_up(self, prompt: list[int]) -> None:
        self.decoder.start(prompt, self._rule, max_new_tokens=self.max_new_tokens)
        for tree in self.bank:
            for _ in range(3):
                if self.decoder.finish_reason:
                    self.decoder.start(prompt, self._rule, max_new_tokens=self.max_new_tokens)
                if self._probe_tree is not None:
                    self.decoder.probe(self._probe_tree)
                self.decoder.step(tree)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the next prompt's text.

        Args:
            seed: Fixes the order of the prompts and the sampling of this and all later episodes.
            options: ``{"prompt_id": …}`` picks the prompt.

        Raises:
            ValueError: When the prompt id or an option is unknown, and nothing has changed; or the prompt is
                empty or too long.
            MemoryError: When the device has too little memory for it; a later reset may work.
            FloatingPointError: When the logits behind it are not finite.
        """
        self._queue.check(options)
        super().reset(seed=seed)
        self._running = False
        if seed is not None:
            self._queue.clear()
        index, sampling_seed = self._queue.draw(self.np_random, options)
        prompt = self._prompt = self.prompts[index]
        self._total_tokens, self._total_seconds = 0, 0.0
        self._history: list[Step] = []
        with self.engine.lock:
            tokens = self.engine.encode(prompt)
            with named_errors(f"prompt {prompt.prompt_id!r}"):
                self._prefill_seconds = self.decoder.start(
                    tokens, self._rule, max_new_tokens=self.max_new_tokens, seed=sampling_seed
                )
                self._probe()
                self._tracker.reset(self._signals(0, None))
        self._running = True
        return self._tracker.observe(), self._info("", None, 0.0, 0.0, "")

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Decode one step with the tree of index ``action``.

        Raises:
            ResetNeeded: When the text has ended.
            ValueError: When there is no such tree.
            FloatingPointError: When the model's logits are not finite; the text has ended.
        """
        if not self._running:
            raise ResetNeeded("the text has ended or none was begun: call reset() before step()")
        action = int(action)
        if not 0 <= action < len(self.bank):
            raise ValueError(f"action {action} is outside 0..{len(self.bank) - 1}, the trees of the bank")
        tree, step, features, self._running = self.bank[action], None, 0.0, False
        where = f"prompt {self.place[0]!r}, step {len(self._history) + 1}, tree {tree.name!r}"
        with self.engine.lock:
            begin = self.clock()
            try:
                with named_errors(where):
                    step = self.decoder.step(tree)
                    reason, seconds = step.finish_reason, step.seconds
                    if not reason:
                        # Its time counts in the step that uses it.
                        self._probe()
                    ready = self.clock()
                    self._tracker.step(self._signals(action, step))
                    features = self.clock() - ready
                    seconds += features
            except MemoryError as error:
                reason = f"error: {error}"
                seconds = self.clock() - begin if step is None else step.seconds
        tokens = 0 if step is None else len(step.tokens)
        reward = self._reward(tokens, seconds, self._total_tokens, self._total_seconds)
        self._total_tokens += tokens
        self._total_seconds += seconds
        if step is not None:
            self._history.append(step)
        self._running = not reason
        info = self._info(tree.name, step, seconds, features, reason)
        truncated = reason not in ("", "eos")
        return self._tracker.observe(), float(reward), reason == "eos", truncated, info

    def close(self) -> None:
        """End the text and free its KV rows; the model stays loaded, and a later reset begins anew."""
        self._running = False
        self.__dict__.pop("decoder", None)

    def render(self) -> str | None:  # type: ignore[override]
        """The text so far, coloured by accept length, with the last tree and the running throughput."""
        if self.render_mode is None or self._prompt is None:
            return None
        return render_ansi(
            self.engine.decode, self._history, self._last_tree, self._total_tokens, self._total_seconds
        )

    def _probe(self) -> None:
        if self._probe_tree is not None:
            self.decoder.probe(self._probe_tree)

    def _signals(self, action: int, step: Step | None) -> Signals:
        # The decoder's signals cost kernels, and few groups read them.
        groups = self._tracker.features.groups
        top1, entropy = (0.0, 0.0) if _READ_BASE.isdisjoint(groups) else self.decoder.base_signals()
        confidences, entropies = self.decoder.head_signals() if "heads" in groups else ([], [])
        right = None if step is None else step.first_draft_right
        return Signals(
            base_top1=top1,
            base_entropy=entropy,
            head_top1=confidences,
            head_entropy=entropies,
            accept_length=0 if step is None else step.accept_length,
            first_draft_right=math.nan if right is None else float(right),
            generated_fraction=len(self.decoder.tokens) / self.max_new_tokens,
            context_fraction=self.decoder.length / self.decoder.capacity,
            action=action,
            root_shape=self._shapes[self.decoder.root],
            tree_value=self._tree_values(),
        )

    @cached_property
    def _shapes(self) -> TokenShapes:
        return TokenShapes(self.engine.tokenizer)

    def _tree_values(self) -> list[float] | None:
        if self.feature_set.probe != "union":
            return None
        if self.decoder.finish_reason:
            return [0.0] * len(self.bank)
        return (self._members @ self.decoder.probe_values().double().cpu().numpy()).tolist()

    def _info(
        self, tree: str, step: Step | None, seconds: float, features: float, reason: str
    ) -> dict[str, Any]:
        assert self._prompt is not None
        tokens = 0 if step is None else len(step.tokens)
        self._last_tree, self._last_step = tree, (tokens, seconds)
        return {
            "prompt_id": self._prompt.prompt_id,
            "prefill_seconds": self._prefill_seconds,
            "tree": tree,
            "accept_length": 0 if step is None else step.accept_length,
            "tokens": tokens,
            "seconds": seconds,
            "draft_seconds": 0.0 if step is None else step.draft_seconds,
            "verify_seconds": 0.0 if step is None else step.verify_seconds,
            "accept_seconds": 0.0 if step is None else step.accept_seconds,
            "commit_seconds": 0.0 if step is None else step.commit_seconds,
            "feature_seconds": features,
            "total_tokens": self._total_tokens,
            "total_seconds": self._total_seconds,
            "finish_reason": reason,
            "text": self.engine.decode(self.decoder.tokens) if reason else "",
        }
