"""``docs/ENVIRONMENTS.md``: what it says environments observe, return and end with is what they do."""

import itertools
import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import entmtp_env  # noqa: F401
from entmtp_env.decoding.stages import default_stages
from entmtp_env.replay.tables import STOP_REASONS
from entmtp_env.rewards import _REWARDS
from tests.recordings import BANK, random_recording, saved_settings
from tests.staged import staged_settings

TEXT = (Path(__file__).parents[1] / "docs" / "ENVIRONMENTS.md").read_text()


def tables(section):
    """The tables of a section, each as rows of cells without the two of its head."""
    (part,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"(?:^\|.*\n)+", part, flags=re.MULTILINE)
    rows = [[re.split(r" *\| *", line.strip("| ")) for line in block.splitlines()] for block in blocks]
    return [block[2:] for block in rows]


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


def expanded(name, **numbers):
    """``a_{1,2}_{1..D}`` as the names it stands for, the first brace slowest."""

    def choices(brace):
        first, dots, last = brace.partition("..")
        if not dots:
            return [str(n) for n in numbers[brace]] if brace in numbers else brace.split(",")
        end = numbers[last] if last in numbers else numbers[last.removesuffix("-1")] - 1
        return [str(n) for n in range(int(first), end + 1)]

    parts = re.split(r"\{([^}]*)\}", name)
    options = [choices(part) if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*options)]


def names(rows, column, **numbers):
    return [own for row in rows for name in quoted(row[column]) for own in expanded(name, **numbers)]


def test_every_id_is_described():
    ids = {id_ for id_, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("entmtp_env.")}
    assert set(re.findall(r"^\| `(EntMTP/[\w-]+)`", TEXT, flags=re.MULTILINE)) == ids


def test_features_are_those_of_the_environments():
    table, own = tables("Observation")
    env = gymnasium.make("EntMTP/Live-v0", probe="union").unwrapped
    D, K = env.bank.depth, len(env.bank)
    assert tuple(names(table, 1, D=D, K=K)) == env.feature_names
    groups = [row[0] for row in table]
    assert tuple(dict.fromkeys(groups)) == env.feature_set.groups
    plain = gymnasium.make("EntMTP/Live-v0").unwrapped
    said = re.search(r"D = (\d+), K = (\d+) and, without a probe, (\d+) features", re.sub(r"\s+", " ", TEXT))
    assert tuple(map(int, said.groups())) == (D, K, len(plain.feature_names))

    stages = default_stages()
    kept = [row for row in table if row[0] in ("base", "entropy", "acceptance", "position", "token")]
    staged = gymnasium.make("EntMTP/Staged-v0").unwrapped
    expected = names(kept, 1) + names(own, 0, D=stages.depth, n=stages.budgets[1:])
    assert tuple(expected) == staged.feature_names

    lookup = gymnasium.make("EntMTP/PromptLookup-v0", max_draft=6).unwrapped
    assert tuple(names(kept, 1)) == lookup.feature_names
    assert lookup.action_space.n == 7


def test_rewards_are_those_there_are():
    (rows,) = tables("Reward")
    assert [quoted(row[0])[0].partition(":")[0] for row in rows] == list(_REWARDS)


def test_info_has_the_keys_that_are_described(tiny_files, tmp_path):
    (rows,) = tables("Info")
    keys = [quoted(row[0])[0] for row in rows]
    recording = random_recording(np.random.default_rng(0))
    for folder in ("bank", "staged"):
        (tmp_path / folder).mkdir()
    replays = {
        "EntMTP/Replay-v0": saved_settings(tmp_path / "bank", recording),
        "EntMTP/StagedReplay-v0": staged_settings(tmp_path / "staged"),
    }
    live = ("EntMTP/Live-v0", "EntMTP/Staged-v0", "EntMTP/PromptLookup-v0")
    for id_, settings in {**replays, **dict.fromkeys(live, tiny_files.kwargs)}.items():
        env = gymnasium.make(id_, **settings)
        expected = keys if "Staged" in id_ else keys[:-1]
        assert list(env.reset(seed=0)[1]) == expected, id_
        assert list(env.step(1)[4]) == expected, id_


def test_finish_reasons_and_autoreset_modes_are_those_there_are():
    endings, modes = tables("Beginning and end")[0], tables("Many at once")[0]
    reasons = [quoted(row[0])[0] for row in endings]
    assert reasons == [*STOP_REASONS[1:], "error: …"]
    assert [quoted(row[1]) for row in endings] == [["terminated"]] + [["truncated"]] * 3
    said = {quoted(row[0])[0].strip('"') for row in modes}
    assert said == {mode.value for mode in gymnasium.vector.AutoresetMode}


@pytest.mark.parametrize("mode", [None, "sync"])
def test_an_autoreset_mode_is_passed_as_it_says(tmp_path, mode):
    settings = saved_settings(tmp_path, random_recording(np.random.default_rng(0), texts=5, longest=4))
    same_step = {"autoreset_mode": "SameStep"}
    where = same_step if mode is None else {"vector_kwargs": same_step}
    envs = gymnasium.make_vec("EntMTP/Replay-v0", 3, mode, **where, **settings)
    envs.reset(seed=0)
    while True:
        *_, terminated, truncated, info = envs.step(np.full(3, len(BANK) - 1))
        if (ended := terminated | truncated).any():
            break
    np.testing.assert_array_equal(info["_final_info"], ended)
    assert all(info["final_info"]["finish_reason"][ended])
    assert all(observation is not None for observation in info["final_obs"][ended])
    if mode is None:
        with pytest.raises(gymnasium.error.Error, match="vector_kwargs"):
            gymnasium.make_vec("EntMTP/Replay-v0", 3, vector_kwargs=same_step, **settings)
