import itertools
import json
from types import SimpleNamespace
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from entmtp_env.trees import DraftTree, TopologyBank
from policies import PolicyFile, make_policy
from policies.rollout import run_episode
from policies.static import Static
from tests.fake_env import FEATURES, FakeEnv
from train.calibrate import Calibrate, calibrate
from train.calibrate_live import LiveBench

POLICIES = ("static", "threshold", "ladder", "ema-ladder")
MANIFEST = {"model": "fake"}


class Calibrated(FakeEnv):
    """The fake decoder with a prompt set; drafts are accepted where the deep path value is high."""

    instances: ClassVar[list["Calibrated"]] = []

    def __init__(self, prompts="fake", **_):
        super().__init__(max_steps=40)
        self.prompts = [SimpleNamespace(prompt_id=f"p{i}") for i in range(6)]
        self.manifest, self.broken, self.played = MANIFEST, prompts == "broken", []
        self.instances.append(self)

    def warm_up(self):
        self.played.append("warm-up")

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        self.played.append(self.prompt_id)
        return observation, info

    def step(self, action):
        *outcome, info = super().step(action)
        if self.broken and outcome[3]:
            info["finish_reason"] = "error: out of memory"
        return *outcome, info

    def _draw(self):
        values = super()._draw().random(len(FEATURES))
        likely = values[FEATURES.index("deep_path_value")] > 0.5
        return SimpleNamespace(random=iter(values).__next__, integers=lambda low, high: 4 if likely else 0)


@pytest.fixture(scope="module", autouse=True)
def clock():
    """Every choice of a policy takes 0.5 ms, however busy the machine is."""
    ticks = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("policies.rollout.time", SimpleNamespace(perf_counter=lambda: next(ticks) * 0.0005))
        yield


@pytest.fixture(scope="module", autouse=True)
def registered():
    gymnasium.register("EntMTPTest/Calibrated-v0", entry_point=Calibrated, disable_env_checker=True)
    yield
    del gymnasium.registry["EntMTPTest/Calibrated-v0"]


@pytest.fixture(scope="module")
def calibrated(registered, clock, tmp_path_factory):
    """The settings, the files and the environment of one calibration of everything."""
    out = tmp_path_factory.mktemp("calibration")
    config = Calibrate(env="EntMTPTest/Calibrated-v0", num_prompts=4, out=out, quantiles=(0.25, 0.45))
    calibrate(config)
    return config, {path.stem: PolicyFile.load(path) for path in out.glob("*.json")}, Calibrated.instances[-1]


def throughput(spec, prompt_ids, env):
    episodes = [run_episode(env, make_policy(spec, env), prompt, 0) for prompt in prompt_ids]
    return sum(e.tokens for e in episodes) / sum(e.seconds + e.policy_seconds for e in episodes)


def test_the_best_static_tree_is_found(calibrated):
    _, files, env = calibrated
    prompts = files["static"].calibration["prompt_ids"]
    rates = {name: throughput(f"static:{name}", prompts, env) for name in env.bank.names}
    assert files["static"].options == {"tree": max(rates, key=rates.get)}
    tried = {c["spec"]: c["tokens_per_second"] for c in files["static"].calibration["candidates"]}
    assert tried == {f"static:tree={name}": pytest.approx(rate) for name, rate in rates.items()}


