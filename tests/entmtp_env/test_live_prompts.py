import json
from itertools import cycle

import gymnasium
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from entmtp_env.decoding import Backbone, save_heads
from entmtp_env.prompts import Prompt
from tests.tiny import save_tiny_model, tiny_heads, tiny_model

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    f"{{% for message in messages %}}{START}{{{{ message.role }}}}\n{{{{ message.content }}}}{END}\n"
    f"{{% endfor %}}{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"
)
TEXTS = {
    "whitespace": " \n\t\u3000 ",
    "only special tokens": f"{END}{END}{START}",
    "control tokens inside": f"Say hi{END}\n{START}assistant\nhi{END}\n{START}system\nYou are",
    "half a control token": "<|im_end <|im_end|",
    "chinese": "请用一句话介绍你自己。",
    "emoji": "👩‍👩‍👧‍👦🇩🇪✍🏽 e\u0301",
    "right to left": "\u202bمرحبا بالعالم، שלום עולם 123\u202c",
    "control characters": "a\x00b\x1b[31mred\x7f\u2028\u2029\ufeff\r\n",
    "astral and replacement": "\U0001f9ec\U0010ffff\ufffd",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny chat model whose tokens are bytes, with heads."""
    path = tmp_path_factory.mktemp("bytes")
    words = [*sorted(ByteLevel.alphabet()), START, END]
    model = save_tiny_model(path / "model", len(words) - 1, tiny_model(seed=4, vocab_size=len(words)))
    tokenizer = Tokenizer(BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in (START, END)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path / "model")
    save_heads(tiny_heads(Backbone(model, torch.float32), pack=False), path / "heads.safetensors")
    rows = [{"id": name, "prompt": text} for name, text in TEXTS.items() if text.strip()]
    (path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def make(folder):
    def build(**changes):
        settings = {
            "model": str(folder / "model"),
            "heads": str(folder / "heads.safetensors"),
            "prompts": str(folder / "odd.jsonl"),
            "dtype": "float32",
            "device": "cpu",
            "max_new_tokens": 24,
            "capacity": 256,
            "render_mode": "ansi",
        }
        return gymnasium.make("EntMTP/Live-v0", **(settings | changes)).unwrapped

    return build


def write(env, text, actions, chat=True):
    """Final info of a text; checks every step."""
    env.prompts[0] = Prompt(env.prompts[0].prompt_id, text, chat)
    observation, _ = env.reset(options={"prompt_id": env.prompts[0].prompt_id})
    done = False
    while not done:
        assert env.observation_space.contains(observation)
        observation, _, terminated, truncated, info = env.step(next(actions))
        env.render().encode()
        done = terminated or truncated
    info["text"].encode()
    return info


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "plain"])
@pytest.mark.parametrize("name", TEXTS)
def test_every_text_is_a_prompt(make, folder, name, chat):
    """Trees do not change what follows it, and transformers writes the same."""
    env = make()
    ids = env.engine.encode(Prompt("p", TEXTS[name], chat))
    expected = write(env, TEXTS[name], cycle([0]), chat)
    assert write(env, TEXTS[name], cycle([9, 3, 0, 7]), chat)["text"] == expected["text"]
    model = tiny_model(seed=4, vocab_size=len(env.engine.tokenizer))
    output = model.generate(
        torch.tensor([ids]), max_new_tokens=24, do_sample=False, eos_token_id=list(env.engine.eos_token_ids)
    )
    assert env.decoder.tokens == output[0, len(ids) :].tolist()


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if text.strip()])
def test_a_file_brings_it_to_the_model_as_it_is(make, name):
    env = make()
    (prompt,) = (prompt for prompt in env.prompts if prompt.prompt_id == name)
    ids = env.engine.encode(prompt)
    assert env.engine.tokenizer.decode(ids) == f"{START}user\n{TEXTS[name]}{END}\n{START}assistant\n"
    # In a prompt, the token that ends a text is one like any other.
    assert set(ids) & env.engine.eos_token_ids


def test_an_empty_prompt_is_a_turn_in_a_template_and_else_refused(make):
    env = make()
    assert write(env, "", cycle([5]))["total_tokens"] > 0
    with pytest.raises(
        ValueError, match=r"prompt 'only special tokens': a text needs a prompt .* got 0 tokens"
    ):
        write(env, "", cycle([5]), chat=False)
    assert write(env, "a", cycle([5]), chat=False)["total_tokens"] > 0


@pytest.mark.parametrize("excess", [0, 1, 10_000])
def test_a_prompt_longer_than_the_context_is_named(make, excess):
    env = make(capacity=100)
    room = env.capacity - 1 - env.bank.max_nodes
    if excess:
        with pytest.raises(
            ValueError, match=rf"prompt '.*': a prompt of {room + excess} tokens and .* into 100 KV rows"
        ):
            write(env, "x" * (room + excess), cycle([1]), chat=False)
    assert write(env, "x" * room, cycle([0]), chat=False)["finish_reason"] in ("context", "eos")
