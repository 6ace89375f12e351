import dataclasses
import json
import shutil

import pytest
import torch

from entmtp_env.decoding import Backbone, TreeDecoder, load_heads
from entmtp_env.decoding.checkpoint import read_manifest
from entmtp_env.models import load_pretrained
from entmtp_env.trees import DraftTree
from tests.tiny import EOS, VOCAB, tiny_heads, tiny_model
from tests.train.texts import random_texts
from train.heads import HeadsTraining, initialise, train_heads

ARCHS = ["medusa", "hydra", "hydra-prefix"]
DEPTH = 4
EMPTY = DraftTree("autoregressive")
TEXTS, HELD_OUT = 70, 12


@pytest.fixture(scope="module")
def written(tiny_files, tmp_path_factory):
    """Texts that a tiny model wrote, the settings to train on them, and the model."""
    folder = tmp_path_factory.mktemp("training")
    model = tiny_model()
    with torch.no_grad():
        # A sure-footed model whose next token depends on the last above all: heads can learn that in seconds.
        model.model.embed_tokens.weight.mul_(8)
        model.lm_head.weight.mul_(3)
    shutil.copytree(tiny_files.model, folder / "model")
    model.save_pretrained(folder / "model")
    backbone = Backbone(model, torch.float32)
    decoder = TreeDecoder(backbone, tiny_heads(backbone), capacity=128, eos_token_ids=frozenset({EOS}))
    lines = []
    for prompt in random_texts([(1 + i % 5, 1) for i in range(TEXTS)]):
        decoder.start(list(prompt.prompt), max_new_tokens=16)
        while not decoder.finish_reason:
            decoder.step(EMPTY)
        lines.append(json.dumps({"p": prompt.prompt, "g": decoder.tokens}))
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n")
    config = HeadsTraining(
        texts=folder / "texts.jsonl",
        out=folder / "heads.safetensors",
        model=str(folder / "model"),
        depth=3,
        num_layers=1,
        draft_vocab_size=VOCAB - 2,
        held_out=HELD_OUT,
        epochs=10,
        batch_tokens=128,
        learning_rate=5e-3,
        warmup_steps=10,
        evaluate_every=15,
        cache=folder / "hidden",
        device="cpu",
    )
    return config, backbone


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    """The element type that this machine runs fastest would make the results differ between machines."""
    monkeypatch.setattr("train.heads.choose_dtype", lambda name, device: torch.float32)


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
def test_training_from_configuration_alone(written, capsys, arch, gain):
    config, backbone = written
    config = dataclasses.replace(config, arch=arch)
    train_heads(config)
    lines = reports(capsys.readouterr().err)
    losses = [sum(line["loss"]) for line in lines]
    assert min(losses) < 0.8 * losses[0]

    heads = load_heads(config.out)
    assert (heads.config.arch, heads.config.depth, len(heads.vocab_ids)) == (arch, 3, VOCAB - 2)
    manifest = read_manifest(config.out)
    assert manifest["model_fingerprint"] == load_pretrained(config.model).fingerprint
    assert manifest["loss"] == lines[losses.index(min(losses))]["loss"]
    untrained = tiny_heads(backbone, arch, depth=3, pack=False)
    initialise(untrained, backbone)
    assert tau(backbone, heads) > gain * tau(backbone, untrained)


def test_the_same_seed_trains_the_same_heads(written, tmp_path):
    config = dataclasses.replace(written[0], epochs=0.5)
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        out = tmp_path / f"{name}.safetensors"
        train_heads(dataclasses.replace(config, out=out, seed=seed))
        weights.append(load_heads(out).mlps[0][0].linear.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("warmup", [0, 1, 2, 100])
@pytest.mark.parametrize("epochs", [0.01, 0.2])
def test_the_shortest_runs_write_a_checkpoint(written, tmp_path, warmup, epochs):
    out = tmp_path / "heads.safetensors"
    train_heads(dataclasses.replace(written[0], out=out, epochs=epochs, warmup_steps=warmup, arch="medusa"))
    assert load_heads(out)


def test_replies_shorter_than_the_heads_are_deep_do_no_harm(written, tmp_path):
    texts, out = tmp_path / "texts.jsonl", tmp_path / "heads.safetensors"
    texts.write_text('{"p": [3, 4], "g": [5, 6]}\n' * 24)
    train_heads(dataclasses.replace(written[0], texts=texts, out=out, epochs=2))
    assert all(torch.isfinite(p).all() for p in load_heads(out).parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"held_out": 0}, "held_out"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"epochs": 0.0}, "epochs"),
        ({"hard_weight": 1.5}, "hard_weight"),
        ({"held_out": TEXTS}, f"{TEXTS} texts with {TEXTS} held out"),
        ({"max_texts": HELD_OUT}, f"{HELD_OUT} texts with {HELD_OUT} held out"),
        ({"arch": "eagle"}, "eagle"),
    ],
)
def test_settings_that_cannot_train_are_refused(written, change, message):
    with pytest.raises(ValueError, match=message):
        train_heads(dataclasses.replace(written[0], **change))
