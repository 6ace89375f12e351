"""Train draft heads by distillation from the frozen base model."""

from __future__ import annotations

import dataclasses
import json
import random
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.checkpoint import save_heads
from entmtp_env.decoding.heads import DraftHeads, HeadArch, HeadsConfig
from entmtp_env.decoding.precision import choose_device, choose_dtype
from entmtp_env.models import load_pretrained
from entmtp_env.progress import progress_bar
from train.distill_loss import distill_loss
from train.hidden_states import HiddenStates, hidden_states
from train.teacher_forcing import Batch, head_rows, make_batch
from train.texts import Text, frequent_tokens, read_texts, texts_fingerprint


@dataclass(frozen=True)
class HeadsTraining:
    """Train draft heads by distillation from the frozen base model.

    Attributes:
        texts: JSON lines of token ids written by the base model (.jsonl or .jsonl.gz).
        out: Checkpoint to write (.safetensors).
        model: Base model: a known name, a path or a Hugging Face repository.
        arch: Architecture of the heads.
        depth: Number of heads.
        num_layers: Residual blocks per head.
        draft_vocab_size: Most frequent tokens that can be drafted.
        max_texts: Use that many texts, drawn at random; 0 = all.
        held_out: Texts kept aside for evaluation.
        epochs: Passes over the texts.
        batch_tokens: Reply tokens per step.
        learning_rate: Peak of the cosine schedule.
        warmup_steps: Steps of linear warm-up.
        weight_decay: AdamW's.
        hard_weight: Weight of the written token against the base's distribution.
        depth_decay: The loss of depth d counts depth_decay ** (d - 1).
        clip_norm: Largest gradient norm.
        evaluate_every: Steps between evaluations.
        cache: Folder for the base's hidden states (2 · hidden size bytes a token).
        seed: Seed of everything random.
        device: "auto", "cpu" or "cuda".
    """

    texts: Path
    out: Path
    model: str = "smollm2"
    arch: HeadArch = "hydra-prefix"
    depth: int = 4
    num_layers: int = 2
    draft_vocab_size: int = 16384
    max_texts: int = 0
    held_out: int = 64
    epochs: float = 4.0
    batch_tokens: int = 1024
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    weight_decay: float = 0.01
    hard_weight: float = 0.3
    depth_decay: float = 0.9
    clip_norm: float = 1.0
    evaluate_every: int = 250
    cache: Path = Path("runs/hidden")
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        """Refuse settings that no training can run with."""
        if min(self.held_out, self.batch_tokens, self.evaluate_every) < 1 or self.epochs <= 0:
            raise ValueError(
                "held_out, batch_tokens and evaluate_every must be at least 1, and epochs above 0"
            )
        if not 0 <= self.hard_weight <= 1:
            raise ValueError(f"hard_weight must be in [0, 1], got {self.hard_weight}")


def train_heads(config: HeadsTraining) -> None:
    """Train heads and write the checkpoint that was best on held-out texts.

    Raises:
        FileNotFoundError: When the texts or the base model are not there.
        ValueError: When the texts are unreadable, too few, or do not belong to the base model.
    """
    torch.manual_seed(config.seed)
    texts = read_texts(config.texts)
    random.Random(config.seed).shuffle(texts)
    texts = texts[: config.max_texts or None]
    if len(texts) <= config.held_out:
        raise ValueError(
            f"{len(texts)} texts with {config.held_out} held out leave none to train on; "
            "give more texts, raise max_texts, or lower held_out"
        )
    device = choose_device(config.device)
    dtype = choose_dtype("auto", device)
    pretrained = load_pretrained(config.model)
    backbone = Backbone(pretrained.model, dtype, device)
    states = hidden_states(backbone, pretrained.fingerprint, texts, config.cache)
    vocab, coverage = frequent_tokens(
        texts[config.held_out :], config.draft_vocab_size, backbone.config.vocab_size
    )
    print(f"draft vocabulary: {len(vocab)} tokens cover {coverage:.2%} of the replies", file=sys.stderr)

    heads_config = HeadsConfig.for_backbone(
        backbone, config.arch, len(vocab), config.depth, config.num_layers
    )
    heads = DraftHeads(heads_config, torch.tensor(vocab))
    initialise(heads, backbone)
    trainer = _Trainer(config, heads, backbone, texts, states)
    manifest: dict[str, object] = {
        "command": shlex.join([sys.executable.rsplit("/", 1)[-1], "-m", "train", *sys.argv[1:]]),
        "model": config.model,
        "model_fingerprint": pretrained.fingerprint,
        "texts_fingerprint": texts_fingerprint(texts),
        "draft_vocab_coverage": coverage,
        "seed": config.seed,
    }
    trainer.run(manifest)


def initialise(heads: DraftHeads, backbone: Backbone) -> None:
    """Start the heads where their outputs have the scale the base's LM head expects."""
    heads.to(backbone.device)
    with torch.no_grad():
        norms = list(heads.norms) + ([heads.prefix.final_norm] if heads.prefix is not None else [])
        for norm in norms:
            norm.get_parameter("weight").copy_(backbone.final_norm)


