"""Tiny random models for the suite: a Llama with grouped-query attention, and heads that often agree with it."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from entmtp_env.decoding import Backbone, DraftHeads, HeadsConfig, TreeDecoder

VOCAB = 24
EOS = 2


def tiny_model(seed=0, **overrides):
    """A random Llama in float32: 2 layers, 4 query heads over 2 key-value heads."""
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**(settings | overrides))).eval()


def tiny_backbone(seed=0, dtype=torch.float32, **overrides):
    return Backbone(tiny_model(seed, **overrides), dtype)


def tiny_heads(backbone, arch="hydra-prefix", depth=4, draft_vocab=VOCAB - 4, seed=0, pack=True):
    """Random heads over a part of the vocabulary."""
    torch.manual_seed(seed)
    config = HeadsConfig.for_backbone(backbone, arch, draft_vocab, depth=depth)
    heads = DraftHeads(config, torch.randperm(backbone.config.vocab_size)[:draft_vocab])
    heads.attach(backbone)
    if pack:
        heads.pack()
    return heads


def tiny_decoder(arch="hydra-prefix", seed=0, eos=frozenset({EOS}), capacity=256, **overrides):
    backbone = tiny_backbone(seed, **overrides)
    return TreeDecoder(backbone, tiny_heads(backbone, arch), capacity=capacity, eos_token_ids=eos)
