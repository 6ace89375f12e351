"""Train draft heads by distillation from the frozen base model."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.heads import DraftHeads, HeadArch, HeadsConfig
from entmtp_env.decoding.precision import choose_device, choose_dtype
from entmtp_env.engine import heads_path
from entmtp_env.files import refuse_existing
from entmtp_env.models import load_pretrained
from entmtp_env.provenance import describe_run
from train.hidden_states import hidden_states
from train.initialise import initialise
from train.texts import Text, frequent_tokens, read_texts, texts_fingerprint
from train.trainer import Trainer, load_state

_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (
        "depth num_layers draft_vocab_size held_out batch_tokens evaluate_every",
        lambda x: x >= 1,
        "at least 1",
    ),
    (
        "deep_vocab_size max_texts warmup_steps weight_decay hidden_noise softmax_tokens",
        lambda x: x >= 0,
        "at least 0",
    ),
    ("epochs learning_rate depth_decay clip_norm", lambda x: x > 0, "above 0"),
    ("dropout average_decay", lambda x: 0 <= x < 1, "in [0, 1)"),
    ("hard_weight", lambda x: 0 <= x <= 1, "in [0, 1]"),
)


@dataclass(frozen=True)
class HeadsTraining:
    """Train draft heads by distillation from the frozen base model.

    Run the same command again after an interruption: it goes on from the last evaluation.

    Attributes:
        texts: JSON lines of token ids written by the base model (.jsonl or .jsonl.gz), see "train distill".
        out: Checkpoint to write (.safetensors); logs and the state to resume from go into <out>.training/.
        model: Base model: a known name, a path or a Hugging Face repository.
        arch: Architecture of the heads.
        depth: Number of heads.
        num_layers: Residual blocks per head.
        init: Heads of the same architecture to start from, whatever their draft vocabulary: "auto", "medusa"
            (both ship) or a checkpoint; by default a random start.
        prefix_from_base: Start the prefix layer as the last layer of the base model.
        draft_vocab_size: Most frequent tokens that can be drafted.
        deep_vocab_size: Of these, the most frequent that heads of depth 2 and deeper draft from; 0 = all.
        max_texts: Use that many texts, drawn at random; 0 = all.
        held_out: Texts kept aside for evaluation; no text that is learned from shares a prompt with them.
        learn_prompts: Learn the base's distribution over the prompts' tokens, too.
        epochs: Passes over the texts.
        batch_tokens: Reply tokens per step.
        learning_rate: Peak of the cosine schedule.
        warmup_steps: Steps of linear warm-up.
        weight_decay: Decoupled weight decay.
        dropout: Share of the heads' inputs that is dropped.
        hidden_noise: Gaussian noise on the base's hidden states, in units of their root mean square.
        hard_weight: Weight of the written token against the base's distribution.
        depth_decay: The loss of depth d counts depth_decay ** (d - 1).
        softmax_tokens: Draft tokens in a step's loss: its targets, the most frequent ones, and others drawn
            at random that stand for the rest; 0 = all.
        clip_norm: Largest gradient norm.
        average_decay: Decay of the moving average of the weights that is evaluated and kept; 0 = no average.
        evaluate_every: Steps between evaluations.
        cache: Folder for the base's hidden states (2 · hidden size bytes a token).
        cache_gigabytes: Largest size of a file there.
        seed: Seed of everything random.
        device: "auto", "cpu" or "cuda".
        dtype: Element type of the base and of training's products, "auto" for the fastest.
        overwrite: Train anew when the checkpoint is there and no interrupted training to go on with.
    """

    texts: tuple[Path, ...]
    out: Path
    model: str = "smollm2"
    arch: HeadArch = "hydra-prefix"
    depth: int = 4
    num_layers: int = 2
    init: str | None = None
    prefix_from_base: bool = False
    draft_vocab_size: int = 16384
    deep_vocab_size: int = 0
    max_texts: int = 0
    held_out: int = 64
    learn_prompts: bool = False
    epochs: float = 4.0
    batch_tokens: int = 1024
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    weight_decay: float = 0.01
    dropout: float = 0.0
    hidden_noise: float = 0.0
    hard_weight: float = 0.3
    depth_decay: float = 0.9
    softmax_tokens: int = 0
    clip_norm: float = 1.0
    average_decay: float = 0.0
    evaluate_every: int = 250
    cache: Path = Path("runs/hidden")
    cache_gigabytes: float = 16.0
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that no training can run with."""
        for names, valid, expected in _RANGES:
            for name in names.split():
                if not valid(getattr(self, name)):
                    raise ValueError(f"{name} must be {expected}, got {getattr(self, name)}")
        if self.prefix_from_base and (self.arch != "hydra-prefix" or self.init is not None):
            raise ValueError("prefix_from_base needs the architecture hydra-prefix, and no init")

    @property
    def folder(self) -> Path:
        """Where logs and the state to resume from go."""
        return self.out.with_name(f"{self.out.name}.training")

    @property
    def state_path(self) -> Path:
        """The state to resume from."""
        return self.folder / "state.pt"


