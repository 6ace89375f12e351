import dataclasses
import json

import numpy as np
import pytest

from entmtp_env.decoding.ranks import NO_TOKEN
from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.env import ReplayEnv
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.replay.vector_env import ReplayVectorEnv
from entmtp_env.trees import DraftTree, TopologyBank, load_bank
from policies import PolicyFile, make_policy, run_episode
from policies.ema_ladder import EmaLadder
from policies.ladder import Ladder
from policies.lockstep import replay
from policies.static import Static
from policies.threshold import Threshold
from tests.recordings import random_recording, saved_settings
from train.calibrate import Calibrate, calibrate
from train.calibrate_replay import ReplayBench

BLOCKS, EASY, HARD = 6, 0.75, 0.25
BASE, NODE = 1.0, 0.5


def blocky_recording():
    """Texts of blocks: a token of which p₀ is high, with three drafts to follow, then one without any."""
    recording = random_recording(np.random.default_rng(0), texts=40, longest=200, cap=200)
    keep = [i for i, n in enumerate(recording.lengths) if n >= 5 * BLOCKS][:2]
    recording = recording.select(keep)
    length = 5 * BLOCKS
    # Two texts of whole blocks; the last row is the token behind the end.
    ranks = np.array([[0, 0, 0], [0, 0, 9], [0, 9, 9], [9, 9, 9], [9, 9, 9]] * BLOCKS + [[9, 9, 9]])
    ranks[np.arange(length + 1)[:, None] + np.arange(1, 4) > length] = NO_TOKEN
    top1 = np.array([EASY, EASY, EASY, EASY, HARD] * BLOCKS + [HARD], dtype=np.float32)
    rows = np.concatenate([np.arange(start, start + length + 1) for start in recording.offsets[:2]])
    parts = {
        name: getattr(recording, name)[rows]
        for name in ("tokens", "base_entropy", "head_top1", "head_entropy", "root_shape", "path_values")
    }
    texts = tuple(dataclasses.replace(text, finish_reason="eos") for text in recording.texts)
    return dataclasses.replace(
        recording,
        texts=texts,
        offsets=np.array([0, length + 1, 2 * length + 2]),
        ranks=np.tile(ranks, (2, 1)).astype(np.int32),
        base_top1=np.tile(top1, 2),
        **parts,
    )


