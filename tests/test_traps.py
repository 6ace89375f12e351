"""Mistakes that others made in tree decoding and scheduling, and the tests that guard against them."""

from importlib import import_module

import pytest

DECODER = "tests.entmtp_env.decoding.test_decoder"
BACKBONE = "tests.entmtp_env.decoding.test_backbone"
LIVE = "tests.entmtp_env.test_live"

TRAPS = {
    "a padded retrieve index reads a real node": (DECODER, "test_gaps_between_siblings_cannot_be_expressed"),
    "a rank beyond the candidates reads another head's token": (
        DECODER,
        "test_trees_that_cannot_be_drafted_are_refused",
    ),
    "trees deeper than the heads": (LIVE, "test_a_bank_deeper_than_the_heads_is_refused"),
    "sibling ranks with gaps": (DECODER, "test_gaps_between_siblings_cannot_be_expressed"),
    "a batch is silently wrong": (DECODER, "test_bad_prompts_are_refused"),
    "the KV length outlives its text": (DECODER, "test_a_start_after_an_unfinished_text_is_fresh"),
    "the tree mask outlives its pass": (BACKBONE, "test_a_plain_pass_after_a_tree_pass_equals_a_fresh_one"),
    "decoding runs past EOS": (DECODER, "test_eos_inside_a_block_ends_the_text_at_eos"),
    "the last block overshoots the cap": (DECODER, "test_the_token_cap_is_exact"),
    "accept counts do not add up": (LIVE, "test_accounting"),
    "a commit reallocates the cache": (
        "tests.entmtp_env.decoding.test_kv_cache",
        "test_keep_works_in_place",
    ),
    "key-value heads counted as query heads": (BACKBONE, "test_grouped_query_heads_size_the_cache"),
    "a missing checkpoint key is ignored": (
        "tests.entmtp_env.decoding.test_checkpoint",
        "test_wrong_contents_are_refused",
    ),
    "the reference library's cache and mask arguments changed": (
        BACKBONE,
        "test_continuation_in_chunks_equals_transformers",
    ),
    "NumPy scalars in step returns": (LIVE, "test_types_bounds_and_keys_of_everything_returned"),
    "aliased observations": (
        "tests.entmtp_env.test_tracker",
        "test_observations_are_fresh_arrays",
    ),
    "a model in the arguments of subprocesses": (
        LIVE,
        "test_stable_baselines3_subprocesses_load_their_own_model",
    ),
    "autoreset counted as decoding": (LIVE, "test_autoreset_steps_are_no_decode_steps"),
    "first-use costs are timed": (
        "tests.eval.test_compare",
        "test_everything_is_warm_before_the_first_episode",
    ),
    "policies compared on different prompts or token counts": (
        "tests.eval.test_interleave",
        "test_every_policy_runs_every_prompt_with_its_seed",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_test_guards_against_it(trap):
    module, name = TRAPS[trap]
    assert callable(getattr(import_module(module), name))
