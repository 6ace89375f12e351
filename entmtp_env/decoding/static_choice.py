"""How deep to draft and how many nodes to verify, decided on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from entmtp_env.decoding.certainty import certainty
from entmtp_env.decoding.static_buffers import StaticBuffers
from entmtp_env.decoding.static_nodes import UNKNOWN, StaticNodes


@dataclass(frozen=True, eq=False)
class StagedChoice:
    """The rule of the policy ``staged-threshold`` in numbers.

    A depth counts while the best path value of the depth before, for the first the base's top-1 probability,
    is at least the depth's threshold. Of the nodes that count those are verified that pay: the budget with
    the greatest ``1 + Σ path values - ρ · seconds of verifying it`` (Dinkelbach, 1967).

    Attributes:
        thresholds: One a depth, ``(D,)``.
        verify_seconds: Seconds of a step but its drafting, by budget and committed tokens (0, 1, ... up to
            the capacity), float64 ``(budgets, capacity + 1)``.
        draft_seconds: Seconds of drafting each depth behind those before it, by committed tokens, float64
            ``(D, capacity + 1)``.
        rate: ρ in tokens per second; ``None`` = what the steps of the text up to and with this one were
            expected to emit, over their seconds.
    """

    thresholds: tuple[float, ...]
    verify_seconds: npt.NDArray[np.float64]
    draft_seconds: npt.NDArray[np.float64]
    rate: float | None = None


class StaticChoice:
    """A :class:`StagedChoice` as tensor operations over fixed memory.

    Args:
        choice: The rule.
        nodes: The drafted nodes; how many to verify is written there.
        buffers: What steps read and write.
        capacity: KV rows.

    Raises:
        ValueError: When the rule is of other stages or a smaller capacity.
    """

    def __init__(
        self, choice: StagedChoice, nodes: StaticNodes, buffers: StaticBuffers, capacity: int
    ) -> None:
        stages, device = nodes.stages, nodes.values.device
        expected = stages.depth, (len(stages.budgets), capacity + 1), (stages.depth, capacity + 1)
        given = len(choice.thresholds), choice.verify_seconds.shape, choice.draft_seconds.shape
        if given != expected:
            raise ValueError(
                f"the stages {stages.name!r} need {expected[0]} thresholds and seconds of shapes "
                f"{expected[1]} and {expected[2]}, got {given[0]}, {given[1]} and {given[2]}"
            )
        self._choice, self._nodes, self._buffers = choice, nodes, buffers
        self._levels = [slice(*stages.shape.starts[d : d + 2]) for d in range(1, stages.depth + 1)]
        self._thresholds = torch.tensor(choice.thresholds, dtype=torch.float64, device=device)
        # A row is all that a decision needs.
        self._seconds = torch.from_numpy(choice.verify_seconds.T.copy()).to(device)
        drafting = np.concatenate((np.zeros((1, capacity + 1)), choice.draft_seconds.cumsum(axis=0)))
        self._drafting = torch.from_numpy(drafting.T.copy()).to(device)
        self._budgets = torch.tensor(stages.budgets, device=device)
        self._drafted = torch.tensor(stages.shape.starts[1:], device=device) - 1
        self._root_logits = torch.zeros_like(buffers.path_logits[0])
        # What the steps of this text were expected to emit, and the seconds they were to take.
        self._memory, self._after = torch.zeros(2, 2, dtype=torch.float64, device=device)

    @torch.inference_mode()
    def start(self) -> None:
        """Begin a text."""
        self._memory.zero_()
        self._after.zero_()

    def see(self, root_logits: torch.Tensor) -> None:
        """Begin a step, behind the one that was decided last.

        Args:
            root_logits: The base's logits of the root, ``(vocab_size,)``.
        """
        self._root_logits.copy_(root_logits)
        self._memory.copy_(self._after)

    def decide(self, depth: int, most: int) -> None:
        """Write into ``nodes.count`` how many nodes to verify.

        Args:
            depth: Drafted depths.
            most: Verify no larger budget.
        """
        n, choice = self._nodes, self._choice
        scores = [certainty(self._root_logits)[0]]
        # In float32, as they are observed.
        scores += [n.values[level].amax().float() for level in self._levels[: depth - 1]]
        clear = torch.stack(scores).double() >= self._thresholds[:depth]
        reached = clear.long().cumprod(0).sum(0, keepdim=True)
        n.values.masked_fill_(n.depths[:-1] > reached, UNKNOWN)
        expected = n.values[n.order()].clamp_min(0).cumsum(0)[self._budgets[1:] - 1]
        # As observed, too: in float32, at most one a depth.
        expected = expected.float().clamp_max(n.stages.depth).double()
        tokens = 1 + torch.cat((expected.new_zeros(1), expected))
        seconds = self._seconds[self._buffers.length][0]
        barred = (self._budgets > self._drafted[reached]) | (self._budgets > most)
        before = self._memory[1:] + self._drafting[self._buffers.length][0, reached]
        if choice.rate is None:
            rate = ((self._memory[:1] + tokens) / (before + seconds)).masked_fill(barred, 0).amax()
            gain = tokens - rate * seconds
        else:
            gain = tokens - choice.rate * seconds
        best = gain.masked_fill(barred, float("-inf")).argmax(0, keepdim=True)
        n.count.copy_(self._budgets[best])
        self._after[:1].copy_(self._memory[:1] + tokens[best])
        self._after[1:].copy_(before + seconds[best])
