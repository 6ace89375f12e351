import gymnasium
import pytest

import entmtp_env  # noqa: F401
from policies import PolicyFile, make_policy, run_episode
from policies.staged import Eagle2, StagedThreshold
from tests.staged import STAGES, staged_settings
from train.calibrate import Calibrate, calibrate
from train.calibrate_staged import fixed_choices


@pytest.fixture(scope="module", autouse=True)
def few_environments():
    """Five texts need no thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.calibrate_replay._ENVIRONMENTS", 60)
        yield


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return staged_settings(tmp_path_factory.mktemp("staged"), texts=5, longest=30, cap=30)


@pytest.fixture(scope="module")
def env(settings):
    return gymnasium.make("EntMTP/StagedReplay-v0", **settings)


@pytest.fixture(scope="module")
def out(settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated")
    calibrate(config(settings, out=folder))
    return folder


def config(settings, **changed):
    chosen = {
        "recordings": (settings["recording"],),
        "drafts": (settings["drafts"],),
        "stages": settings["stages"],
        "costs": settings["costs"],
        "policies": ("staged-threshold", "eagle2"),
        "quantiles": (0.25, 0.5, 0.75),
    }
    return Calibrate(**(chosen | changed))


def rate(env, policy):
    """Tokens per second over all texts, one after the other."""
    episodes = [run_episode(env, policy, text.prompt_id, seed=0) for text in env.unwrapped.prompts]
    return sum(e.tokens for e in episodes) / sum(e.seconds for e in episodes)


@pytest.mark.parametrize("name", ["staged-threshold", "eagle2"])
def test_the_file_brings_back_the_policy_and_its_throughput(env, out, name):
    policy = make_policy(f"{name}@{out / name}.json", env)
    record = PolicyFile.load(out / f"{name}.json").calibration
    assert rate(env, policy) == pytest.approx(record["tokens_per_second"])
    assert record["candidates"][0]["spec"] == policy.spec
    steps = [
        step for text in env.unwrapped.prompts for step in run_episode(env, policy, text.prompt_id, 0).steps
    ]
    assert record["candidates"][0]["tau"] == pytest.approx(
        sum(step.tokens for step in steps) / sum(step.tree != "" for step in steps)
    )
    fixed = make_policy(record["best_static"]["spec"], env)
    assert rate(env, fixed) == pytest.approx(record["best_static"]["tokens_per_second"])


def test_eagle2_gets_the_number_of_nodes_that_is_fastest(env, out):
    best = max((Eagle2(env, nodes) for nodes in STAGES.budgets), key=lambda policy: rate(env, policy))
    assert make_policy(f"eagle2@{out / 'eagle2.json'}", env).options == best.options


def test_no_other_threshold_of_a_depth_is_faster(env, out):
    policy = make_policy(f"staged-threshold@{out / 'staged-threshold.json'}", env)
    found, thresholds = rate(env, policy), policy.options["thresholds"]
    assert found >= rate(env, StagedThreshold(env))
    for depth in range(STAGES.depth):
        for other in (0.0, 2.0):
            moved = [*thresholds[:depth], other, *thresholds[depth + 1 :]]
            assert rate(env, StagedThreshold(env, moved)) <= found * (1 + 1e-9)


def test_the_best_fixed_choice_is_the_best_of_all(env, out):
    record = PolicyFile.load(out / "eagle2.json").calibration["best_static"]
    choices = [
        StagedThreshold(env, [0.0] * depth + [2.0] * (STAGES.depth - depth), nodes)
        for depth, nodes in fixed_choices(STAGES)
    ]
    assert len({policy.spec for policy in choices}) == len(choices) == 1 + 2 + 4 + 5
    assert max(rate(env, policy) for policy in choices) == pytest.approx(record["tokens_per_second"])


def test_files_are_replaced_only_when_asked_to(settings, out):
    with pytest.raises(FileExistsError, match=r"eagle2\.json: there already; .*--overwrite"):
        calibrate(config(settings, out=out, policies=("eagle2",)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"policies": ("eagle2", "ladder")}, "apart from the policies of a bank"),
        ({"drafts": ()}, "with their --drafts"),
        ({"recordings": (), "costs": "auto"}, "are calibrated on --recordings"),
        ({"bank": "smollm2-chat"}, "bank would have no effect; drop them"),
        ({"policies": ("ladder",)}, "drafts, stages would have no effect"),
    ],
)
def test_settings_that_contradict_each_other(settings, changed, message):
    with pytest.raises(ValueError, match=message):
        config(settings, **changed)


def test_stages_of_another_shape_are_refused(settings, tmp_path):
    with pytest.raises(ValueError, match="draft again for these stages"):
        calibrate(config(settings, stages="default", out=tmp_path))
