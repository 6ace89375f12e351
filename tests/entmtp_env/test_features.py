import pickle

import numpy as np
import pytest

from entmtp_env.features import GROUPS, FeatureSet, root_shape

SIZES = (0, 3, 7)


def test_names_follow_the_table():
    assert FeatureSet(2, SIZES, probe="union").names == (
        *("base_top1", "base_entropy"),
        *("entropy_ema_4", "entropy_ema_8", "entropy_ema_12", "entropy_ema_16"),
        *("entropy_ema_24", "entropy_ema_32", "entropy_ema_64"),
        *("path_value_1", "path_value_2", "head_entropy_1", "head_entropy_2"),
        *("best_path_value", "deep_path_value", "expected_accept"),
        *("accept_last", "accept_ema_4", "accept_ema_16", "accept_mean_8", "accept_min_8", "accept_max_8"),
        *("head_agreement_8", "generated_fraction", "context_fraction", "last_tree"),
        *("root_is_digit", "root_is_space", "root_is_newline", "root_is_punctuation", "root_is_wordpiece"),
        *("tree_value_0", "tree_value_1", "tree_value_2"),
    )


def test_bounds_are_one_but_for_tree_values():
    features = FeatureSet(2, SIZES, probe="union")
    assert features.low.dtype == features.high.dtype == np.float32
    assert not features.low.any()
    assert features.high[-3:].tolist() == [1, 3, 7]  # the empty tree's bound must differ from its low
    assert (features.high[:-3] == 1).all()


def test_the_groups_partition_the_vector_in_one_order():
    whole = FeatureSet(3, SIZES, probe="union")
    parts = [FeatureSet(3, SIZES, group, probe="union").names for group in GROUPS]
    assert whole.names == sum(parts, ())
    assert FeatureSet(3, SIZES, "heads,base").names == FeatureSet(3, SIZES, ["base", "heads"]).names


def test_tree_values_exist_with_the_union_probe_only():
    assert FeatureSet(2, SIZES).groups == FeatureSet(2, SIZES, probe="chain").groups == GROUPS[:-1]
    with pytest.raises(ValueError, match="'trees' needs probe='union'"):
        FeatureSet(2, SIZES, ["base", "trees"], probe="chain")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": ["base", "heds"]}, "'heds'.*base, entropy, heads, acceptance, position, token"),
        ({"groups": []}, "one or more of base"),
        ({"probe": "full"}, "'full'.*none, first, chain, union"),
        ({"depth": -1}, "depth >= 0"),
        ({"tree_sizes": ()}, "one size per tree"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        FeatureSet(**{"depth": 2, "tree_sizes": SIZES} | arguments)


def test_fingerprint_tells_names_depth_and_probe_apart():
    sets = [
        FeatureSet(2, SIZES),
        FeatureSet(3, SIZES),
        FeatureSet(2, SIZES, ["base"]),
        FeatureSet(3, SIZES, ["base"]),
        FeatureSet(2, SIZES, probe="chain"),
        FeatureSet(2, SIZES, probe="union"),
    ]
    assert len({features.fingerprint for features in sets}) == len(sets)
    assert pickle.loads(pickle.dumps(sets[0])).fingerprint == FeatureSet(2, SIZES).fingerprint


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("", ""),
        (" ", "space"),
        (" the", "space"),
        ("ing", "wordpiece"),
        ("été", "wordpiece"),
        ("7", "digit"),
        (" x2", "digit space"),
        ("v2", "digit wordpiece"),
        ("\n\n", "newline"),
        ("a\n", "newline wordpiece"),
        (");\n", "newline punctuation"),
        (" +=", "space punctuation"),
        ("...", "punctuation"),
        (",x", ""),
        ("_", "punctuation"),
        ("€", "punctuation"),
        ("\t", ""),
    ],
)
def test_root_shape(text, shapes):
    names = np.array(["digit", "space", "newline", "punctuation", "wordpiece"])
    assert names[np.array(root_shape(text))].tolist() == shapes.split()
