import dataclasses
import json

import numpy as np
import pytest

from entmtp_env.decoding import save_heads
from entmtp_env.engine import get_engine
from entmtp_env.prompts import load_prompts
from entmtp_env.trees import DraftTree, published_trees
from eval.heads import Heads, evaluate_heads
from tests.tiny import tiny_backbone, tiny_heads


@pytest.fixture
def config(tiny_files, tmp_path):
    medusa = tmp_path / "medusa.safetensors"
    save_heads(tiny_heads(tiny_backbone(), "medusa", pack=False), medusa)
    return Heads(
        heads=(tiny_files.heads, str(medusa)),
        prompts=(tiny_files.prompts, f"{tiny_files.prompts}:evaluation"),
        model=tiny_files.model,
        max_new_tokens=24,
        timing_steps=2,
        cache=tmp_path / "texts",
        out=tmp_path / "out",
        dtype="float32",
        device="cpu",
        bootstrap_samples=50,
    )


def live_tau(config, heads, tree, prompts):
    """Tokens per step of the real decoder."""
    from entmtp_env.decoding import TreeDecoder

    engine = get_engine(config.model, heads, "float32", "cpu")
    decoder = TreeDecoder(engine.backbone, engine.heads, eos_token_ids=engine.eos_token_ids, capacity=256)
    tokens, steps = 0, 0
    for prompt in load_prompts(prompts):
        decoder.start(engine.encode(prompt), max_new_tokens=config.max_new_tokens)
        while not decoder.finish_reason:
            decoder.step(tree)
            steps += 1
        tokens += len(decoder.tokens)
    return tokens / steps


def test_the_whole_command(config, tiny_files, capsys):
    results = evaluate_heads(config)
    document = json.loads((config.out / "heads.json").read_text())
    assert list(results) == list(document["heads"]) == list(config.heads)
    assert document["manifest"]["settings"]["max_new_tokens"] == 24
    assert (config.out / "calibration.png").read_bytes()[:4] == b"\x89PNG"
    for heads, arch in zip(config.heads, ("hydra-prefix", "medusa"), strict=True):
        own = document["heads"][heads]
        assert own["manifest"]["heads_arch"] == arch
        assert list(own["sets"]) == [*config.prompts, "pooled"]
        assert own["sets"]["pooled"]["texts"] == 9
        for tree in (DraftTree.chain(1), DraftTree.chain(3), published_trees()["hydra-default"]):
            tau = own["sets"][tiny_files.prompts]["tau"][tree.name]["value"]
            assert tau == pytest.approx(live_tau(config, heads, tree, tiny_files.prompts))
        for name, paths in own["best_trees"].items():
            assert len(DraftTree.from_paths(name, paths)) == int(name.removeprefix("best-"))
        assert own["cost"]["step"] > 0
        depths = own["calibration"]["confidence"]
        assert len(depths) == 4
        assert sum(len(d["stated"]) for d in depths) > 15
    shown = capsys.readouterr().out
    assert shown.count("τ hydra-default") == 3
    assert "drafting" in shown


def test_a_second_run_writes_no_text_and_finds_the_same(config, monkeypatch):
    config = dataclasses.replace(config, timing_steps=0)
    first = evaluate_heads(config)
    monkeypatch.setattr("eval.texts.generate_batch", None)
    assert evaluate_heads(config) == first
    assert all(result.cost is None for result in first.values())


def test_tiny_replies_have_scores_too(config):
    results = evaluate_heads(dataclasses.replace(config, max_new_tokens=1, num_prompts=1, timing_steps=0))
    for result in results.values():
        assert result.sets["pooled"].tau["chain-4"].value == 1
        assert result.sets["pooled"].first_draft is None


def test_sampled_text_is_scored_too(config):
    sampled = dataclasses.replace(config, acceptance="sample:temperature=1.5", timing_steps=0)
    greedy, other = (evaluate_heads(c) for c in (dataclasses.replace(config, timing_steps=0), sampled))
    taus = [
        [result.sets["pooled"].tau["hydra-default"].value for result in results.values()]
        for results in (greedy, other)
    ]
    assert not np.allclose(*taus)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": ()}, "at least one of heads"),
        ({"prompts": ()}, "one of prompts"),
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be at least 1"),
        ({"timing_steps": -1}, "timing_steps=-1 must be at least 0"),
        ({"acceptance": "typical"}, "would depend on the trees"),
        ({"prompts": ("nosuch",)}, "unknown prompt set 'nosuch'"),
    ],
)
def test_mistakes_are_named(config, change, message):
    with pytest.raises(ValueError, match=message):
        evaluate_heads(dataclasses.replace(config, **change))
    assert not config.out.exists()


def test_missing_heads_are_named(config):
    with pytest.raises(FileNotFoundError, match="no draft heads at missing"):
        evaluate_heads(dataclasses.replace(config, heads=("missing.safetensors",)))