@pytest.fixture(scope="module", autouse=True)
def few_environments():
    """Two texts need no thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.calibrate_replay._ENVIRONMENTS", 40)
        yield


@pytest.fixture(scope="module")
def blocky(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocky")
    bank = TopologyBank([DraftTree.chain(1), DraftTree.chain(3)])
    return saved_settings(folder, blocky_recording(), bank) | {"costs": f"analytic:base={BASE},node={NODE}"}


def configure(settings, out, **changes):
    settings = settings | changes
    return Calibrate(recordings=(settings.pop("recording"),), out=out, **settings)


@pytest.fixture(scope="module")
def calibrated(blocky, few_environments, tmp_path_factory):
    out = tmp_path_factory.mktemp("calibrated")
    calibrate(configure(blocky, out, scores=("best_path_value", "expected_accept")))
    return out


def throughput(spec, blocky):
    env = ReplayEnv(**blocky)
    policy = make_policy(spec, env)
    episodes = [run_episode(env, policy, text.prompt_id, 0) for text in env.prompts]
    return sum(e.tokens for e in episodes) / sum(e.seconds for e in episodes)


def test_the_best_threshold_is_found(blocky, calibrated):
    # A block is 5 tokens: four at once with the chain, one without drafts.
    best = 5 / (2 * BASE + 3 * NODE)
    tables = ReplayTables.build(
        load_recording(blocky["recording"]), load_costs(blocky["costs"]), load_bank(blocky["bank"])
    )
    assert 2 * 5 * BLOCKS / solve(tables).seconds.sum() == pytest.approx(best)
    file = PolicyFile.load(calibrated / "threshold.json")
    assert (file.options["small"], file.options["large"]) == ("autoregressive", "chain-3")
    assert file.options["score"] == "best_path_value"
    assert HARD <= file.options["off"] <= file.options["on"] < EASY
    assert file.calibration["tokens_per_second"] == pytest.approx(best)
    assert throughput(f"threshold@{calibrated / 'threshold.json'}", blocky) == pytest.approx(best)


def test_the_best_tree_and_the_best_ladder_are_found(blocky, calibrated):
    static = PolicyFile.load(calibrated / "static.json")
    assert static.options == {"tree": "chain-1"}
    alone = {name: throughput(f"static:{name}", blocky) for name in load_bank(blocky["bank"]).names}
    assert static.calibration["tokens_per_second"] == pytest.approx(max(alone.values()))
    ladder = PolicyFile.load(calibrated / "ladder.json")
    assert ladder.calibration["tokens_per_second"] == pytest.approx(5 / (2 * BASE + 3 * NODE))
    assert ladder.calibration["best_static"]["tokens_per_second"] == pytest.approx(max(alone.values()))


@pytest.mark.parametrize("name", ["static", "threshold", "ladder", "ema-ladder"])
def test_each_file_loads_and_says_how_it_came_about(blocky, calibrated, name):
    record = PolicyFile.load(calibrated / f"{name}.json").calibration
    rate = throughput(f"{name}@{calibrated / name}.json", blocky)
    assert record["tokens_per_second"] == pytest.approx(rate)
    assert record["recordings"] == [blocky["recording"]]
    assert record["costs"]["name"] == load_costs(blocky["costs"]).name
    assert record["environment"]["replay"] is True
    assert record["num_prompts"] == 2
    assert record["prompt_ids"] == [text.prompt_id for text in load_recording(blocky["recording"]).texts]
    rates = [candidate["tokens_per_second"] for candidate in record["candidates"]]
    assert rates == sorted(rates, reverse=True)
    assert record["tried"] >= len(rates) > 1
    assert len({candidate["spec"] for candidate in record["candidates"]}) == len(rates)


def test_the_files_say_what_was_drafted_before_the_decisions(blocky, tmp_path):
    calibrate(configure(blocky, tmp_path, probe="first", policies=("static", "threshold")))
    probes = {name: PolicyFile.load(tmp_path / f"{name}.json").probe for name in ("static", "threshold")}
    assert probes == {"static": None, "threshold": "first"}
    with pytest.raises(ValueError, match="made with probe='first', this environment has 'none'"):
        make_policy(f"threshold@{tmp_path / 'threshold.json'}", ReplayEnv(**blocky))


def test_no_threshold_of_the_paper_parts_the_scores(blocky, tmp_path):
    calibrate(
        configure(blocky, tmp_path, tau_grid="paper", policies=("threshold",), scores=("best_path_value",))
    )
    file = PolicyFile.load(tmp_path / "threshold.json")
    grid = (0.001, 0.005, 0.01, 0.02, 0.05)
    assert file.options["on"] in grid
    assert file.options["off"] in grid
    # All lie below the scores, so that T+ is always chosen.
    assert file.calibration["tokens_per_second"] == pytest.approx(throughput("static:chain-1", blocky))


def policies(env):
    trees = env.bank.names
    return [
        *(Static(env, tree) for tree in trees),
        Threshold(env, on=0.6, off=0.3),
        Threshold(env, score="entropy_ema_4", on=0.5),
        Ladder(env, edges=(0.4, 0.7)[: len({tree.depth for tree in env.bank}) - 2]),
        EmaLadder(env, warmup=1, dwell=1),
    ]


@pytest.mark.parametrize("environments", [1, 24, 500])
def test_side_by_side_each_policy_does_what_it_does_alone(tmp_path, monkeypatch, environments):
    monkeypatch.setattr("train.calibrate_replay._ENVIRONMENTS", environments)
    settings = saved_settings(
        tmp_path, random_recording(np.random.default_rng(4), texts=8, longest=40, cap=40)
    )
    path, costs = settings.pop("recording"), settings.pop("costs")
    bench = ReplayBench([path], costs, **settings)
    own = policies(bench.env)
    trials = bench.run(own, "test")
    envs = ReplayVectorEnv(8, recording=path, costs=costs, **settings)
    for policy, trial in zip(own, trials, strict=True):
        episodes = replay(envs, policy, [text.prompt_id for text in envs.prompts]).episodes
        assert trial.policy is policy
        assert trial.tokens == sum(episode.tokens for episode in episodes)
        assert trial.steps == sum(len(episode.steps) for episode in episodes)
        assert trial.seconds == pytest.approx(sum(episode.seconds for episode in episodes))


class Watching(Static):
    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        self.starts = [*getattr(self, "starts", []), episode_start.tolist()]
        return super().predict(observation, state, episode_start)


def test_policies_are_told_where_texts_begin(tmp_path):
    recording = random_recording(np.random.default_rng(4), texts=4, longest=20, cap=20)
    settings = saved_settings(tmp_path, recording)
    bench = ReplayBench([settings.pop("recording")], settings.pop("costs"), **settings)
    own = [Watching(bench.env, "autoregressive") for _ in range(2)]
    bench.run(own, "test")
    lengths = recording.lengths.tolist()
    expected = [[step == 0 or step > length for length in lengths] for step in range(max(lengths))]
    assert own[0].starts == own[1].starts == expected
    assert any(map(any, expected[1:]))


def test_the_scores_are_those_at_each_decision(tmp_path):
    settings = saved_settings(
        tmp_path, random_recording(np.random.default_rng(5), texts=3, longest=30, cap=30)
    )
    names = ("expected_accept", "base_entropy")
    env = ReplayEnv(**settings)
    path, costs = settings.pop("recording"), settings.pop("costs")
    bench = ReplayBench([path], costs, **settings)
    trials = bench.run([Static(bench.env, tree) for tree in bench.env.bank.names], "test", names)
    for action, trial in enumerate(trials):
        expected = []
        for text in env.prompts:
            observation, _ = env.reset(options={"prompt_id": text.prompt_id})
            done = False
            while not done:
                expected.append([observation[env.feature_names.index(name)] for name in names])
                observation, _, terminated, truncated, _ = env.step(action)
                done = terminated or truncated
        for column, name in enumerate(names):
            # Texts go side by side; one by one the tracker computes in double precision.
            np.testing.assert_allclose(
                np.sort(trial.scores[name]), np.sort(np.array(expected)[:, column]), rtol=1e-5
            )


def test_an_approximate_recording_is_called_so(tmp_path, capsys):
    recording = random_recording(np.random.default_rng(6))
    manifest = recording.manifest | {"approximate": True}
    settings = saved_settings(tmp_path, dataclasses.replace(recording, manifest=manifest))
    calibrate(configure(settings, tmp_path / "out", policies=("static",)))
    assert "approximate replay" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "static.json").read_text())["calibration"]
    assert record["environment"]["approximate"] is True


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"scores": ("luck",)}, ValueError, "'luck'"),
        ({"recording": "absent.npz"}, FileNotFoundError, r"absent\.npz"),
        ({"costs": "absent"}, FileNotFoundError, "absent"),
        ({"max_new_tokens": 10_000}, ValueError, "max_new_tokens=10000"),
        ({"capacity": 8}, ValueError, "raise the capacity"),
    ],
)
def test_what_does_not_fit_is_refused(blocky, tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        calibrate(configure(blocky, tmp_path, **change))
    assert not list(tmp_path.iterdir())


def test_trees_deeper_than_the_recording_are_refused(blocky, tmp_path):
    TopologyBank([DraftTree.chain(4)]).save(tmp_path / "deep.json")
    with pytest.raises(ValueError, match="depth 4, the recording only 3"):
        calibrate(configure(blocky, tmp_path / "out", bank=str(tmp_path / "deep.json")))