class _Trainer:
    def __init__(
        self,
        config: HeadsTraining,
        heads: DraftHeads,
        backbone: Backbone,
        texts: Sequence[Text],
        states: HiddenStates,
    ) -> None:
        self.config, self.heads, self.texts, self.states = config, heads, texts, states
        self.device, self.dtype = backbone.device, backbone.dtype
        self.lm_head = backbone.lm_head_weight[heads.vocab_ids]
        self.draft_index = torch.full((backbone.config.vocab_size,), -1, device=self.device)
        self.draft_index[heads.vocab_ids] = torch.arange(len(heads.vocab_ids), device=self.device)
        heads.attach(backbone)
        heads.float()
        self.held_out = range(config.held_out)
        self.train_set = range(config.held_out, len(texts))
        reply_tokens = sum(len(texts[i].reply) for i in self.train_set)
        self.steps = max(1, round(config.epochs * reply_tokens / config.batch_tokens))
        self.optimizer = torch.optim.AdamW(
            heads.parameters(), config.learning_rate, betas=(0.9, 0.98), weight_decay=config.weight_decay
        )
        warmup = min(config.warmup_steps, self.steps // 2)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            config.learning_rate,
            total_steps=self.steps,
            # OneCycleLR divides by the length of the warm-up less one.
            pct_start=warmup / self.steps if warmup > 1 else 0.0,
            cycle_momentum=False,
            final_div_factor=1e3,
        )
        self.best = float("inf")

    def run(self, manifest: dict[str, object]) -> None:
        start = time.monotonic()
        with progress_bar() as bar:
            task = bar.add_task(f"training {self.config.arch} heads", total=self.steps)
            for step, batch in enumerate(self._batches(), start=1):
                self._step(batch)
                bar.advance(task)
                if step % self.config.evaluate_every == 0 or step == self.steps:
                    losses, rank0 = self._evaluate()
                    total = sum(losses)
                    line = {
                        "step": step,
                        "seconds": round(time.monotonic() - start, 1),
                        "loss": [round(x, 4) for x in losses],
                        "rank0": [round(x, 4) for x in rank0],
                    }
                    bar.console.print(json.dumps(line), soft_wrap=True)
                    if total < self.best:
                        self.best = total
                        settings = {k: str(v) for k, v in dataclasses.asdict(self.config).items()}
                        save_heads(
                            self.heads, self.config.out, manifest={**manifest, **line, "settings": settings}
                        )
                if step == self.steps:
                    return

    def _step(self, batch: Batch) -> None:
        self.heads.train()
        self.optimizer.zero_grad(set_to_none=True)
        losses, _, _ = self._losses(batch)
        weights = self.config.depth_decay ** torch.arange(len(losses), device=self.device)
        (losses * weights).sum().backward()
        torch.nn.utils.clip_grad_norm_(self.heads.parameters(), self.config.clip_norm)
        self.optimizer.step()
        self.schedule.step()

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, rank-0 share and number of rows, per depth."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype is not torch.float32):
            rows = head_rows(self.heads, batch)
        losses, rank0 = distill_loss(
            rows.outputs,
            rows.targets,
            rows.teacher,
            self.draft_index[rows.tokens],
            self.lm_head,
            self.config.hard_weight,
        )
        return losses, rank0, torch.tensor([float(len(t)) for t in rows.targets], device=self.device)

    @torch.no_grad()
    def _evaluate(self) -> tuple[list[float], list[float]]:
        """Loss and rank-0 share per depth over the held-out texts."""
        self.heads.eval()
        sums = torch.zeros(3, self.heads.config.depth, device=self.device)
        for first in range(0, len(self.held_out), 8):
            losses, rank0, counts = self._losses(self._batch(list(self.held_out[first : first + 8])))
            sums += torch.stack((losses * counts, rank0 * counts, counts))
        losses, rank0 = sums[:2] / sums[2].clamp_min(1)
        return losses.tolist(), rank0.tolist()

    def _batch(self, indices: Sequence[int]) -> Batch:
        return make_batch([self.texts[i] for i in indices], [self.states[i] for i in indices], self.device)

    def _batches(self) -> Iterator[Batch]:
        """Endless batches of about ``batch_tokens`` reply tokens; texts of like length go together."""
        rng = random.Random(self.config.seed)
        while True:
            order = list(self.train_set)
            rng.shuffle(order)
            # Sorted within large random pools: little padding, yet different neighbours every epoch.
            pools = [order[i : i + 256] for i in range(0, len(order), 256)]
            groups: list[list[int]] = []
            for pool in pools:
                pool.sort(key=lambda i: len(self.texts[i].tokens))
                group: list[int] = []
                for index in pool:
                    group.append(index)
                    if sum(len(self.texts[i].reply) for i in group) >= self.config.batch_tokens:
                        groups.append(group)
                        group = []
                if group:
                    groups.append(group)
            rng.shuffle(groups)
            for group in groups:
                yield self._batch(group)
