"""The strongest test on the default model: whatever the trees, the text of autoregressive decoding."""

from importlib.resources import files
from random import Random

import pytest
import torch

from entmtp_env.decoding import Backbone, GreedyRule, SampleRule, TreeDecoder, load_heads
from entmtp_env.models import load_pretrained
from entmtp_env.prompts import load_prompts
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, default_bank
from tests.tiny import tiny_heads

pytestmark = pytest.mark.model

BANK = default_bank()
CAP = 24
HEADS = files("entmtp_env") / "data" / "heads" / "smollm2-hydra-prefix.safetensors"


@pytest.fixture(scope="module")
def pretrained():
    return load_pretrained("smollm2")


@pytest.fixture(scope="module")
def decoder(pretrained):
    # float32: in bfloat16 two nearly equal logits may swap places with the shape of the product.
    backbone = Backbone(pretrained.model, torch.float32)
    if HEADS.is_file():
        heads = load_heads(str(HEADS))
        heads.attach(backbone)
        heads.pack()
    else:
        heads = tiny_heads(backbone, draft_vocab=4096)
    return TreeDecoder(backbone, heads, capacity=512, eos_token_ids=pretrained.eos_token_ids)


@pytest.fixture(scope="module")
def prompts(pretrained):
    chosen = [*load_prompts("humaneval")[:10], *load_prompts("chat")[:10]]
    tokenizer = pretrained.tokenizer
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt.text}], add_generation_prompt=True, return_dict=False
            )
        )[-300:]
        for prompt in chosen
    ]


def decode(decoder, prompt, rule, trees, seed=0, probe=None):
    accepted = []
    decoder.start(prompt, rule, max_new_tokens=CAP, seed=seed)
    while not decoder.finish_reason:
        if probe is not None:
            decoder.probe(probe)
        accepted.append(decoder.step(trees()).accept_length)
    return decoder.tokens, decoder.finish_reason, accepted


@pytest.mark.parametrize("rule", [GreedyRule, SampleRule])
def test_texts_do_not_depend_on_the_trees(decoder, prompts, rule):
    random, accepted = Random(0), []
    fixed = [BANK[BANK.index(name)] for name in ("chain-3", "hydra-default")]
    for seed, prompt in enumerate(prompts):
        *expected, _ = decode(decoder, prompt, rule(), lambda: AUTOREGRESSIVE, seed)
        schedules = [lambda: random.choice(BANK.trees), lambda tree=fixed[seed % 2]: tree]
        for schedule, probe in zip(schedules, (DraftTree.chain(4), None), strict=True):
            *text, lengths = decode(decoder, prompt, rule(), schedule, seed, probe)
            assert text == expected
            accepted += lengths
    if HEADS.is_file():
        assert max(accepted) >= 3


def test_greedy_equals_transformers_generate(decoder, pretrained, prompts):
    for prompt in (prompts[0], prompts[-1]):
        tokens, *_ = decode(decoder, prompt, GreedyRule(), lambda: BANK[-1])
        with torch.no_grad():
            out = pretrained.model.generate(
                torch.tensor([prompt]), do_sample=False, max_new_tokens=CAP, repetition_penalty=1.0
            )
        assert tokens == out[0, len(prompt) :].tolist()
