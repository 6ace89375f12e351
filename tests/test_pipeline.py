"""From a base model alone to a scheduled episode: text, heads, evaluation, environment."""

import json
import random
from pathlib import Path

import gymnasium
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

import entmtp_env  # noqa: F401
import eval.__main__
import train.__main__
from entmtp_env.decoding.checkpoint import read_manifest
from entmtp_env.models import load_pretrained
from tests.tiny import save_tiny_model

EOS, VOCAB = 2, 43
CPU = ("--device", "cpu", "--dtype", "float32")


def mistral():
    torch.manual_seed(5)
    config = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    model = MistralForCausalLM(config).eval()
    with torch.no_grad():
        # A sure-footed model whose next token depends on the last above all: heads can learn that in seconds.
        model.model.embed_tokens.weight.mul_(30)
        model.lm_head.weight.mul_(3)
    return model


def write_prompts(path, count, seed):
    rng = random.Random(seed)
    rows = [{"prompt": " ".join(f"w{rng.randrange(VOCAB - 3)}" for _ in range(4))} for _ in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def evaluate(monkeypatch):
    def run(*args):
        monkeypatch.setattr("sys.argv", ["eval", *args])
        eval.__main__.main()

    return run


def test_text_heads_evaluation_and_an_episode(tmp_path, evaluate):
    save_tiny_model(tmp_path / "model", EOS, mistral())
    base = ("--model", str(tmp_path / "model"), *CPU)
    asked = write_prompts(tmp_path / "asked.jsonl", 90, seed=0)
    others = write_prompts(tmp_path / "others.jsonl", 12, seed=1)

    texts = str(tmp_path / "texts.jsonl.gz")
    arguments = ("--prompts", asked, "--out", texts, "--temperatures", "0", "0.5", "--max-new-tokens", "24")
    assert train.__main__.main(["distill", *arguments, *base]) == 0

    heads = {name: str(tmp_path / f"{name}.safetensors") for name in ("untrained", "medusa", "hydra-prefix")}
    training = (
        *("--texts", texts, *base, "--draft-vocab-size", "40", "--held-out", "10"),
        *("--batch-tokens", "128", "--warmup-steps", "10", "--cache", str(tmp_path / "hidden")),
    )
    for name, how in {
        "untrained": ("--epochs", "0.01", "--learning-rate", "1e-9"),
        "medusa": ("--arch", "medusa", "--epochs", "12", "--learning-rate", "0.005"),
        "hydra-prefix": ("--epochs", "12", "--learning-rate", "0.005", "--prefix-from-base"),
    }.items():
        assert train.__main__.main(["heads", "--out", heads[name], *training, *how]) == 0
    pretrained = load_pretrained(str(tmp_path / "model"))
    assert {read_manifest(path)["model_fingerprint"] for path in heads.values()} == {pretrained.fingerprint}

    evaluate(
        *("heads", "--heads", *heads.values(), "--prompts", others, *base, "--max-new-tokens", "24"),
        *("--timing-steps", "0", "--cache", str(tmp_path / "written"), "--out", str(tmp_path / "out")),
    )
    results = json.loads((tmp_path / "out" / "heads.json").read_text())["heads"]
    scores = {name: results[path]["sets"][others] for name, path in heads.items()}
    tau = {name: own["tau"]["hydra-default"]["value"] for name, own in scores.items()}
    assert tau["hydra-prefix"] > tau["medusa"] > 1.1 * tau["untrained"] >= 1.1
    first = {name: own["first_draft"]["value"] for name, own in scores.items()}
    assert first["hydra-prefix"] > first["medusa"] > first["untrained"]

    env = gymnasium.make(
        "EntMTP/Live-v0",
        model=str(tmp_path / "model"),
        heads=heads["hydra-prefix"],
        prompts=others,
        max_new_tokens=24,
        capacity=128,
        device="cpu",
        dtype="float32",
    )
    action = [tree.name for tree in env.unwrapped.bank].index("hydra-default")
    lines = Path(others).read_text().splitlines()
    tokens = steps = 0
    for row in range(1, 13):
        _, info = env.reset(options={"prompt_id": f"others-{row}"})
        own, done = 0, False
        while not done:
            _, _, terminated, truncated, info = env.step(action)
            own, steps, done = own + info["tokens"], steps + 1, terminated or truncated
        prompt = pretrained.tokenizer(json.loads(lines[row - 1])["prompt"], return_tensors="pt").input_ids
        expected = pretrained.model.generate(prompt, max_new_tokens=24, do_sample=False)[0, prompt.shape[1] :]
        assert info["text"] == pretrained.tokenizer.decode(expected, skip_special_tokens=True)
        assert own == info["total_tokens"] == len(expected)
        tokens += own
    assert tokens == scores["hydra-prefix"]["tokens"]
    assert tokens / steps == pytest.approx(tau["hydra-prefix"])
