"""Acceptance rules: which drafted tokens the base model's verdict lets stand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from entmtp_env.decoding.noise import gumbel_noise
from entmtp_env.spec import parse_spec
from entmtp_env.trees import DraftTree

_BLOCK = 256
_ENTROPY_EPSILON = 1e-5


@dataclass(frozen=True)
class Verdict:
    """What a rule made of one verified tree.

    Attributes:
        rows: Accepted rows from the root down, ``[0, ...]``; row 0 is the root itself.
        next_tokens: Per accepted row, the token that follows when the path ends there; the last is the
            next root.
        first_draft_right: Whether the first greedy draft ``(0,)`` stands; ``None`` when nothing was drafted.
    """

    rows: list[int]
    next_tokens: list[int]
    first_draft_right: bool | None


class AcceptanceRule(ABC):
    """A rule; :meth:`start` prepares it for one text."""

    name: str
    lossless: bool
    """Whether the text equals autoregressive decoding by the same rule, for every tree."""

    def start(self, seed: int) -> None:  # noqa: B027 - most rules have no state
        """Begin a text; rules without randomness have nothing to do."""

    @abstractmethod
    def choose(self, logits: Tensor, positions: Sequence[int]) -> Tensor:
        """The token that follows each row.

        Args:
            logits: Shape ``(rows, vocab_size)``.
            positions: Absolute position of the token that each row predicts.

        Returns:
            Token ids, ``(rows,)``.
        """

    def judge(self, tree: DraftTree, tokens: Tensor, logits: Tensor, position: int) -> Verdict:
        """Accept a path of a verified tree: follow the chosen token while it is among the children.

        Args:
            tree: The topology.
            tokens: Token of each row, ``(nodes + 1,)``, root first.
            logits: Verified logits of each row, ``(nodes + 1, vocab_size)``.
            position: Absolute position of the root.

        Returns:
            The accepted rows and the next root.
        """
        chosen = self.choose(logits, (position + 1 + tree.depths).tolist()).tolist()
        drafted = tokens.tolist()
        child = {(int(parent), drafted[row]): row for row, parent in enumerate(tree.parents) if row}
        rows = [0]
        while (row := child.get((rows[-1], chosen[rows[-1]]))) is not None:
            rows.append(row)
        return Verdict(rows, [chosen[row] for row in rows], chosen[0] == drafted[1] if len(tree) else None)


class GreedyRule(AcceptanceRule):
    """The base's most likely token; the text equals greedy autoregressive decoding."""

    name = "greedy"
    lossless = True

    def choose(self, logits: Tensor, positions: Sequence[int]) -> Tensor:
        """The arg max of each row."""
        return _arg_max(logits)


class SampleRule(AcceptanceRule):
    """Sampling with noise fixed by (seed, position); equals autoregressive sampling token for token.

    Args:
        temperature: T > 0.

    Raises:
        ValueError: When the temperature is not positive.
    """

    name = "sample"
    lossless = True

    def __init__(self, temperature: float = 1.0) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature must be > 0, got {temperature}; use the rule 'greedy' for T = 0")
        self.temperature = temperature
        self._seed = 0
        self._noise: dict[int, Tensor] = {}

    def start(self, seed: int) -> None:
        """Key the noise of a new text."""
        self._seed = seed
        self._noise = {}

    def choose(self, logits: Tensor, positions: Sequence[int]) -> Tensor:
        """The arg max of logits / T + Gumbel noise of the position."""
        first = min(positions)
        # Positions before the root never come again; those ahead do, if a path is rejected.
        self._noise = {p: noise for p, noise in self._noise.items() if p >= first}
        for position in set(positions) - set(self._noise):
            noise = torch.from_numpy(gumbel_noise(self._seed, position, logits.shape[-1]))
            self._noise[position] = noise.to(logits.device)
        noise = torch.stack([self._noise[p] for p in range(first, max(positions) + 1)])
        index = torch.tensor(positions, device=logits.device) - first
        return _arg_max(logits.float() / self.temperature + noise[index])


