import dataclasses
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.env import ReplayEnv
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.staged_env import StagedReplayEnv
from entmtp_env.replay.staged_oracle import solve_staged
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.trees import DraftTree, TopologyBank, default_bank
from eval.losslessness import Losslessness, losslessness
from eval.replay import Replay, replay
from eval.report import Report, report
from eval.validate import Validate, validate
from policies import SchedulerPolicy, make_policy, run_episode
from policies.learned import Learned
from policies.staged_learned import StagedLearned
from tests.policies.test_network import make_network
from tests.recordings import random_recording
from tests.staged import staged_settings

COSTS = "analytic:base=0.02,node=0.0005,depth=0.001"


class Broken(SchedulerPolicy):
    def act(self, observations, memory):
        raise ZeroDivisionError


@pytest.fixture
def save(tmp_path):
    def build(name="r", seed=0, approximate=False, **changes):
        sizes = {"texts": 8, "depth": 4, "longest": 60, "cap": 60} | changes
        recording = random_recording(np.random.default_rng(seed), **sizes)
        manifest = recording.manifest | {"approximate": approximate}
        path = tmp_path / f"{name}.npz"
        dataclasses.replace(recording, manifest=manifest).save(path)
        return str(path)

    return build


@pytest.fixture
def config(save, tmp_path):
    base = Replay(
        recordings=(save(),),
        policies=("threshold", "random"),
        costs=COSTS,
        bootstrap_samples=200,
        out=tmp_path / "results",
    )
    return lambda **changes: dataclasses.replace(base, **changes)


def solved(name, bank=None, cap=None):
    return solve(ReplayTables.build(load_recording(name), load_costs(COSTS), bank or default_bank(), cap))


def rows_of(replayed):
    return {row.summary.policy: row for row in replayed.rows}


def test_single_trees_take_what_the_formula_says(config):
    settings = config(policies=("static:chain-2",))
    rows = rows_of(replay(settings)[settings.recordings[0]])
    tokens = int(load_recording(settings.recordings[0]).lengths.sum())
    for policy, seconds in (
        ("autoregressive", 0.02),
        ("static:chain-2", 0.02 + 2 * 0.0005 + 2 * 0.001),
        ("hydra-default", 0.02 + 63 * 0.0005 + 4 * 0.001),
    ):
        summary = rows[policy].summary
        assert summary.tokens == tokens
        assert summary.seconds == pytest.approx(summary.steps * seconds)
        assert summary.policy_share == 0 < summary.policy_microseconds
        assert summary.switch_rate == 0
        assert summary.rho.value == pytest.approx(0.02 * tokens / summary.seconds)
        assert summary.same_texts == summary.prompts == 8
    assert rows["autoregressive"].summary.tau == 1


def test_the_oracle_and_the_best_tree_are_those_of_the_solution(config):
    settings = config(max_new_tokens=37)
    (name,) = settings.recordings
    replayed = replay(settings)[name]
    oracle, rows = solved(name, cap=37), rows_of(replayed)
    fastest = min(range(len(default_bank())), key=lambda k: oracle.static_seconds[k].sum())
    assert replayed.best_static == f"static:{default_bank().names[fastest]}"
    assert list(rows) == [
        "autoregressive",
        "hydra-default",
        replayed.best_static,
        "threshold",
        "random",
        "oracle",
    ]
    assert rows["oracle"].summary.seconds == pytest.approx(oracle.seconds.sum())
    assert rows["oracle"].summary.versus_baseline.value == pytest.approx(oracle.headroom)
    assert rows[replayed.best_static].summary.versus_baseline.value == 1
    for row in replayed.rows:
        assert row.regret.value == pytest.approx(row.summary.seconds / oracle.seconds.sum())
        assert 1 <= row.regret.low <= row.regret.value <= row.regret.high


def test_every_text_under_every_policy_is_on_disk(config, save):
    """Each as the plain environment decodes it."""
    names = (save("a"), save("b", seed=1))
    settings = config(recordings=names, max_new_tokens=37)
    sets = replay(settings)
    lines = [json.loads(line) for line in (settings.out / "episodes.jsonl").read_text().splitlines()]
    for name, own in sets.items():
        env = gymnasium.make("EntMTP/Replay-v0", recording=name, costs=COSTS, max_new_tokens=37)
        for summary in (row.summary for row in own.rows):
            mine = [line for line in lines if (line["prompts"], line["policy"]) == (name, summary.policy)]
            assert [line["prompt_id"] for line in mine] == [t.prompt_id for t in load_recording(name).texts]
            policy = make_policy(summary.policy, env)
            for line in mine:
                episode = run_episode(env, policy, line["prompt_id"], 0)
                assert line["seconds"] == pytest.approx(episode.seconds)
                assert line["policy_seconds"] == 0
                for key in ("tokens", "prefill_seconds", "finish_reason", "text"):
                    assert line[key] == getattr(episode, key)
            for key in ("tokens", "steps", "seconds", "prefill_seconds"):
                assert sum(line[key] for line in mine) == pytest.approx(getattr(summary, key))
    assert len(lines) == sum(row.summary.prompts for own in sets.values() for row in own.rows)


