"""Tiny random models for the suite: a Llama with grouped-query attention, and heads to draft for it."""

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from entmtp_env.decoding import Backbone, DraftHeads, HeadsConfig, TreeDecoder
from entmtp_env.trees import DraftTree

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
    return LlamaForCausalLM(LlamaConfig(**(settings | as_this_version(overrides)))).eval()


def as_this_version(settings):
    """Settings of a configuration for the installed transformers; version 4 has other names for RoPE."""
    if "rope_parameters" in settings and transformers.__version__.startswith("4."):
        rope = dict(settings["rope_parameters"])
        settings = settings | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    return settings


def save_tiny_model(folder, eos=EOS, model=None):
    """Save a model and a tokenizer of words as transformers does; ``w0`` is token 3. Returns the model."""
    model = model or tiny_model()
    words = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(model.config.vocab_size - 3))]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    model.generation_config.eos_token_id = eos
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    return model


def tiny_backbone(seed=0, dtype=torch.float32, **overrides):
    return Backbone(tiny_model(seed, **overrides), dtype)


def tiny_heads(backbone, arch="hydra-prefix", depth=4, draft_vocab=None, seed=0, pack=True, deep_vocab=0):
    """Random heads over a part of the vocabulary: all but 4 tokens by default."""
    torch.manual_seed(seed)
    vocab = backbone.config.vocab_size
    draft_vocab = draft_vocab or vocab - 4
    config = HeadsConfig.for_backbone(backbone, arch, draft_vocab, depth=depth, deep_vocab_size=deep_vocab)
    heads = DraftHeads(config, torch.randperm(vocab)[:draft_vocab])
    heads.attach(backbone)
    if pack:
        heads.pack()
    return heads


def tiny_decoder(
    arch="hydra-prefix",
    seed=0,
    eos=frozenset({EOS}),
    capacity=256,
    draft_vocab=None,
    deep_vocab=0,
    **overrides,
):
    backbone = tiny_backbone(seed, **overrides)
    heads = tiny_heads(backbone, arch, draft_vocab=draft_vocab, deep_vocab=deep_vocab)
    return TreeDecoder(backbone, heads, capacity=capacity, eos_token_ids=eos)


def random_tree(random, size, depth=4, ranks=5):
    """A tree grown node by node at random; ``random`` is a ``random.Random``."""
    nodes = set()
    for _ in range(size):
        parents = [parent for parent in [(), *nodes] if len(parent) < depth]
        children = [(*parent, sum(node[:-1] == parent for node in nodes)) for parent in parents]
        nodes.add(random.choice(sorted(child for child in children if child[-1] < ranks)))
    return DraftTree("random", tuple(nodes))
