import json
import pickle
import warnings
from random import Random

import pytest
import torch
from safetensors.torch import save_file

from entmtp_env.decoding import Backbone, GreedyRule, TreeDecoder, TypicalRule, load_heads, save_heads
from entmtp_env.decoding.published import load_published
from entmtp_env.trees import DraftTree, published_trees
from tests.entmtp_env.decoding.published_procedure import Hydra, Medusa, greedy, propose, typical, verdict
from tests.published import (
    DEPTH,
    HYDRA_CONFIG,
    H,
    hydra_state,
    medusa_state,
    save_hydra,
    save_medusa,
    vicuna,
)
from tests.tiny import random_tree

TREES = [
    *published_trees().values(),
    DraftTree("lopsided", ((0,), (1,), (1, 0), (1, 0, 0), (1, 0, 0, 0))),
]
RULES = {"greedy": (GreedyRule, greedy), "typical": (TypicalRule, typical())}
PROMPTS = [[1, 5, 7], [1, 3], [1, 9, 9, 4, 10, 6]]


@pytest.fixture(scope="module")
def model():
    return vicuna()


@pytest.fixture(scope="module")
def backbone(model):
    return Backbone(model, torch.float32)


@pytest.fixture
def states(model):
    return {"hydra": hydra_state(model), "medusa": medusa_state()}


def write(folder, arch, state, **config):
    return {"hydra": save_hydra, "medusa": save_medusa}[arch](folder / arch, state, **config)


def attached(folder, arch, state, backbone):
    heads = load_published(write(folder, arch, state), backbone)
    heads.attach(backbone)
    heads.pack()
    return heads


@torch.no_grad()
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("arch", ["hydra", "medusa"])
def test_decoding_is_the_published_procedure(arch, rule, model, backbone, states, tmp_path):
    """Root, proposals in order, acceptance with clamping, positions of the base and of the prefix layer."""
    reference = {"hydra": Hydra, "medusa": Medusa}[arch](model, states[arch])
    ours, stands = RULES[rule]
    decoder = TreeDecoder(backbone, attached(tmp_path, arch, states[arch], backbone), capacity=128)
    random, accepted = Random(0), set()
    for number, prompt in enumerate(PROMPTS):
        text = list(prompt)
        decoder.start(prompt, ours(), max_new_tokens=64)
        root = int(model(torch.tensor([text])).logits[0, -1].argmax())
        for step in range(6):
            assert decoder.root == root
            tree = TREES[(number + step) % len(TREES)] if step % 2 else random_tree(random, 12, ranks=6)
            order, tokens = propose(reference, text, root, tree.nodes)
            assert tuple(order) == tree.nodes
            assert decoder.draft(tree).tokens.tolist() == [tokens[path] for path in order]
            expected, root = verdict(model, text, tokens, order, stands)
            assert decoder.step(tree).tokens == expected
            accepted.add(len(expected) - 1)
            text += expected
    assert {0, 1, 2} <= accepted


@pytest.mark.parametrize("arch", ["hydra", "medusa"])
def test_safetensors_give_the_same_heads(arch, backbone, states, tmp_path):
    folder = write(tmp_path, arch, states[arch])
    pickled = load_published(folder, backbone).state_dict()
    (folder / f"{arch}_lm_head.pt").unlink()
    save_file({n: t.clone() for n, t in states[arch].items()}, folder / f"{arch}_lm_head.safetensors")
    plain = load_published(folder, backbone).state_dict()
    assert pickled.keys() == plain.keys()
    assert all(torch.equal(pickled[name], plain[name]) for name in plain)


def test_the_file_counts_medusas_heads_not_its_configuration(backbone, states, tmp_path):
    heads = load_published(write(tmp_path, "medusa", states["medusa"]), backbone)
    assert heads.config.depth == 5
    assert all(not head.bias.any() for head in heads.lm_heads)


def test_weights_keep_the_files_type_until_attached(backbone, states, tmp_path):
    heads = load_published(write(tmp_path, "hydra", states["hydra"]), backbone)
    assert {parameter.dtype for parameter in heads.parameters()} == {torch.float16}
    heads.attach(backbone)
    assert {parameter.dtype for parameter in heads.parameters()} == {torch.float32}


