"""Tiny checkpoints in the formats of the authors of Vicuna, Hydra and Medusa."""

import json

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.tiny import save_tiny_model

H, INNER, VOCAB, HEADS, HEAD_DIM, DEPTH, LAYERS = 32, 48, 12, 4, 8, 4, 4
BASE_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": H,
    "initializer_range": 0.02,
    "intermediate_size": INNER,
    "max_position_embeddings": 512,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": VOCAB,
}
HYDRA_CONFIG = {
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    "grounded_heads": True,
    "hidden_state_offset": 0,
    "hydra_head_arch": "prefix-mlp",
    "hydra_num_heads": DEPTH,
    "hydra_num_layers": LAYERS,
}
# As uploaded: the file has more heads than that.
MEDUSA_CONFIG = {
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    "medusa_num_heads": 2,
    "medusa_num_layers": 1,
}


def vicuna(seed=0):
    """A base without grouped-query attention; its weights are of float16, so no loading rounds them."""
    torch.manual_seed(seed)
    config = LlamaConfig(**(BASE_CONFIG | {"initializer_range": 0.3}))
    return LlamaForCausalLM(config).eval().half().float()


def save_vicuna(folder, model=None):
    """Save as in 2023: a pickle with rotary frequencies, no chat template. Returns the model."""
    model = model or vicuna()
    save_tiny_model(folder, model=model)
    (folder / "model.safetensors").unlink()
    state = {name: tensor.half() for name, tensor in model.state_dict().items()}
    for layer in range(2):
        state[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = frequencies()
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(BASE_CONFIG))
    return model


def save_sentencepiece(folder):
    """A tokenizer.model of letters, bytes and a few merges, with the configuration of Vicuna's."""
    from sentencepiece import sentencepiece_model_pb2 as sentencepiece

    model = sentencepiece.ModelProto()
    kind = model.SentencePiece
    letters = "▁ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.,:'"
    pieces = [("<unk>", kind.UNKNOWN), ("<s>", kind.CONTROL), ("</s>", kind.CONTROL)]
    pieces += [(f"<0x{byte:02X}>", kind.BYTE) for byte in range(256)]
    pieces += [(piece, kind.NORMAL) for piece in ("▁a", "he", "ll", "▁the", *letters)]
    for place, (piece, own) in enumerate(pieces):
        model.pieces.add(piece=piece, score=-float(place), type=own)
    model.trainer_spec.model_type = sentencepiece.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    (folder / "tokenizer.model").write_bytes(model.SerializeToString())
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False}
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | special))


def frequencies():
    return 10000 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)


def hydra_state(model, seed=1):
    """State dict of Hydra++ heads in float16."""
    torch.manual_seed(seed)

    def weight(*shape):
        return (torch.randn(shape) / shape[-1] ** 0.5).half()

    embedding = model.model.embed_tokens.weight.detach().half()
    layer = "prefix_embeding_layer.layers.0."
    state = {
        "prefix_embeding_layer.embed_tokens.weight": torch.zeros_like(embedding),
        **{f"{layer}self_attn.{name}_proj.weight": weight(H, H) for name in "qkvo"},
        # The optimiser's copy of it is rounded, so it must not be used.
        f"{layer}self_attn.rotary_emb.inv_freq": frequencies().half() * 1.5,
        f"{layer}mlp.gate_proj.weight": weight(INNER, H),
        f"{layer}mlp.up_proj.weight": weight(INNER, H),
        f"{layer}mlp.down_proj.weight": weight(H, INNER),
        f"{layer}input_layernorm.weight": 1 + 0.3 * weight(H),
        f"{layer}post_attention_layernorm.weight": 1 + 0.3 * weight(H),
        "prefix_embeding_layer.norm.weight": 1 + 0.3 * weight(H),
        "input_embed_fn.weight": embedding,
    }
    for head in range(DEPTH):
        for part in ("linear", "res_connection"):
            state[f"hydra_mlp.{head}.1.{part}.weight"] = weight(H, (head + 2) * H)
            state[f"hydra_mlp.{head}.1.{part}.bias"] = weight(H)
        shared = {"weight": weight(H, H), "bias": weight(H)}
        for place in (3, 5, 7):
            state |= {f"hydra_mlp.{head}.{place}.linear.{name}": tensor for name, tensor in shared.items()}
        state[f"hydra_lm_head.{head}.1.weight"] = weight(VOCAB, H)
        state[f"hydra_lm_head.{head}.1.bias"] = weight(VOCAB)
    return state


def medusa_state(seed=1, heads=5):
    """State dict of Medusa heads in float16."""
    torch.manual_seed(seed)
    state = {}
    for head in range(heads):
        state[f"{head}.0.linear.weight"] = (torch.randn(H, H) / H**0.5).half()
        state[f"{head}.0.linear.bias"] = torch.randn(H).half() / 4
        state[f"{head}.1.weight"] = (torch.randn(VOCAB, H) / H**0.5).half()
    return state


def save_hydra(folder, state, **config):
    return save_heads_as(folder, "hydra_lm_head.pt", state, HYDRA_CONFIG | config)


def save_medusa(folder, state, **config):
    return save_heads_as(folder, "medusa_lm_head.pt", state, MEDUSA_CONFIG | config)


def save_heads_as(folder, name, state, config):
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / name)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
