import dataclasses
import gc
import hashlib
import json
import math
import weakref
from collections import Counter

import pytest
import torch

import train.heads
from entmtp_env.decoding import Backbone, TreeDecoder, load_heads
from entmtp_env.decoding.checkpoint import read_manifest
from entmtp_env.models import load_pretrained
from entmtp_env.trees import DraftTree
from tests.tiny import VOCAB, tiny_heads
from tests.train.conftest import HELD_OUT, TEXTS
from tests.train.texts import random_texts
from train.heads import _texts, train_heads
from train.hidden_states import hidden_states
from train.initialise import initialise
from train.texts import read_texts
from train.trainer import Trainer


def reports(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def tau(backbone, heads):
    """Tokens per step on prompts that no training text has."""
    heads.attach(backbone)
    heads.eval()
    decoder = TreeDecoder(backbone, heads, capacity=128)
    tokens = steps = 0
    for prompt in random_texts([(6, 1)] * 8, seed=1):
        decoder.start(list(prompt.prompt), max_new_tokens=20)
        while not decoder.finish_reason:
            tokens += len(decoder.step(DraftTree.chain(3)).tokens)
            steps += 1
    return tokens / steps


@pytest.mark.parametrize(("arch", "gain"), [("medusa", 1.1), ("hydra", 1.3), ("hydra-prefix", 1.3)])
def test_training_from_configuration_alone(config, written, capsys, arch, gain):
    config = dataclasses.replace(config, arch=arch)
    train_heads(config)
    lines = reports(capsys.readouterr().err)
    losses = [sum(line["loss"]) for line in lines]
    assert min(losses) < 0.8 * losses[0]

    heads = load_heads(config.out)
    assert (heads.config.arch, heads.config.depth, len(heads.vocab_ids)) == (arch, 3, VOCAB - 2)
    manifest = read_manifest(config.out)
    pretrained = load_pretrained(config.model)
    assert manifest["model_fingerprint"] == pretrained.fingerprint
    assert manifest["held_out"] == lines[losses.index(min(losses))]
    assert manifest["curve"] == lines[: losses.index(min(losses)) + 1]
    assert manifest["settings"]["epochs"] == 10
    assert manifest["initialised_from"] is None
    backbone = written[1]
    untrained = tiny_heads(backbone, arch, depth=3, pack=False)
    initialise(untrained, backbone, pretrained.model)
    assert tau(backbone, heads) > gain * tau(backbone, untrained)


@pytest.mark.parametrize("arch", ["medusa", "hydra-prefix"])
def test_memory_that_training_does_not_need_is_given_back(config, monkeypatch, arch):
    """The model as transformers loaded it before the hidden states, the layers before the training."""
    alive, seen = {}, []

    def watched(name, kind):
        def make(*args):
            made = kind(*args)
            alive[name] = weakref.ref(made if name == "layers" else made.model)
            return made

        return make

    def living():
        gc.collect()
        return [name for name, reference in alive.items() if reference() is not None]

    def states(*args):
        seen.append(living())
        return hidden_states(*args)

    monkeypatch.setattr(train.heads, "load_pretrained", watched("model", load_pretrained))
    monkeypatch.setattr(train.heads, "Backbone", watched("layers", Backbone))
    monkeypatch.setattr(train.heads, "hidden_states", states)
    monkeypatch.setattr(Trainer, "run", lambda *_: seen.append(living()))
    train_heads(dataclasses.replace(config, arch=arch))
    assert seen == [["layers"], []]


def test_the_draft_vocabulary_is_frequent_in_the_training_texts(config):
    train_heads(dataclasses.replace(config, arch="medusa", epochs=0.1, draft_vocab_size=5, held_out=1))
    texts = [text for path in config.texts for text in read_texts(path)]
    assert len(texts) == TEXTS
    counts = Counter(token for text in texts for token in text.reply)
    kept = load_heads(config.out).vocab_ids.tolist()
    share = sum(counts[token] for token in kept) / counts.total()
    # The text held out is not counted.
    assert share == pytest.approx(sum(n for _, n in counts.most_common(5)) / counts.total(), abs=0.02)
    assert read_manifest(config.out)["draft_vocab_coverage"] == pytest.approx(share, abs=0.02)


def test_the_same_seed_trains_the_same_heads(config):
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        out = config.out.with_name(f"{name}.safetensors")
        train_heads(dataclasses.replace(config, out=out, seed=seed, epochs=0.5))
        weights.append(load_heads(out).mlps[0][0].linear.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_training_goes_on_from_a_checkpoint(config):
    train_heads(dataclasses.replace(config, epochs=4))
    first = config.out.rename(config.out.with_name("first.safetensors"))
    more = dataclasses.replace(
        config, init=str(first), draft_vocab_size=VOCAB, epochs=0.1, learning_rate=1e-6
    )
    train_heads(more)
    before, after = read_manifest(first), read_manifest(config.out)
    assert after["initialised_from"] == before
    # A step of almost no length: what the other vocabulary adds is small against what was learned.
    assert sum(after["held_out"]["loss"]) < 0.95 * sum(before["curve"][0]["loss"])


@pytest.mark.parametrize("siblings", [1, 3])
def test_no_prompt_is_both_learned_from_and_held_out(config, tmp_path, siblings):
    rows = [{"p": [1 + i], "g": [2, 3, j]} for i in range(20) for j in range(siblings)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = dataclasses.replace(config, texts=(path,), held_out=8)
    texts = _texts(config)
    held_out, training = ({text.prompt for text in part} for part in (texts[:8], texts[8:]))
    assert not held_out & training
    # Of the prompts held out, only the texts of the last may not all be used.
    assert len(held_out) == -(-8 // siblings)
    assert len(texts) == len(set(texts)) == len(rows) - (-8 % siblings)
    assert _texts(config) == texts != _texts(dataclasses.replace(config, seed=1))
    with pytest.raises(ValueError, match="leave none of other prompts to train on"):
        _texts(dataclasses.replace(config, held_out=len(rows) - siblings + 1))


@pytest.mark.parametrize("warmup", [0, 1, 2, 100])
@pytest.mark.parametrize("epochs", [0.01, 0.2])
def test_the_shortest_runs_write_a_checkpoint(config, warmup, epochs):
    train_heads(dataclasses.replace(config, epochs=epochs, warmup_steps=warmup, arch="medusa"))
    assert load_heads(config.out)


@pytest.mark.parametrize("softmax_tokens", [0, 4])
def test_replies_shorter_than_the_heads_are_deep_do_no_harm(config, tmp_path, softmax_tokens):
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(f'{{"p": [3, {i % 20}], "g": [5, 6]}}\n' for i in range(24)))
    train_heads(dataclasses.replace(config, texts=(texts,), epochs=2, softmax_tokens=softmax_tokens))
    assert all(torch.isfinite(p).all() for p in load_heads(config.out).parameters())


@pytest.mark.parametrize("arch", ["medusa", "hydra-prefix"])
def test_bfloat16_products_train_as_well(config, arch):
    losses, fingerprints = [], set()
    for dtype in ("float32", "bfloat16"):
        train_heads(dataclasses.replace(config, arch=arch, dtype=dtype, epochs=4, overwrite=True))
        losses.append(sum(read_manifest(config.out)["held_out"]["loss"]))
        fingerprints.add(hashlib.sha256(config.out.read_bytes()).hexdigest())
    assert len(fingerprints) == 2
    assert losses[1] == pytest.approx(losses[0], rel=0.03)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"held_out": 0}, "held_out must be at least 1, got 0"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"draft_vocab_size": -5}, "draft_vocab_size must be at least 1"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"max_texts": -1}, "max_texts must be at least 0"),
        ({"epochs": 0.0}, "epochs must be above 0"),
        ({"learning_rate": math.nan}, "learning_rate must be above 0, got nan"),
        ({"hard_weight": 1.5}, r"hard_weight must be in \[0, 1\]"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"prefix_from_base": True, "arch": "medusa"}, "prefix_from_base needs the architecture"),
        ({"held_out": TEXTS}, f"{TEXTS} texts with {TEXTS} held out"),
        ({"max_texts": HELD_OUT}, f"{HELD_OUT} texts with {HELD_OUT} held out"),
        ({"texts": ()}, f"0 texts with {HELD_OUT} held out"),
        ({"arch": "eagle"}, "eagle"),
    ],
)
def test_settings_that_cannot_train_are_refused(config, change, message):
    with pytest.raises(ValueError, match=message):
        train_heads(dataclasses.replace(config, **change))
    assert not config.folder.exists()


