import dataclasses
import json
import shutil

import pytest
import torch

from entmtp_env.decoding import Backbone
from entmtp_env.decoding.acceptance import GreedyRule
from entmtp_env.decoding.batch import Request, generate_batch
from tests.tiny import EOS, VOCAB, tiny_model
from tests.train.texts import random_texts
from train.heads import HeadsTraining

TEXTS, HELD_OUT = 70, 12


@pytest.fixture(scope="session")
def written(tiny_files, tmp_path_factory):
    """Settings to train on texts that a tiny model wrote, and the model."""
    folder = tmp_path_factory.mktemp("training")
    model = tiny_model()
    with torch.no_grad():
        # A sure-footed model whose next token depends on the last above all: heads can learn that in seconds.
        model.model.embed_tokens.weight.mul_(8)
        model.lm_head.weight.mul_(3)
    shutil.copytree(tiny_files.model, folder / "model")
    model.save_pretrained(folder / "model")
    backbone = Backbone(model, torch.float32)
    prompts = [text.prompt for text in random_texts([(1 + i % 5, 1) for i in range(TEXTS)])]
    requests = [Request(prompt, GreedyRule()) for prompt in prompts]
    replies = dict(generate_batch(backbone, requests, max_new_tokens=16, eos_token_ids=frozenset({EOS})))
    rows = [{"p": prompt, "g": replies[i]} for i, prompt in enumerate(prompts)]
    paths = (folder / "a.jsonl", folder / "b.jsonl")
    for path, own in zip(paths, (rows[::2], rows[1::2]), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in own))
    config = HeadsTraining(
        texts=paths,
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
        dtype="float32",
    )
    return config, backbone


@pytest.fixture
def config(written, tmp_path):
    """The settings, with results in the test's own folder; hidden states are shared."""
    return dataclasses.replace(written[0], out=tmp_path / "heads.safetensors")