@pytest.mark.parametrize(
    ("command", "config_class"), [(report, Report), (validate, Validate), (losslessness, Losslessness)]
)
def test_what_reads_steps_says_that_a_replay_has_none(config, command, config_class):
    settings = config(policies=())
    replay(settings)
    with pytest.raises(FileNotFoundError, match=r"has no steps\.jsonl; .*'python -m eval compare' wrote"):
        command(config_class(settings.out))


def test_intervals_are_over_prompts(config):
    settings = config(policies=(), bootstrap_samples=4000)
    (name,) = settings.recordings
    replayed = replay(settings)[name]
    oracle, best = solved(name), rows_of(replayed)[replayed.best_static]
    chosen = np.random.default_rng(1).integers(8, size=(4000, 8))
    static = oracle.static_seconds[oracle.best_static]
    sums = static[chosen].sum(1) / oracle.seconds[chosen].sum(1)
    assert (best.regret.low, best.regret.high) == pytest.approx(np.percentile(sums, (2.5, 97.5)), abs=0.01)


def test_tables_and_files(config, save, capsys):
    names = (save("one"), save("two", seed=2, approximate=True))
    settings = config(recordings=(*names, names[0]))
    sets = replay(settings)
    assert tuple(sets) == names
    out = capsys.readouterr().out
    text = " ".join(out.split())
    assert max(map(len, out.splitlines()[:-1])) <= 100
    assert "…" not in out
    assert f"{Path(names[0]).name}: 8 recorded texts" in text
    assert f"{Path(names[1]).name} (approximate replay): 8 recorded texts" in text
    for replayed in sets.values():
        rows = rows_of(replayed)
        for row in (rows[replayed.best_static], rows["hydra-default"]):
            assert f"{row.regret.value:.3f}" in text.partition("headroom")[2]
    summary = json.loads((settings.out / "summary.json").read_text())
    assert summary["sets"] == json.loads(json.dumps({n: dataclasses.asdict(own) for n, own in sets.items()}))
    assert [own["approximate"] for own in summary["sets"].values()] == [False, True]
    manifest = json.loads((settings.out / "manifest.json").read_text())
    assert [env["approximate"] for env in manifest["environments"].values()] == [False, True]
    assert manifest["costs"]["analytic"]["base"] == 0.02
    assert {"command", "machine", "libraries", "time"} <= manifest.keys()


def test_a_bank_without_hydras_tree(config, tmp_path, capsys):
    bank = TopologyBank([DraftTree.chain(1), DraftTree.chain(3)])
    bank.save(tmp_path / "bank.json")
    replayed = replay(config(bank=str(tmp_path / "bank.json"), policies=()))
    (own,) = replayed.values()
    assert "hydra-default" not in rows_of(own)
    assert "–" in capsys.readouterr().out


@pytest.mark.parametrize(("base", "best"), [("base=1", "hydra-default"), ("base=1,node=9", "autoregressive")])
def test_the_best_tree_has_one_row_only(config, base, best):
    # Where nodes are free the largest tree is best, and where they cost most, none.
    settings = config(costs=f"analytic:{base}", policies=("oracle",))
    (own,) = replay(settings).values()
    assert own.best_static == best
    assert list(rows_of(own)) == ["autoregressive", "hydra-default", "oracle"]


def test_half_a_recording(config, save):
    settings = config(recordings=(f"{save()}:evaluation",))
    assert [row.summary.prompts for row in replay(settings)[settings.recordings[0]].rows] == [4] * 6


def test_a_cache_that_would_cut_texts_is_refused(config):
    settings = config(capacity=100)
    with pytest.raises(ValueError, match=r"do not fit into 100 KV rows.*raise the capacity"):
        replay(settings)
    assert not settings.out.exists()


def test_a_policy_that_fails_is_named(config):
    with pytest.raises(
        RuntimeError, match=r"'tests.eval.test_replay:Broken' failed on the recording"
    ) as info:
        replay(config(policies=("tests.eval.test_replay:Broken",)))
    assert isinstance(info.value.__cause__, ZeroDivisionError)


def test_results_are_not_overwritten(config):
    settings = config()
    replay(settings)
    with pytest.raises(FileExistsError, match="--overwrite"):
        replay(settings)
    replay(dataclasses.replace(settings, overwrite=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bootstrap_samples": 0}, "bootstrap_samples=0"),
        ({"seed": -1}, "seed=-1"),
        ({"recordings": ()}, "no recording"),
        ({"policies": ("nosuch",)}, "policy 'nosuch': no policy 'nosuch'"),
        ({"max_new_tokens": 61}, "max_new_tokens=61 must be 1 to 60"),
        ({"costs": "analytic:node=1"}, "analytic:base=<seconds>"),
    ],
)
def test_a_mistake_leaves_nothing_behind(config, changes, message):
    settings = config(**changes)
    with pytest.raises(ValueError, match=message):
        replay(settings)
    assert not settings.out.exists()