class TypicalRule(AcceptanceRule):
    """Typical acceptance of Medusa and Hydra (arXiv 2401.10774, section 2.3.1); not lossless.

    A draft stands when p_T > min(ε, α · exp(-H)), p_T its probability after its parent at temperature T and
    H = -Σ p · ln(p + 1e-5) the entropy there. The longest path wins, ties by likelihood; the next root is the
    arg max.

    Args:
        temperature: T > 0.
        epsilon: ε, the threshold where the base is sure.
        alpha: α, the factor where it is not.

    Raises:
        ValueError: When a parameter is out of range.
    """

    name = "typical"
    lossless = False

    def __init__(self, temperature: float = 0.7, epsilon: float = 0.09, alpha: float = 0.3) -> None:
        if not temperature > 0 or not 0 < epsilon <= 1 or not 0 < alpha <= 1:
            raise ValueError(
                f"typical acceptance needs temperature > 0 and epsilon, alpha in (0, 1]; got {temperature}, "
                f"{epsilon}, {alpha}"
            )
        self.temperature, self.epsilon, self.alpha = temperature, epsilon, alpha

    def choose(self, logits: Tensor, positions: Sequence[int]) -> Tensor:
        """The arg max of each row."""
        return _arg_max(logits)

    def typical(self, logits: Tensor, place: Tensor, drafts: Tensor) -> tuple[Tensor, Tensor]:
        """Whether drafts are typical behind their parents, and their log-likelihoods there.

        Args:
            logits: Verified logits of the parents, ``(parents, vocab_size)``.
            place: Row of each draft's parent in them, ``(drafts,)``.
            drafts: Token ids, ``(drafts,)``.
        """
        log_p = torch.log_softmax(logits.float() / self.temperature, -1)
        p = log_p.exp()
        entropy = -(p * (p + _ENTROPY_EPSILON).log()).sum(-1)
        threshold = (self.alpha * (-entropy).exp()).clamp_max(self.epsilon)
        draft_log_p = log_p[place, drafts]
        return draft_log_p.exp() > threshold[place], draft_log_p

    def judge(self, tree: DraftTree, tokens: Tensor, logits: Tensor, position: int) -> Verdict:
        """Accept the longest path whose every draft is typical."""
        if not len(tree):
            return Verdict([0], self.choose(logits, [position + 1]).tolist(), None)
        parents = torch.from_numpy(tree.parents).to(logits.device)
        inner, place = parents[1:].unique(return_inverse=True)
        typical, draft_log_p = self.typical(logits[inner], place, tokens[1:])
        stands, log_likelihood = typical.tolist(), draft_log_p.tolist()
        best, reached = (0, 0.0, 0), {0: 0.0}
        for row in range(1, len(tree) + 1):
            parent = int(tree.parents[row])
            if parent in reached and stands[row - 1]:
                reached[row] = reached[parent] + log_likelihood[row - 1]
                best = max(best, (int(tree.depths[row]), reached[row], row), key=lambda b: b[:2])
        rows = [best[2]]
        while rows[0]:
            rows.insert(0, int(tree.parents[rows[0]]))
        return Verdict(rows, self.choose(logits[rows], []).tolist(), stands[0])


def _arg_max(logits: Tensor) -> Tensor:
    # On a CPU argmax is not vectorised and the maximum is: find its block, then look there, in a fifth of
    # the time.
    if logits.device.type == "cpu" and logits.shape[-1] % _BLOCK == 0:
        blocks = logits.view(len(logits), -1, _BLOCK)
        block = blocks.amax(-1).argmax(-1)
        return block * _BLOCK + blocks[torch.arange(len(logits)), block].argmax(-1)
    return logits.max(-1).indices


RULES: dict[str, type[AcceptanceRule]] = {rule.name: rule for rule in (GreedyRule, SampleRule, TypicalRule)}


def make_acceptance(spec: str) -> AcceptanceRule:
    """An acceptance rule from a spec such as ``greedy``, ``sample:temperature=0.7`` or ``typical:alpha=0.3``.

    Raises:
        ValueError: When the name or an option is unknown, or a value is out of range.
    """
    parsed = parse_spec(spec)
    if parsed.name not in RULES or parsed.argument or parsed.file:
        raise ValueError(
            f"acceptance rule {spec!r} is unknown; expected {', '.join(RULES)} (with key=value options)"
        )
    try:
        return RULES[parsed.name](**parsed.options)
    except TypeError as error:
        raise ValueError(f"acceptance rule {spec!r}: {error}") from error
