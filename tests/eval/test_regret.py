import dataclasses

import pytest

from entmtp_env.replay.oracle import solve
from entmtp_env.replay.recording import Recording
from entmtp_env.replay.vector_env import ReplayVectorEnv
from eval.regret import replayed_regret
from eval.stored import load_results
from tests.eval.tiny_results import tiny_results
from tests.recordings import COSTS, record_tiny, seconds


@pytest.fixture(scope="module")
def recording(tiny_files, tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "tiny.npz"
    record_tiny(tiny_files, cap=24).save(path)
    return str(path)


@pytest.fixture
def results(tiny_files):
    return load_results(tiny_results(tiny_files))


@pytest.fixture
def policies(results):
    (policies,) = results.sets().values()
    return policies


def test_the_schedules_are_priced_against_the_best_one(recording, results, policies):
    table = replayed_regret(policies, [recording], COSTS, results.settings)
    assert (table.texts, table.approximate) == (3, False)
    assert [row.policy for row in table.rows[1:]] == list(policies)
    envs = ReplayVectorEnv(3, recording=recording, costs=COSTS, max_new_tokens=24, capacity=256)
    oracle = solve(envs.tables)
    index = {text.prompt_id: i for i, text in enumerate(envs.prompts)}
    for row, runs in zip(table.rows[1:], policies.values(), strict=True):
        spent = best = 0.0
        for own in runs:
            text = index[own.run.episode.prompt_id]
            best += oracle.seconds[text]
            context = envs.prompts[text].prompt_tokens
            for step in own.run.episode.steps:
                spent += seconds(envs.bank[step.action], context)
                context += step.tokens
        assert row.regret.value == pytest.approx(spent / best)
        assert row.regret.value >= 1
        assert row.departing == 0


def test_the_best_single_tree_comes_first(recording, results, policies):
    first, *rows = replayed_regret(policies, [recording], COSTS, results.settings).rows
    assert first.policy.startswith("best single tree: ")
    single = [row for row in rows if row.policy != "ladder"]
    assert first.regret.value <= min(row.regret.value for row in single) + 1e-12


def test_texts_unlike_the_recorded_are_counted(recording, results, policies, tmp_path):
    original = Recording.load(recording)
    tokens = original.tokens.copy()
    # The first token of every text is another one.
    tokens[original.offsets[:-1]] += 1
    path = str(tmp_path / "other.npz")
    dataclasses.replace(original, tokens=tokens).save(path)
    table = replayed_regret(policies, [path], COSTS, results.settings)
    assert [row.departing for row in table.rows] == [0, 3, 3, 3, 3]


def test_prompts_that_are_not_recorded_are_left_out(recording, results, policies, tmp_path):
    original = Recording.load(recording)
    first = next(iter(policies.values()))[0].run.episode.prompt_id
    keep = [i for i, text in enumerate(original.texts) if text.prompt_id == first]
    one, none = (str(tmp_path / name) for name in ("one.npz", "none.npz"))
    original.select(keep).save(one)
    used = {own.run.episode.prompt_id for own in next(iter(policies.values()))}
    others = [i for i, text in enumerate(original.texts) if text.prompt_id not in used]
    original.select(others).save(none)
    assert replayed_regret(policies, [one], COSTS, results.settings).texts == 1
    assert replayed_regret(policies, [none], COSTS, results.settings) is None


def test_a_cache_that_would_cut_texts_is_refused(recording, results, policies):
    with pytest.raises(ValueError, match=r"do not fit into 80 KV rows.*raise the capacity"):
        replayed_regret(policies, [recording], COSTS, {**results.settings, "capacity": 80})


def test_a_text_may_be_known_by_its_characters_only(recording, results, policies, tiny_files, tmp_path):
    bare = {
        name: [dataclasses.replace(own, run=dataclasses.replace(own.run, details=[])) for own in runs]
        for name, runs in policies.items()
    }
    table = replayed_regret(bare, [recording], COSTS, results.settings)
    assert [row.departing for row in table.rows] == [0] * 5


def test_a_row_with_trees_of_another_bank_is_left_out(recording, results, policies):
    def renamed(own):
        steps = tuple(dataclasses.replace(step, tree="medusa") for step in own.run.episode.steps)
        episode = dataclasses.replace(own.run.episode, steps=steps)
        return dataclasses.replace(own, run=dataclasses.replace(own.run, episode=episode))

    others = {**policies, "ladder": [renamed(own) for own in policies["ladder"]]}
    whole = replayed_regret(policies, [recording], COSTS, results.settings)
    table = replayed_regret(others, [recording], COSTS, results.settings)
    assert list(table.rows) == [row for row in whole.rows if row.policy != "ladder"]
