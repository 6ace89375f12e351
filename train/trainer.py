"""The training loop of draft heads: steps, evaluation, the best checkpoint, and resuming."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.progress import Progress
from torch import Tensor

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.checkpoint import save_heads
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.files import atomic_path
from entmtp_env.progress import progress_bar
from train.batches import epochs
from train.curve import CurveLog, CurvePoint
from train.distill_loss import distill_loss
from train.hidden_states import HiddenStates
from train.optimizer import make_optimizer, make_schedule
from train.sampled_softmax import sample_tokens
from train.teacher_forcing import Batch, head_rows, make_batch
from train.texts import Text, first_own_token
from train.weight_average import WeightAverage

if TYPE_CHECKING:
    from train.heads import HeadsTraining

_EVALUATION_TEXTS = 8


class Trainer:
    """Trains heads on texts and keeps the checkpoint that is best on the held-out ones.

    Args:
        config: Settings.
        heads: Heads attached to ``backbone``.
        backbone: The frozen base model.
        texts: Training texts; the first ``config.held_out`` are held out.
        states: Hidden states of the texts.
        fingerprint: Identifies the training; a saved state of another one is not resumed.
    """

    def __init__(
        self,
        config: HeadsTraining,
        heads: DraftHeads,
        backbone: Backbone,
        texts: Sequence[Text],
        states: HiddenStates,
        fingerprint: str,
    ) -> None:
        self.config, self.heads, self.texts, self.states = config, heads, texts, states
        self.fingerprint, self.state_path = fingerprint, config.state_path
        self.device, self.dtype = backbone.device, backbone.dtype
        # bfloat16 where the device multiplies it faster; float16 would need its losses scaled.
        self.autocast = self.dtype is torch.bfloat16
        self.lm_head = backbone.lm_head_weight[heads.vocab_ids]
        self.draft_index = torch.full((backbone.config.vocab_size,), -1, device=self.device)
        self.draft_index[heads.vocab_ids] = torch.arange(len(heads.vocab_ids), device=self.device)
        heads.float()
        self.train_set = range(config.held_out, len(texts))
        self.first_root = first_own_token(texts) if config.learn_prompts else None
        self.steps = max(1, round(config.epochs * len(next(self._epochs()))))
        self.optimizer = make_optimizer(config, heads)
        self.schedule = make_schedule(config, self.optimizer, self.steps)
        self.average = WeightAverage(heads, config.average_decay)
        self.curve: list[CurvePoint] = []
        self.step = 0
        self.seconds = 0.0

    def run(self, manifest: dict[str, Any]) -> None:
        """Train to the end, from the last saved state when there is one.

        Args:
            manifest: What makes the heads; in the checkpoint, the learning curve is added.

        Raises:
            ValueError: When the saved state is damaged or of another training.
            FloatingPointError: When a gradient or a loss on held-out texts is not finite.
        """
        if state := load_state(self.state_path):
            self._restore(state)
        log = CurveLog(self.config.folder, self.step)
        with progress_bar() as bar, contextlib.closing(log):
            task = bar.add_task(f"training {self.config.arch} heads", total=self.steps, completed=self.step)
            if self.step:
                _print(bar, f"going on at step {self.step} from {self.state_path}")
            for batch in self._batches():
                rate, begin = self.optimizer.param_groups[0]["lr"], time.perf_counter()
                losses, norm = self._train_step(batch)
                self.step += 1
                elapsed = time.perf_counter() - begin
                self.seconds += elapsed
                log.training(
                    self.step,
                    losses,
                    gradient_norm=norm,
                    learning_rate=rate,
                    tokens_per_second=int(batch.roots.sum()) / elapsed,
                )
                bar.advance(task)
                if self.step % self.config.evaluate_every == 0 or self.step == self.steps:
                    point = self._evaluate()
                    _print(bar, json.dumps(asdict(point)))
                    log.held_out(point)
                    self._keep(point, manifest)
        self.state_path.unlink()

    def _epochs(self) -> Iterator[list[list[int]]]:
        return epochs(self.texts, self.train_set, self.config.batch_tokens, self.config.seed)

    def _batches(self) -> Iterator[Batch]:
        """The batches that are left."""
        order = itertools.chain.from_iterable(self._epochs())
        for indices in itertools.islice(order, self.step, self.steps):
            yield self._batch(indices, self.first_root)

    def _batch(self, indices: Sequence[int], first_root: int | None = None) -> Batch:
        texts, states = [self.texts[i] for i in indices], [self.states[i] for i in indices]
        return make_batch(texts, states, self.device, first_root)

    def _train_step(self, batch: Batch) -> tuple[list[float], float]:
        """Losses per depth, and the gradient norm before clipping."""
        self.heads.train()
        self.optimizer.zero_grad(set_to_none=True)
        losses, _, _ = self._losses(batch)
        weights = self.config.depth_decay ** torch.arange(len(losses), device=self.device)
        (losses * weights).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(self.heads.parameters(), self.config.clip_norm)
        self.optimizer.step()
        self.schedule.step()
        self.average.update()
        _check_finite(f"gradient of step {self.step + 1}", float(norm))
        return losses.tolist(), float(norm)

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, rank-0 share and number of rows, per depth."""
        training = self.heads.training
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            rows = head_rows(
                self.heads,
                batch,
                dropout=self.config.dropout if training else 0.0,
                noise=self.config.hidden_noise if training else 0.0,
            )
        labels = self.draft_index[rows.tokens].where(rows.tokens >= 0, -1)
        lm_head, log_weight = self.lm_head, None
        if training and 0 < self.config.softmax_tokens < len(lm_head):
            sample = sample_tokens(labels, len(lm_head), self.config.softmax_tokens)
            labels, lm_head, log_weight = sample.labels, lm_head[sample.ids], sample.log_weight
        losses, rank0 = distill_loss(
            rows.outputs, rows.targets, rows.teacher, labels, lm_head, self.config.hard_weight, log_weight
        )
        return losses, rank0, torch.tensor([float(len(t)) for t in rows.targets], device=self.device)

    @torch.no_grad()
    def _evaluate(self) -> CurvePoint:
        """The averaged weights on the held-out texts."""
        self.heads.eval()
        sums = torch.zeros(3, self.heads.config.depth, device=self.device)
        with self.average.applied():
            for first in range(0, self.config.held_out, _EVALUATION_TEXTS):
                indices = range(first, min(first + _EVALUATION_TEXTS, self.config.held_out))
                losses, rank0, counts = self._losses(self._batch(indices))
                sums += torch.stack((losses * counts, rank0 * counts, counts))
        losses, rank0 = (sums[:2] / sums[2].clamp_min(1)).tolist()
        _check_finite(f"held-out loss after step {self.step}", sum(losses))
        return CurvePoint(
            self.step, round(self.seconds, 1), [round(x, 4) for x in losses], [round(x, 4) for x in rank0]
        )

    def _keep(self, point: CurvePoint, manifest: dict[str, Any]) -> None:
        """Save the heads if they are the best so far, and the state."""
        best = all(sum(point.loss) < sum(earlier.loss) for earlier in self.curve)
        self.curve.append(point)
        if best or not self.config.out.exists():
            record = {**manifest, "held_out": asdict(point), "curve": [asdict(p) for p in self.curve]}
            with self.average.applied():
                save_heads(self.heads, self.config.out, manifest=record)
        state = {
            "fingerprint": self.fingerprint,
            "dtype": str(self.dtype).removeprefix("torch."),
            "step": self.step,
            "seconds": self.seconds,
            "curve": [asdict(p) for p in self.curve],
            "heads": self.heads.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": self._random_states(),
        }
        with atomic_path(self.state_path) as temporary, temporary.open("wb") as file:
            torch.save(state, file)

    def _restore(self, state: dict[str, Any]) -> None:
        with _named_errors(self.state_path):
            if state["fingerprint"] != self.fingerprint:
                raise ValueError("it is of another training (settings, texts, base model, device or dtype)")
            self.step, self.seconds = state["step"], state["seconds"]
            self.curve = [CurvePoint(**point) for point in state["curve"]]
            self.heads.load_state_dict(state["heads"])
            self.average.load_state_dict(state["average"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
            torch.set_rng_state(state["random"][0])
            for cuda in state["random"][1:]:
                torch.cuda.set_rng_state(cuda, self.device)

    def _random_states(self) -> list[Tensor]:
        """Of the CPU, and of the GPU where that is the device."""
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        return [torch.get_rng_state(), *cuda]


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise FloatingPointError(
            f"the {name} is {value}: lower learning_rate, or use another dtype; if neither helps, delete the "
            "cache of hidden states"
        )


def load_state(path: Path) -> dict[str, Any]:
    """What an interrupted training left at ``path``; empty when there is nothing.

    Raises:
        ValueError: When the file is damaged.
    """
    if not path.is_file():
        return {}
    with _named_errors(path):
        return dict(torch.load(path, map_location="cpu", weights_only=True))


@contextlib.contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    # A damaged file can raise almost anything.
    except Exception as error:
        reason, *_ = str(error).splitlines() or [repr(error)]
        raise ValueError(
            f"cannot go on from {path}: {reason}; delete it to start anew, or give another out"
        ) from error


def _print(bar: Progress, text: str) -> None:
    bar.console.print(text, soft_wrap=True, highlight=False, markup=False)
