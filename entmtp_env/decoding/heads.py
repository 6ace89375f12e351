"""Draft heads: Medusa, Hydra, and Hydra with a prefix layer, over a frozen base model.

A head of depth d predicts the token d places behind the root. Medusa heads (arXiv 2401.10774) see the
last hidden state only; Hydra heads (arXiv 2402.05109) also see the embeddings of the root and of the
tokens drafted before; the prefix layer of Hydra++ refines the hidden states by one decoder layer first.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.half_linear import HalfLinear
from entmtp_env.decoding.linear import PackedLinear, inference_linear, pack_for_inference
from entmtp_env.decoding.prefix_layer import PrefixLayer

HeadArch = Literal["medusa", "hydra", "hydra-prefix"]


@dataclass(frozen=True)
class HeadsConfig:
    """Architecture of a set of draft heads.

    Attributes:
        arch: ``"medusa"``, ``"hydra"`` or ``"hydra-prefix"``.
        depth: Number of heads, hence the deepest tree they can draft.
        hidden_size: Width of the base model.
        num_layers: Residual blocks per head; the first reduces a Hydra head's input to ``hidden_size``.
        draft_vocab_size: Number of tokens that can be drafted.
        deep_vocab_size: Heads of depth 2 and deeper draft from the first so many of them, the most frequent;
            0 = from all. Their LM head products dominate the cost of drafting, and rare tokens are seldom
            right there.
        num_heads: Query heads of the prefix layer.
        num_kv_heads: Key-value heads of the prefix layer.
        head_dim: Width of a head of the prefix layer.
        intermediate_size: Width of the prefix layer's MLP.
        rms_norm_eps: Epsilon of all norms.
        published: Built as the checkpoints that the authors of Medusa and Hydra released: each head has an LM
            head of its own, with bias and no norm before it, reads embeddings at their own scale, and
            applies one and the same block for all layers but the first.
    """

    arch: HeadArch
    depth: int
    hidden_size: int
    num_layers: int
    draft_vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    deep_vocab_size: int = 0
    # Not in the representation: it enters the fingerprints of heads from before there was a choice.
    published: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        """Check the values a file or a command line may bring."""
        if self.arch not in get_args(HeadArch):
            raise ValueError(
                f"head architecture {self.arch!r} is unknown; expected one of {get_args(HeadArch)}"
            )
        if self.depth < 1 or self.num_layers < 1 or self.draft_vocab_size < 1:
            raise ValueError("depth, num_layers and draft_vocab_size must be at least 1")
        if not 0 < self.rms_norm_eps < 1:
            raise ValueError(f"rms_norm_eps must be between 0 and 1, got {self.rms_norm_eps}")
        if not 0 <= self.deep_vocab_size <= self.draft_vocab_size:
            raise ValueError(
                f"deep_vocab_size must be in 0..{self.draft_vocab_size}, the draft vocabulary, got "
                f"{self.deep_vocab_size}"
            )

    def vocab_size(self, depth: int) -> int:
        """How many tokens head ``depth`` (1, 2, ...) drafts from."""
        return self.draft_vocab_size if depth == 1 else self.deep_vocab_size or self.draft_vocab_size

    @classmethod
    def for_backbone(
        cls,
        backbone: Backbone,
        arch: HeadArch,
        draft_vocab_size: int,
        depth: int = 4,
        num_layers: int = 2,
        deep_vocab_size: int = 0,
    ) -> HeadsConfig:
        """The configuration that fits ``backbone``: the prefix layer is shaped like one of its layers."""
        names = {field.name for field in dataclasses.fields(cls)}
        shared = {k: v for k, v in dataclasses.asdict(backbone.config).items() if k in names - {"num_layers"}}
        return cls(
            arch=arch,
            depth=depth,
            num_layers=num_layers,
            draft_vocab_size=draft_vocab_size,
            deep_vocab_size=deep_vocab_size,
            **shared,
        )


class ResidualBlock(nn.Module):
    """``y = res(x) + SiLU(linear(x))``; ``res`` is the identity where the width does not change."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)
        self.res = nn.Identity() if width_in == width_out else nn.Linear(width_in, width_out)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., width_in)`` to ``(..., width_out)``."""
        return self.res(x) + F.silu(self.linear(x))


class DraftHeads(nn.Module):
    """The heads of one base model; the LM head is tied to the base's rows of the draft vocabulary.

    ``config.published`` heads have LM heads of their own.

    Args:
        config: Architecture.
        vocab_ids: The base's token ids that can be drafted, shape ``(draft_vocab_size,)``, distinct; the
            most frequent first.

    Raises:
        ValueError: When ``vocab_ids`` has another length or repeats an id.
    """

    vocab_ids: Tensor

    def __init__(self, config: HeadsConfig, vocab_ids: Tensor) -> None:
        super().__init__()
        if vocab_ids.shape != (config.draft_vocab_size,) or vocab_ids.unique().numel() != vocab_ids.numel():
            raise ValueError(
                f"vocab_ids must be {config.draft_vocab_size} distinct ids, got {tuple(vocab_ids.shape)}"
            )
        self.config = config
        self.register_buffer("vocab_ids", vocab_ids.to(torch.int64), persistent=True)
        width = config.hidden_size
        depths, further = range(1, config.depth + 1), config.num_layers - 1
        distinct = min(further, 1) if config.published else further
        self.prefix = PrefixLayer(config) if config.arch == "hydra-prefix" else None
        self._uses = further if config.published else 1
        self.mlps = nn.ModuleList(
            nn.Sequential(
                ResidualBlock(self.inputs(depth) * width, width),
                *(ResidualBlock(width, width) for _ in range(distinct)),
            )
            for depth in depths
        )
        self.norms, self.lm_heads = nn.ModuleList(), nn.ModuleList()
        if config.published:
            self.lm_heads.extend(nn.Linear(width, config.vocab_size(depth)) for depth in depths)
        else:
            self.norms.extend(nn.RMSNorm(width, config.rms_norm_eps) for _ in depths)
        self._embedding: Tensor | None = None
        self._scale: Tensor | None = None
        self._tied_lm_heads: dict[int, partial[Tensor] | PackedLinear | HalfLinear] = {}
        self._weight_dtype: torch.dtype | None = None
        self.packed = False

    @property
    def sequential(self) -> bool:
        """Whether a head sees the tokens drafted before it (Hydra) or not (Medusa)."""
        return self.config.arch != "medusa"

    def inputs(self, depth: int) -> int:
        """How many vectors of ``hidden_size`` head ``depth`` (1, 2, ...) reads."""
        return depth + 1 if self.sequential else 1

    def attach(self, backbone: Backbone) -> None:
        """Tie the heads to the embeddings and LM head of ``backbone``, on its device and in its dtype.

        Raises:
            ValueError: When the heads were made for a model of other shapes.
        """
        c = backbone.config
        if self.config.hidden_size != c.hidden_size or int(self.vocab_ids.max()) >= c.vocab_size:
            raise ValueError(
                f"these draft heads are for hidden size {self.config.hidden_size} and token ids up to "
                f"{int(self.vocab_ids.max())}; the base model has {c.hidden_size} and {c.vocab_size} tokens. "
                "Use the heads trained for this model (python -m train heads)"
            )
        if self.prefix is not None and self.config.head_dim != c.head_dim:
            raise ValueError(
                f"the prefix layer of these draft heads has attention heads of width {self.config.head_dim}, "
                f"the base model {c.head_dim}; use the heads trained for this model (python -m train heads)"
            )
        self.to(backbone.device, backbone.dtype)
        self._embedding, self._weight_dtype = backbone.embedding, backbone.weight_dtype
        if not self.config.published:
            self._scale = embedding_scale(backbone)
            sizes = {self.config.vocab_size(depth) for depth in range(1, self.config.depth + 1)}
            self._tied_lm_heads = {
                n: partial(F.linear, weight=backbone.lm_head_weight[self.vocab_ids[:n]]) for n in sizes
            }
        if self.prefix is not None:
            self.prefix.attach(backbone)

    def pack(self) -> None:
        """Lay the weights out for inference; the heads cannot be trained or saved afterwards."""
        self.requires_grad_(False).eval()
        pack_for_inference(self, self._weight_dtype)
        for size, tied in self._tied_lm_heads.items():
            if isinstance(tied, partial):
                self._tied_lm_heads[size] = inference_linear(
                    tied.keywords["weight"], dtype=self._weight_dtype
                )
        self.packed = True

    def embed(self, tokens: Tensor) -> Tensor:
        """Head inputs ``(..., hidden_size)`` of base token ids of any shape."""
        assert self._embedding is not None, "attach the heads to a backbone first"
        embedded = self._embedding[tokens]
        return embedded if self._scale is None else embedded * self._scale

    def output(self, depth: int, inputs: Tensor) -> Tensor:
        """What head ``depth`` gives to the LM head.

        Args:
            depth: 1, 2, ..., as many as there are heads.
            inputs: Prefix state followed by the embeddings of the root and of the path so far,
                concatenated: shape ``(..., inputs(depth) * hidden_size)``.

        Returns:
            Shape ``(..., hidden_size)``.
        """
        first, *further = self.mlps[depth - 1].children()
        x = first(inputs)
        for block in further * self._uses:
            x = block(x)
        if self.config.published:
            return x
        norm = self.norms[depth - 1]
        # Autocast makes the MLP's output narrower than the norm's weight; no fused kernel takes both.
        return norm(x.to(norm.weight.dtype))

    def logits(self, depth: int, inputs: Tensor) -> Tensor:
        """Logits ``(..., config.vocab_size(depth))``; arguments as in :meth:`output`."""
        output = self.output(depth, inputs)
        if self.config.published:
            return self.lm_heads[depth - 1](output)
        assert self._tied_lm_heads, "attach the heads to a backbone first"
        return self._tied_lm_heads[self.config.vocab_size(depth)](output)


def embedding_scale(backbone: Backbone) -> Tensor:
    """What brings the base's embeddings to the scale of its hidden states, a scalar.

    Heads read both side by side; token embeddings are often an order of magnitude smaller.
    """
    hidden_rms = backbone.final_norm.weight.float().pow(2).mean().sqrt()
    embedding_rms = backbone.embedding.float().pow(2).mean().sqrt()
    return (hidden_rms / embedding_rms).to(backbone.dtype)
