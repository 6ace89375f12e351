import dataclasses
import json

import pytest

from entmtp_env.decoding import SampleRule, TreeDecoder
from entmtp_env.engine import get_engine
from entmtp_env.prompts import load_prompts
from entmtp_env.trees import AUTOREGRESSIVE
from eval import texts as module
from eval.texts import TextSettings, written_texts

SETTINGS = TextSettings(num_prompts=0, acceptance="greedy", max_new_tokens=12, seed=0)


@pytest.fixture
def engine(tiny_files):
    return get_engine(tiny_files.model, tiny_files.heads, "float32", "cpu")


@pytest.mark.parametrize("acceptance", ["greedy", "sample:temperature=0.9"])
def test_texts_are_those_of_the_decoder(engine, tiny_files, tmp_path, acceptance):
    settings = dataclasses.replace(SETTINGS, acceptance=acceptance, seed=3)
    prompts = {prompt.prompt_id: prompt for prompt in load_prompts(tiny_files.prompts)}
    decoder = TreeDecoder(engine.backbone, engine.heads, eos_token_ids=engine.eos_token_ids, capacity=256)
    texts = written_texts(engine, tiny_files.prompts, settings, tmp_path)
    assert sorted(text.prompt_id for text in texts) == sorted(prompts)
    for number, text in enumerate(texts):
        assert list(text.prompt) == engine.encode(prompts[text.prompt_id])
        rule = SampleRule(0.9) if acceptance != "greedy" else None
        # Seeds count up in the order of the shuffle, as in a comparison.
        decoder.start(list(text.prompt), rule, max_new_tokens=12, seed=3 + number)
        while not decoder.finish_reason:
            decoder.step(AUTOREGRESSIVE)
        assert list(text.reply) == decoder.tokens


def test_they_are_written_once(engine, tiny_files, tmp_path, monkeypatch):
    first = written_texts(engine, tiny_files.prompts, SETTINGS, tmp_path)
    monkeypatch.setattr(module, "generate_batch", None)
    assert written_texts(engine, tiny_files.prompts, SETTINGS, tmp_path) == first
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "change", [{"num_prompts": 2}, {"acceptance": "sample"}, {"max_new_tokens": 5}, {"seed": 1}]
)
def test_other_settings_are_other_texts(engine, tiny_files, tmp_path, change):
    first = written_texts(engine, tiny_files.prompts, SETTINGS, tmp_path)
    changed = written_texts(engine, tiny_files.prompts, dataclasses.replace(SETTINGS, **change), tmp_path)
    assert changed != first
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"no gzip", "cut"])
def test_a_damaged_file_is_written_again(engine, tiny_files, tmp_path, damage):
    first = written_texts(engine, tiny_files.prompts, SETTINGS, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-20] if damage == "cut" else damage)
    assert written_texts(engine, tiny_files.prompts, SETTINGS, tmp_path) == first
    assert written_texts(engine, tiny_files.prompts, SETTINGS, tmp_path) == first


def test_a_prompt_that_does_not_fit_is_named(engine, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"id": "long", "prompt": " ".join(["w1"] * 505)}))
    with pytest.raises(
        ValueError, match=r"'long' of .* has 505 tokens; with 12 new ones the model takes 500"
    ):
        written_texts(engine, str(path), SETTINGS, tmp_path / "cache")


def test_rules_under_which_the_text_depends_on_the_tree_are_refused():
    with pytest.raises(ValueError, match="'typical': the text would depend on the trees"):
        dataclasses.replace(SETTINGS, acceptance="typical")
