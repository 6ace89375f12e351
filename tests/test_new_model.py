"""docs/NEW_MODEL.md, command by command, on a random Qwen2 that is here by its configuration alone."""

import json
import random
import re
import shlex
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import eval.__main__
import train.__main__

GUIDE = Path(__file__).parents[1] / "docs" / "NEW_MODEL.md"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
CONFIG = {
    "vocab_size": len(BYTES) + len(SPECIAL),
    "eos_token_id": len(BYTES) + 2,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "tie_word_embeddings": True,
}
CPU = "--device cpu --dtype float32"
# What makes each command take a second, not hours.
SMALL = {
    "train distill": f"{CPU} --max-new-tokens 24",
    "train heads": f"{CPU} --draft-vocab-size 200 --batch-tokens 128 --cache $RUN/hidden",
    "eval heads": f"{CPU} --max-new-tokens 16 --timing-steps 0 --cache $RUN/written",
    "train record": f"{CPU} --max-new-tokens 24",
    "train costs": f"{CPU} --capacity 256 --contexts 16 32 --repeats 2 --prompts $PROMPTS",
    "train trees": "--budget 6",
    "train bank": "--size 3",
    "train calibrate": "--policies static threshold --scores expected_accept --quantiles 0.3 0.6",
    "train value": "--rounds 0 --epochs 2",
    "eval compare": f"{CPU} --max-new-tokens 16 --capacity 128 --num-prompts 3 --bootstrap-samples 100",
}
MAIN = {"train": train.__main__.main, "eval": eval.__main__.main}


def commands():
    """The commands of the guide, in order, each as name and line."""
    blocks = re.findall(r"^```\n(.*?)^```", GUIDE.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [(" ".join(line.split()[2:4]), line) for line in lines if line.startswith("python -m ")]


def test_the_guide_goes_from_text_to_a_comparison():
    assert list(dict.fromkeys(name for name, _ in commands())) == list(SMALL)


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(7)
    model = Qwen2ForCausalLM(Qwen2Config(**CONFIG)).eval()
    with torch.no_grad():
        # Sure of its next token, as trained models are.
        model.model.norm.weight.mul_(3)
    model.save_pretrained(tmp_path / "model")
    vocab = {token: index for index, token in enumerate([*BYTES, *SPECIAL])}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        additional_special_tokens=[*SPECIAL],
        chat_template=CHAT,
    ).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_every_command_works_on_a_second_model(model, tmp_path, monkeypatch):
    rng = random.Random(0)
    rows = [{"prompt": f"{rng.randrange(1000)} + {rng.randrange(1000)}"} for _ in range(60)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = f"{tmp_path / 'asked.jsonl'}:calibration"
    for name, line in commands():
        line = re.sub(r"(chat|math|stories):calibration", "$PROMPTS", f"{line} {SMALL[name]}")
        line = line.replace("$PROMPTS $PROMPTS $PROMPTS", "$PROMPTS").replace("math:evaluation", "$OTHERS")
        for variable, value in {
            "$MODEL": str(model),
            "$RUN": str(tmp_path / "run"),
            "$PROMPTS": prompts,
            "$OTHERS": prompts.replace("calibration", "evaluation"),
        }.items():
            line = line.replace(variable, value)
        monkeypatch.setattr("sys.argv", shlex.split(line)[2:])
        assert MAIN[name.split()[0]]() in (0, None), name
    summary = json.loads((tmp_path / "run" / "comparison" / "summary.json").read_text())
    shown = json.dumps(summary)
    assert all(
        policy in shown for policy in ("autoregressive", "static.json", "threshold.json", "improvement.npz")
    )
