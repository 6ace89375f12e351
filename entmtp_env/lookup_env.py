"""``EntMTP/PromptLookup-v0``: drafts are looked up in the text itself; an action is how many tokens."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from entmtp_env.decoding.prompt_lookup import PromptLookupDecoder
from entmtp_env.engine import GRAPHS
from entmtp_env.features import GROUPS
from entmtp_env.live import LiveEnv
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank

_NOT_OBSERVED = ("heads", "trees")


class PromptLookupEnv(LiveEnv):
    """Choose how many looked-up tokens to verify while a model writes a text; one episode is one text.

    As :class:`~entmtp_env.live.LiveEnv` with a bank of chains: action k verifies the first k tokens of what
    followed when the last tokens of prompt and text occurred before, and decodes one token when they did not.
    The draft heads are loaded, since the environments of a comparison share an engine, and never run.

    Args:
        model: As in :class:`~entmtp_env.live.LiveEnv`, as are those not listed here.
        heads: Draft heads; they play no part.
        prompts: A prompt set.
        acceptance: Acceptance rule.
        max_new_tokens: Token cap of a text.
        dtype: Element type.
        device: Where to run.
        reward: Reward name or spec.
        features: ``"all"`` (but those of heads), or names of feature groups.
        capacity: KV rows; prompt, text and the longest chain must fit.
        render_mode: ``"ansi"`` or ``None``.
        max_draft: Tokens of the longest chain.
        max_ngram: Longest run of last tokens that is looked up; shorter ones are when it never occurred.

    Raises:
        ValueError: When an argument is not one of the above.
        FileNotFoundError: When prompts, heads or model are not to be had.

    Example:
        >>> env = gymnasium.make("EntMTP/PromptLookup-v0", prompts="math")   # doctest: +SKIP
        >>> observation, info = env.reset(seed=0)                            # doctest: +SKIP
        >>> observation, reward, terminated, truncated, info = env.step(10)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str = "smollm2",
        heads: str = "auto",
        prompts: str = "chat",
        acceptance: str = "greedy",
        max_new_tokens: int = 256,
        dtype: str = "auto",
        device: str = "auto",
        reward: str = "tokens_per_second",
        features: str | list[str] | tuple[str, ...] = "all",
        capacity: int = 2048,
        render_mode: str | None = None,
        max_draft: int = 10,
        max_ngram: int = 3,
    ) -> None:
        if min(max_draft, max_ngram) < 1:
            raise ValueError(f"max_draft and max_ngram must be at least 1, got {max_draft} and {max_ngram}")
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
        self.max_ngram = max_ngram
        chains = [DraftTree.chain(tokens) for tokens in range(1, max_draft + 1)]
        groups = tuple(group for group in GROUPS if group not in _NOT_OBSERVED)
        self._use_bank(
            TopologyBank(chains, name=f"prompt-lookup-{max_draft}"),
            groups if features == "all" else features,
            "none",
        )

    @cached_property
    def decoder(self) -> PromptLookupDecoder:  # type: ignore[override]
        """This environment's own decoding session."""
        return PromptLookupDecoder(
            self.engine.backbone,
            max_ngram=self.max_ngram,
            capacity=self.capacity,
            eos_token_ids=self.engine.eos_token_ids,
            max_nodes=self.bank.max_nodes,
            clock=lambda: self.clock(),
        )

    def _warm_up(self, prompt: list[int]) -> None:
        """Begin behind so much of the text that its next token occurred before: then chains are drafted."""
        self.decoder.start(prompt, self._rule, max_new_tokens=self.max_new_tokens)
        while not self.decoder.finish_reason and self.decoder.root not in (*prompt, *self.decoder.tokens):
            self.decoder.step(AUTOREGRESSIVE)
        super()._warm_up(prompt if self.decoder.finish_reason else [*prompt, *self.decoder.tokens])

    @property
    def manifest(self) -> dict[str, Any]:
        """What a result made with this environment depends on; loads the model."""
        # A chain of another length and other tokens at every step has no captured form.
        device = self._device.removesuffix(GRAPHS)
        return super().manifest | {"max_ngram": self.max_ngram, "device": device}