def test_the_files_embedding_is_not_taken(backbone, states, tmp_path):
    before = backbone.embedding.clone()
    states["hydra"]["input_embed_fn.weight"] = torch.randn(12, H).half()
    with pytest.warns(UserWarning, match="the draft heads were trained for another one"):
        heads = load_published(write(tmp_path, "hydra", states["hydra"]), backbone)
    heads.attach(backbone)
    assert torch.equal(backbone.embedding, before)
    assert torch.equal(heads.embed(torch.arange(12)), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_an_embedding_that_differs_by_rounding_alone_is_the_bases(backbone, states, tmp_path, dtype):
    state = {name: tensor.to(dtype) for name, tensor in states["hydra"].items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_published(write(tmp_path, "hydra", state), backbone)


def test_what_belongs_to_the_base_may_be_left_out(backbone, states, tmp_path):
    whole = load_published(write(tmp_path, "hydra", states["hydra"]), backbone).state_dict()
    slim = {n: t for n, t in states["hydra"].items() if "embed_" not in n and "inv_freq" not in n}
    assert len(slim) == len(states["hydra"]) - 3
    loaded = load_published(write(tmp_path, "hydra", slim), backbone).state_dict()
    assert all(torch.equal(loaded[name], whole[name]) for name in whole)


@pytest.mark.parametrize("arch", ["hydra", "medusa"])
def test_every_key_is_accounted_for(arch, backbone, states, tmp_path):
    """Trap 13: each tensor dropped, renamed or reshaped in turn is named."""
    for name, tensor in states[arch].items():
        changed = {key: value for key, value in states[arch].items() if key != name}
        optional = "embed_" in name or "inv_freq" in name
        if not optional and name.split(".")[1:] != ["1", "weight"]:
            with pytest.raises(ValueError, match=f"missing: {name}$"):
                load_published(write(tmp_path, arch, changed), backbone)
        with pytest.raises(ValueError, match=f"unexpected: x.{name}"):
            load_published(write(tmp_path, arch, states[arch] | {f"x.{name}": tensor}), backbone)
        wrong = tensor.new_zeros(len(tensor) + 1, *tensor.shape[1:])
        with pytest.raises(ValueError, match=rf"wrong in shape: {name} \({len(wrong)},"):
            load_published(write(tmp_path, arch, states[arch] | {name: wrong}), backbone)


def test_all_faults_are_named_at_once(backbone, states, tmp_path):
    state = states["hydra"] | {"extra": torch.zeros(1), "hydra_lm_head.0.1.bias": torch.zeros(3)}
    del state["hydra_mlp.1.5.linear.weight"], state["prefix_embeding_layer.norm.weight"]
    with pytest.raises(ValueError, match=r"the base model must be 'lmsys/vicuna-7b-v1\.3'") as caught:
        load_published(write(tmp_path, "hydra", state), backbone)
    assert str(caught.value).endswith(
        "missing: prefix_embeding_layer.norm.weight, hydra_mlp.1.5.linear.weight; unexpected: extra; "
        "wrong in shape: hydra_lm_head.0.1.bias (3,) instead of (12,)"
    )


@pytest.mark.parametrize("base", [{"hidden_size": 64}, {"vocab_size": 20}, {"intermediate_size": 64}])
def test_another_base_is_refused(base, states, tmp_path):
    from tests.tiny import tiny_backbone

    other = {"hidden_size": H, "num_key_value_heads": 4, "vocab_size": 12} | base
    with pytest.raises(ValueError, match="wrong in shape: "):
        load_published(write(tmp_path, "hydra", states["hydra"]), tiny_backbone(**other))


def test_copies_that_differ_are_refused(backbone, states, tmp_path):
    states["hydra"]["hydra_mlp.2.5.linear.bias"] = torch.zeros(H).half()
    with pytest.raises(ValueError, match=r"the 3 copies of mlps\.2\.1\.linear\.bias differ"):
        load_published(write(tmp_path, "hydra", states["hydra"]), backbone)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"hydra_head_arch": "eagle-attn"},
            "hydra_head_arch 'eagle-attn' is not supported, only 'prefix-mlp'",
        ),
        ({"hydra_head_arch": "mlp"}, "hydra_head_arch 'mlp' is not supported"),
        ({"grounded_heads": False}, "grounded_heads False is not supported"),
        ({"hidden_state_offset": 1}, "hidden_state_offset 1 is not supported, only 0"),
        ({"hydra_num_heads": "4"}, "hydra_num_heads is '4'; expected an integer"),
        ({"hydra_num_heads": 10**12}, "hydra_num_heads is 1000000000000"),
        ({"hydra_num_layers": None}, "hydra_num_layers is None"),
        ({"hydra_num_layers": 0}, "hydra_num_layers is 0"),
        ({"hydra_num_layers": True}, "hydra_num_layers is True"),
        ({"hydra_num_heads": DEPTH - 1}, "unexpected: hydra_lm_head.3.1.bias"),
        ({"hydra_num_heads": DEPTH + 1}, "missing: hydra_mlp.4.1.linear.weight"),
    ],
)
def test_other_configurations_are_refused(config, message, backbone, states, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_published(write(tmp_path, "hydra", states["hydra"], **config), backbone)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "[" * 100_000])
def test_a_damaged_configuration_is_refused(content, backbone, states, tmp_path):
    folder = write(tmp_path, "hydra", states["hydra"])
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json is not"):
        load_published(folder, backbone)