def test_a_missing_start_is_found_before_anything_is_computed(config, tmp_path, monkeypatch):
    monkeypatch.setattr(train.heads, "hidden_states", None)
    with pytest.raises(FileNotFoundError, match=r"no draft heads at .*absent"):
        train_heads(dataclasses.replace(config, init=str(tmp_path / "absent.safetensors")))


def test_a_base_that_overflows_is_named_and_not_kept(config, tmp_path, monkeypatch):
    forward = Backbone.forward_batch
    monkeypatch.setattr(Backbone, "forward_batch", lambda self, tokens: forward(self, tokens) * math.inf)
    config = dataclasses.replace(config, cache=tmp_path / "hidden")
    with pytest.raises(ValueError, match=r"not finite in float32: .* use dtype bfloat16 or float32"):
        train_heads(config)
    monkeypatch.undo()
    train_heads(dataclasses.replace(config, epochs=0.1))


@pytest.mark.parametrize(
    ("method", "what"), [("_train_step", "gradient of step 1"), ("_evaluate", "held-out loss after step 1")]
)
def test_heads_that_are_not_finite_are_never_written(config, monkeypatch, method, what):
    own = getattr(Trainer, method)

    def with_nan(self, *args):
        with torch.no_grad():
            next(self.heads.parameters()).fill_(math.nan)
        self.average.update()
        return own(self, *args)

    monkeypatch.setattr(Trainer, method, with_nan)
    with pytest.raises(FloatingPointError, match=f"the {what} is nan: lower learning_rate"):
        train_heads(dataclasses.replace(config, evaluate_every=1))
    assert not config.out.exists()
