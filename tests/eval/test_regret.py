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


@pytest.fixture
def regret(results, policies):
    """The table of some policies, by default those of the results, on a recording."""

    def table(recording, own=policies, environments=None, **settings):
        if environments is None:
            (environments,) = (own.values() for own in results.manifest["environments"].values())
        return replayed_regret(own, [recording], COSTS, {**results.settings, **settings}, environments)

    return table


def test_the_schedules_are_priced_against_the_best_one(recording, policies, regret):
    table = regret(recording)
    assert (table.texts, table.same, table.approximate) == (3, 3, False)
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


def test_the_best_single_tree_comes_first(recording, regret):
    first, *rows = regret(recording).rows
    assert first.policy.startswith("best single tree: ")
    single = [row for row in rows if row.policy != "ladder"]
    assert first.regret.value <= min(row.regret.value for row in single) + 1e-12


def other_tokens(recording, texts, path):
    """A recording in which the first token of some texts is another one."""
    original = Recording.load(recording)
    tokens = original.tokens.copy()
    tokens[original.offsets[:-1][texts]] += 1
    dataclasses.replace(original, tokens=tokens).save(path)
    return str(path)


def places(recording, policies):
    """Which recorded texts the comparison has, in its order."""
    index = {text.prompt_id: i for i, text in enumerate(Recording.load(recording).texts)}
    return [index[own.run.episode.prompt_id] for own in next(iter(policies.values()))]


def test_only_texts_that_came_out_as_recorded_are_priced(recording, policies, regret, tmp_path):
    first, *others = places(recording, policies)
    table = regret(other_tokens(recording, [first], tmp_path / "other.npz"))
    Recording.load(recording).select(others).save(tmp_path / "without.npz")
    without = regret(str(tmp_path / "without.npz"))
    assert (table.texts, table.same, without.texts, without.same) == (3, 2, 2, 2)
    assert [row.departing for row in table.rows] == [0, 1, 1, 1, 1]
    assert [(row.policy, row.regret) for row in table.rows] == [
        (row.policy, row.regret) for row in without.rows
    ]


def test_a_text_that_ends_early_is_not_padded(recording, policies, regret, tmp_path):
    """One policy's text lacks its last step, so that its schedule is too short for the recorded one."""

    def shorter(own):
        episode = dataclasses.replace(own.run.episode, steps=own.run.episode.steps[:-1])
        run = dataclasses.replace(own.run, episode=episode, details=own.run.details[:-1])
        return dataclasses.replace(own, run=run)

    whole, *rest = policies["ladder"]
    table = regret(recording, {**policies, "ladder": [shorter(whole), *rest]})
    Recording.load(recording).select(places(recording, policies)[1:]).save(tmp_path / "without.npz")
    without = regret(str(tmp_path / "without.npz"))
    assert [row.departing for row in table.rows] == [0, 0, 0, 0, 1]
    assert [row.regret for row in table.rows] == [row.regret for row in without.rows]


def test_without_a_text_in_common_nothing_is_priced(recording, policies, regret, tmp_path):
    table = regret(other_tokens(recording, slice(None), tmp_path / "other.npz"))
    assert (table.texts, table.same) == (3, 0)
    assert [(row.policy, row.regret, row.departing) for row in table.rows] == [
        (policy, None, 3) for policy in policies
    ]


@pytest.mark.parametrize("key", ["acceptance", "model_fingerprint", "heads_fingerprint"])
def test_a_recording_of_something_else_is_refused(recording, results, regret, key):
    (environments,) = results.manifest["environments"].values()
    others = [own | {key: "other"} for own in environments.values()]
    with pytest.raises(ValueError, match=rf"{key} is .* in the recording and 'other' in the comparison"):
        regret(recording, environments=others)


def test_prompts_that_are_not_recorded_are_left_out(recording, policies, regret, tmp_path):
    original = Recording.load(recording)
    first = next(iter(policies.values()))[0].run.episode.prompt_id
    keep = [i for i, text in enumerate(original.texts) if text.prompt_id == first]
    one, none = (str(tmp_path / name) for name in ("one.npz", "none.npz"))
    original.select(keep).save(one)
    used = {own.run.episode.prompt_id for own in next(iter(policies.values()))}
    others = [i for i, text in enumerate(original.texts) if text.prompt_id not in used]
    original.select(others).save(none)
    assert regret(one).texts == 1
    assert regret(none) is None


def test_a_cache_that_would_cut_texts_is_refused(recording, regret):
    with pytest.raises(ValueError, match=r"do not fit into 80 KV rows.*raise the capacity"):
        regret(recording, capacity=80)


def test_a_text_may_be_known_by_its_characters_only(recording, policies, regret):
    bare = {
        name: [dataclasses.replace(own, run=dataclasses.replace(own.run, details=[])) for own in runs]
        for name, runs in policies.items()
    }
    table = regret(recording, bare)
    assert [row.departing for row in table.rows] == [0] * 5


def test_a_row_with_trees_of_another_bank_is_left_out(recording, policies, regret):
    def renamed(own):
        steps = tuple(dataclasses.replace(step, tree="medusa") for step in own.run.episode.steps)
        episode = dataclasses.replace(own.run.episode, steps=steps)
        return dataclasses.replace(own, run=dataclasses.replace(own.run, episode=episode))

    others = {**policies, "ladder": [renamed(own) for own in policies["ladder"]]}
    whole, table = regret(recording), regret(recording, others)
    assert list(table.rows) == [row for row in whole.rows if row.policy != "ladder"]