def test_missing_files_are_named(backbone, states, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected heads\.safetensors, or config\.json with one of"):
        load_published(tmp_path, backbone)
    folder = write(tmp_path, "hydra", states["hydra"])
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_published(folder, backbone)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def save_pickle(state, path):
    path.write_bytes(pickle.dumps(state, protocol=2))


@pytest.mark.parametrize("save", [torch.save, save_pickle])
def test_code_is_never_run(save, backbone, states, tmp_path):
    folder = write(tmp_path, "hydra", states["hydra"])
    save(states["hydra"] | {"evil": Evil(str(tmp_path / "ran"))}, folder / "hydra_lm_head.pt")
    with pytest.raises(ValueError, match="holds code, which is never run"):
        load_published(folder, backbone)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["hydra_lm_head.pt", "hydra_lm_head.safetensors"])
def test_damaged_weights_are_refused(name, backbone, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(HYDRA_CONFIG))
    random = Random(0)
    for content in (b"", b"{}", b"\x80", random.randbytes(100), random.randbytes(5000)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read as plain tensors"):
            load_published(tmp_path, backbone)


def test_truncated_weights_are_refused(backbone, states, tmp_path):
    folder = write(tmp_path, "hydra", states["hydra"])
    content = (folder / "hydra_lm_head.pt").read_bytes()
    for size in (1, 100, len(content) // 2, len(content) - 1):
        (folder / "hydra_lm_head.pt").write_bytes(content[:size])
        with pytest.raises(ValueError, match="cannot be read as plain tensors"):
            load_published(folder, backbone)


@pytest.mark.parametrize("state", [[1], {"a": 1}, {3: torch.ones(1)}, {"a": torch.ones(1, dtype=torch.int8)}])
def test_anything_but_a_state_dict_is_refused(state, backbone, tmp_path):
    with pytest.raises(ValueError, match="is not a state dict"):
        load_published(write(tmp_path, "hydra", state), backbone)


def test_they_can_be_stored_in_our_format(backbone, states, tmp_path):
    heads = load_published(write(tmp_path, "hydra", states["hydra"]), backbone).float()
    save_heads(heads, tmp_path / "h.safetensors", dtype=torch.float32)
    loaded = load_heads(tmp_path / "h.safetensors")
    assert loaded.config == heads.config
    assert loaded.config.published
    for one in (heads, loaded):
        one.attach(backbone)
    x = torch.randn(2, loaded.inputs(3) * H)
    assert torch.equal(loaded.logits(3, x), heads.logits(3, x))