@pytest.fixture
def staged(config, tmp_path):
    """A comparison of policies of a bank and of staged ones on a recording with staged drafts."""
    settings = staged_settings(tmp_path, seed=2, texts=8, depth=4, longest=40, cap=40)
    TopologyBank([DraftTree.chain(1), DraftTree.chain(3)]).save(tmp_path / "bank.json")
    return config(
        recordings=(settings["recording"],),
        policies=("threshold", "eagle2", "staged-threshold"),
        costs=settings["costs"],
        bank=str(tmp_path / "bank.json"),
        drafts=(settings["drafts"],),
        stages=settings["stages"],
    ), settings


def test_staged_policies_stand_beside_those_of_the_bank(staged, capsys):
    config, settings = staged
    (replayed,) = replay(config).values()
    rows, env = rows_of(replayed), StagedReplayEnv(**settings)
    least = solve_staged(env).seconds.sum()
    assert list(rows)[-5:] == ["threshold", "eagle2", "staged-threshold", "oracle", "staged-oracle"]
    assert rows["staged-oracle"].summary.seconds == pytest.approx(least)
    static, bank = rows[replayed.best_static].summary.seconds, rows["oracle"].summary.seconds
    for spec, row in rows.items():
        in_stages = spec in ("eagle2", "staged-threshold", "staged-oracle")
        oracle = least if in_stages else bank
        assert row.regret.value == pytest.approx(row.summary.seconds / oracle)
        assert row.gap == pytest.approx((static - row.summary.seconds) / (static - oracle))
        if in_stages and spec != "staged-oracle":
            episodes = [run_episode(env, make_policy(spec, env), t.prompt_id, 0) for t in env.prompts]
            assert row.summary.seconds == pytest.approx(sum(episode.seconds for episode in episodes))
            assert row.summary.steps == sum(len(episode.steps) for episode in episodes)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[:-1])) <= 100
    assert f"{rows['staged-oracle'].summary.versus_baseline.value:.3f}" in out.partition("headroom")[2]


def test_a_policy_observes_what_its_file_was_made_with(staged, tmp_path):
    config, settings = staged
    shared = {"costs": config.costs, "max_new_tokens": 40}
    envs = {
        Learned: ReplayEnv(settings["recording"], bank=config.bank, features="heads", **shared),
        StagedLearned: StagedReplayEnv(**settings, features="acceptance,position"),
    }
    expected, specs = {}, []
    for kind, env in envs.items():
        policy = kind(env, make_network(sizes=(len(env.feature_names), len(env.bank))))
        policy.save(tmp_path / f"{kind.name}.npz")
        specs.append(f"{kind.name}@{tmp_path / kind.name}.npz")
        expected[specs[-1]] = [run_episode(env, policy, text.prompt_id, 0).seconds for text in env.prompts]
    (replayed,) = replay(dataclasses.replace(config, policies=tuple(specs), max_new_tokens=40)).values()
    for spec, seconds in expected.items():
        assert rows_of(replayed)[spec].summary.seconds == pytest.approx(sum(seconds))


def test_staged_policies_need_drafts(staged):
    config, _ = staged
    with pytest.raises(ValueError, match="eagle2, staged-threshold: staged policies need drafts"):
        replay(dataclasses.replace(config, drafts=(), stages="default"))
    with pytest.raises(ValueError, match=r"stages=.* would have no effect without drafts"):
        replay(dataclasses.replace(config, drafts=()))


@pytest.mark.parametrize(
    ("costs", "used"), [("auto", "analytic:auto"), ("interpolated:auto", "interpolated:auto")]
)
def test_with_stages_a_measured_table_becomes_its_formula(staged, costs, used):
    config, _ = staged
    replay(dataclasses.replace(config, costs=costs, policies=("eagle2",)))
    manifest = json.loads((config.out / "manifest.json").read_text())
    assert manifest["costs"] == load_costs(used).manifest | {"name": load_costs(used).name}


@pytest.mark.parametrize("probe", ["none", "chain"])
def test_in_stages_only_costs_measured_without_a_probe_serve(staged, tmp_path, probe):
    config, _ = staged
    table = load_costs("auto")
    dataclasses.replace(table, manifest={**table.manifest, "probe": "chain"}).save(tmp_path / "chain.json")
    with pytest.raises(ValueError, match="measured with probe='chain', not 'none'"):
        replay(dataclasses.replace(config, costs=str(tmp_path / "chain.json"), probe=probe))


def test_a_cache_that_would_cut_staged_texts_is_refused(staged):
    """The largest budget takes more rows than the trees of the bank."""
    config, settings = staged
    texts = load_recording(settings["recording"])
    needed = max(text.prompt_tokens + n for text, n in zip(texts.texts, texts.lengths, strict=True))
    with pytest.raises(ValueError, match=rf"tree of 12 nodes do not fit into {needed + 5} KV rows"):
        replay(dataclasses.replace(config, capacity=int(needed) + 5))