@pytest.mark.parametrize("name", POLICIES)
def test_the_files_load_as_policies(calibrated, name):
    config, files, env = calibrated
    policy = make_policy(f"{name}@{config.out / name}.json", env)
    tried = files[name].calibration["candidates"]
    assert policy.spec == max(tried, key=lambda c: c["tokens_per_second"])["spec"]
    assert set(files) == set(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
def test_the_record_says_how(calibrated, name):
    config, files, env = calibrated
    record = files[name].calibration
    assert (record["prompts"], record["num_prompts"]) == ("humaneval:calibration", 4)
    assert (record["seed"], record["max_new_tokens"]) == (config.seed, 128)
    assert record["tried"] == len(record["candidates"])
    assert record["environment"] == MANIFEST
    assert record["machine"]["processor"]
    assert record["tokens_per_second"] == max(c["tokens_per_second"] for c in record["candidates"])
    assert record["best_static"]["spec"] == f"static:tree={files['static'].options['tree']}"
    rate = throughput(record["best_static"]["spec"], record["prompt_ids"], env)
    assert record["best_static"]["tokens_per_second"] == pytest.approx(rate)


def test_a_score_that_foretells_acceptance_wins(calibrated):
    _, files, _ = calibrated
    for name in ("threshold", "ladder"):
        record = files[name].calibration
        assert files[name].options["score"] == "deep_path_value"
        assert record["tokens_per_second"] > 1.01 * record["best_static"]["tokens_per_second"]


def test_policies_take_turns_prompt_by_prompt(calibrated):
    _, files, env = calibrated
    prompts = files["static"].calibration["prompt_ids"]
    trees = len(env.bank)
    schedulers = sum(len(files[name].calibration["candidates"]) for name in POLICIES[1:])
    first = [prompt for prompt in prompts for _ in range(trees)]
    second = [prompt for prompt in prompts for _ in range(schedulers + 1)]
    assert len(set(prompts)) == 4
    assert env.played[: 1 + len(first) + len(second)] == ["warm-up", *first, *second]


def test_the_seed_draws_the_prompts(tmp_path, capsys):
    drawn = []
    for seed in (0, 0, 1):
        calibrate(
            Calibrate(
                env="EntMTPTest/Calibrated-v0",
                num_prompts=3,
                seed=seed,
                policies=("static",),
                out=tmp_path,
                overwrite=True,
            )
        )
        drawn.append(json.loads((tmp_path / "static.json").read_text())["calibration"]["prompt_ids"])
    assert drawn[0] == drawn[1] != drawn[2]
    assert [path.name for path in tmp_path.iterdir()] == ["static.json"]
    captured = capsys.readouterr()
    assert "10 trees on 3 prompts: up to 3840 tokens" in captured.err
    assert captured.out.count("static:") == 30
    assert captured.out.count("chosen") == 3


def test_the_scores_are_drawn_where_a_policy_reads_one(calibrated, tmp_path):
    config, _, _ = calibrated
    assert (config.out / "scores.png").read_bytes()[:4] == b"\x89PNG"


def test_the_paper_has_a_grid_of_its_own(tmp_path):
    calibrate(
        Calibrate(
            env="EntMTPTest/Calibrated-v0",
            tau_grid="paper",
            num_prompts=1,
            policies=("threshold",),
            out=tmp_path,
        )
    )
    record = PolicyFile.load(tmp_path / "threshold.json").calibration
    on = {float(c["spec"].partition("on=")[2].partition(",")[0]) for c in record["candidates"]}
    assert on <= {0.001, 0.005, 0.01, 0.02, 0.05}
    assert record["tried"] == 2 * 3 * 5


def test_the_scores_are_those_the_policy_saw():
    env = Calibrated()
    bench = LiveBench(env, "fake", ["p1", "p2"], 0, 8)
    policies = [Static(env, name) for name in env.bank.names[:4]]
    trial = bench.run(policies, "trees", ("expected_accept", "base_top1"))[3]
    expected = []
    for prompt in ("p1", "p2"):
        observation, _ = env.reset(options={"prompt_id": prompt})
        done = False
        while not done:
            expected.append(observation[FEATURES.index("expected_accept")])
            observation, _, _, done, _ = env.step(3)
    assert (trial.policy, set(trial.scores)) == (policies[3], {"expected_accept", "base_top1"})
    np.testing.assert_array_equal(trial.scores["expected_accept"], expected)
    assert trial.steps == len(expected)


def test_a_failed_step_ends_the_calibration(tmp_path):
    config = Calibrate(env="EntMTPTest/Calibrated-v0", prompts="broken", out=tmp_path)
    with pytest.raises(RuntimeError, match=r"static:tree=autoregressive on p\d: error: out of memory"):
        calibrate(config)
    assert not list(tmp_path.iterdir())


def test_files_are_replaced_only_when_asked_to(calibrated):
    config, _, _ = calibrated
    before = {path: path.read_bytes() for path in config.out.iterdir()}
    with pytest.raises(FileExistsError, match=r"static\.json, .*ladder\.json: there already; .*--overwrite"):
        calibrate(config)
    assert {path: path.read_bytes() for path in config.out.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_prompts": 7}, "num_prompts=7.*has 6"),
        ({"scores": ("deep_path_valu",)}, "did you mean 'deep_path_value'"),
        ({"scores": ()}, "at least one"),
        ({"quantiles": (0.5, 1.5)}, "quantiles"),
        ({"costs": "analytic:base=1"}, "costs would have no effect; drop them, or name --recordings"),
        ({"recordings": ("chat",), "num_prompts": 5}, "num_prompts, env would have no effect; drop them"),
    ],
)
def test_settings_are_checked_before_anything_runs(tmp_path, change, message):
    Calibrated.instances.clear()
    with pytest.raises(ValueError, match=message):
        calibrate(Calibrate(env="EntMTPTest/Calibrated-v0", out=tmp_path, **change))
    assert not any(env.played for env in Calibrated.instances)


def test_live(tiny_files, tmp_path):
    TopologyBank([DraftTree.chain(1), DraftTree.chain(2)], name="two").save(tmp_path / "bank.json")
    kwargs = tiny_files.kwargs | {"max_new_tokens": 6, "bank": str(tmp_path / "bank.json")}
    out = tmp_path / "policies"
    calibrate(Calibrate(**kwargs, num_prompts=1, quantiles=(0.5,), scores=("expected_accept",), out=out))
    env = gymnasium.make("EntMTP/Live-v0", **kwargs)
    for name in ("static", "threshold", "ladder"):
        policy = make_policy(f"{name}@{out / name}.json", env)
        assert run_episode(env, policy, "t2", 0).tokens > 0
        assert PolicyFile.load(out / f"{name}.json").calibration["environment"]["bank"] == "two"