def train_heads(config: HeadsTraining) -> None:
    """Train heads and write the checkpoint that was best on held-out texts.

    Raises:
        FileExistsError: When the checkpoint is there, and no interrupted training to go on with.
        FileNotFoundError: When the texts, the base model or the checkpoint to start from are not there.
        ValueError: When the texts are unreadable, too few, or do not belong to the base model, the checkpoint
            to start from has another architecture, or an interrupted training cannot be gone on with.
    """
    refuse_existing(config.out, overwrite=config.overwrite or config.state_path.is_file())
    torch.manual_seed(config.seed)
    texts = _texts(config)
    checkpoint = None if config.init is None else heads_path(config.model, config.init)
    device = choose_device(config.device)
    # The fastest is measured, and may be another one today.
    begun = load_state(config.state_path).get("dtype", "auto")
    dtype = choose_dtype(begun if config.dtype == "auto" else config.dtype, device)
    pretrained = load_pretrained(config.model)
    backbone = Backbone(pretrained.model, dtype, device)
    vocab, coverage = frequent_tokens(
        texts[config.held_out :], config.draft_vocab_size, backbone.config.vocab_size
    )
    print(f"draft vocabulary: {len(vocab)} tokens cover {coverage:.2%} of the replies", file=sys.stderr)
    heads_config = HeadsConfig.for_backbone(
        backbone,
        config.arch,
        len(vocab),
        config.depth,
        config.num_layers,
        min(config.deep_vocab_size, len(vocab)),
    )
    heads = DraftHeads(heads_config, torch.tensor(vocab))
    origin = initialise(heads, backbone, pretrained.model, checkpoint, config.prefix_from_base)
    # The other copy of the weights need not stay.
    pretrained = replace(pretrained, model=None)
    states = hidden_states(backbone, pretrained.fingerprint, texts, config.cache, config.cache_gigabytes)
    all_texts = texts_fingerprint(texts)
    fingerprint = run_fingerprint(config, all_texts, pretrained.fingerprint, backbone)
    trainer = Trainer(config, heads, backbone, texts, states, fingerprint)
    # The heads keep what they need of it, and the rest of the memory is theirs.
    del backbone
    trainer.run(
        {
            **describe_run(),
            "model": config.model,
            "model_fingerprint": pretrained.fingerprint,
            "texts_fingerprint": all_texts,
            "draft_vocab_coverage": coverage,
            "seed": config.seed,
            "settings": json.loads(json.dumps(asdict(config), default=str)),
            "initialised_from": origin,
        }
    )


def _texts(config: HeadsTraining) -> list[Text]:
    """The texts, shuffled; those held out come first, and others of their prompts are left out."""
    texts = [text for path in config.texts for text in read_texts(path)]
    random.Random(config.seed).shuffle(texts)
    texts = texts[: config.max_texts or None]
    by_prompt: dict[tuple[int, ...], list[Text]] = {}
    for text in texts:
        by_prompt.setdefault(text.prompt, []).append(text)
    # Prompt by prompt, so that as few as can be are left out.
    held_out = list(itertools.chain.from_iterable(by_prompt.values()))[: config.held_out]
    prompts = {text.prompt for text in held_out}
    training = [text for text in texts if text.prompt not in prompts]
    if not training:
        raise ValueError(
            f"{len(texts)} texts with {config.held_out} held out leave none of other prompts to train on; "
            "give more texts, raise max_texts, or lower held_out"
        )
    return held_out + training


def run_fingerprint(config: HeadsTraining, all_texts: str, model_fingerprint: str, backbone: Backbone) -> str:
    """Hash of all that a training depends on, so that no other one is resumed by mistake."""
    # Places may change; what the rest stands for follows.
    left_out = {"texts", "out", "cache", "cache_gigabytes", "model", "device", "dtype", "overwrite"}
    settings = {name: str(value) for name, value in asdict(config).items() if name not in left_out}
    kind = f"{backbone.device.type} {backbone.dtype}"
    described = f"{sorted(settings.items())} {all_texts} {model_fingerprint} {kind}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]
