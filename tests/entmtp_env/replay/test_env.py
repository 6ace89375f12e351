import copy
import itertools
import math
import pickle
import warnings
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from entmtp_env.replay.env import ReplayEnv
from tests.recordings import BANK, accepted, random_recording, saved_settings, seconds

ID = "EntMTP/Replay-v0"
PROBES = ("none", "first", "chain", "union")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    recording = random_recording(np.random.default_rng(0), texts=5, candidates=BANK.union)
    return saved_settings(tmp_path_factory.mktemp("random"), recording)


@pytest.mark.parametrize("probe", PROBES)
def test_checkers_find_nothing(settings, probe):
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(ID, **settings, probe=probe).unwrapped)
        sb3.check_env(gymnasium.make(ID, **settings, probe=probe))


def play_on(env, steps=60):
    """A random schedule over several episodes: everything returned."""
    rng, trace = np.random.default_rng(1), []
    while len(trace) < steps:
        trace.append(env.step(rng.integers(env.action_space.n)))
        if trace[-1][2] or trace[-1][3]:
            trace.append(env.reset())
    return trace


def same_trace(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        assert a[1:] == b[1:]


@pytest.mark.parametrize("reward", ["tokens_per_second", "throughput_advantage:reference=40"])
def test_the_same_seed_repeats_everything(settings, reward):
    envs = [gymnasium.make(ID, **settings, reward=reward) for _ in range(2)]
    for env in envs:
        env.reset(seed=5)
    same_trace(*map(play_on, envs))


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_on_alike_and_apart(settings, twin):
    env = gymnasium.make(ID, **settings, probe="union").unwrapped
    env.reset(seed=2, options={"prompt_id": "t1"})
    env.step(1)
    same_trace(*map(play_on, (env, twin(env))))


def test_copies_share_what_is_only_read(settings):
    env = gymnasium.make(ID, **settings).unwrapped
    twin = copy.deepcopy(env)
    assert twin.tables is env.tables
    assert twin.signals is env.signals


def by_hand(recording, actions, prompt_id):
    """Tokens and seconds of each step of a schedule, from the recording by definition."""
    index = [text.prompt_id for text in recording.texts].index(prompt_id)
    start, length = recording.offsets[index], recording.lengths[index]
    position, steps = 0, []
    for action in itertools.cycle(actions):
        if position == length:
            return steps
        tree = BANK[action]
        tokens = min(accepted(tree, recording.ranks[start + position]) + 1, length - position)
        steps.append((tokens, seconds(tree, recording.texts[index].prompt_tokens + position)))
        position += tokens


@pytest.mark.parametrize("prompt_id", [f"t{i}" for i in range(5)])
def test_accounting(settings, prompt_id):
    env = gymnasium.make(ID, **settings)
    actions = (3, 0, 2, 1, 3)
    expected = by_hand(env.unwrapped.tables.recording, actions, prompt_id)
    _, first = env.reset(seed=0, options={"prompt_id": prompt_id})
    steps = []
    for action in itertools.islice(itertools.cycle(actions), len(expected)):
        steps.append(env.step(action))
    infos = [step[4] for step in steps]
    assert [info["tokens"] for info in infos] == [tokens for tokens, _ in expected]
    assert [info["seconds"] for info in infos] == pytest.approx([took for _, took in expected])
    assert [info["accept_length"] for info in infos] == [tokens - 1 for tokens, _ in expected]
    assert infos[-1]["total_tokens"] == sum(tokens for tokens, _ in expected)
    assert infos[-1]["total_seconds"] == pytest.approx(math.fsum(took for _, took in expected))
    throughput = infos[-1]["total_tokens"] / infos[-1]["total_seconds"]
    assert math.fsum(step[1] for step in steps) == pytest.approx(throughput)
    assert all(
        info["draft_seconds"] + info["verify_seconds"] == pytest.approx(info["seconds"]) for info in infos
    )
    assert {info["prefill_seconds"] for info in (first, *infos)} == {first["prefill_seconds"]}
    assert [bool(info["text"]) for info in infos] == [bool(step[2] or step[3]) for step in steps]


def test_the_last_step_is_told_until_the_next_text_begins(settings):
    env = gymnasium.make(ID, **settings).unwrapped
    assert env.last_step == (0, 0.0)
    env.reset(seed=0)
    assert env.last_step == (0, 0.0)
    info = env.step(1)[4]
    assert env.last_step == (info["tokens"], info["seconds"]) > (0, 0.0)
    env.reset()
    assert env.last_step == (0, 0.0)


@pytest.mark.parametrize("action", [2, np.int64(2), np.array(2, dtype=np.uint8)])
def test_any_integer_is_an_action(settings, action):
    env = gymnasium.make(ID, **settings).unwrapped
    env.reset(seed=0)
    assert env.step(action)[4]["tree"] == BANK.names[2]


def test_what_cannot_be_stepped_is_refused(settings):
    env = gymnasium.make(ID, **settings, max_new_tokens=1).unwrapped
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(0)
    env.reset(seed=0)
    for action in (-1, len(BANK)):
        with pytest.raises(ValueError, match=r"outside 0\.\.3"):
            env.step(action)
    env.step(0)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_new_tokens": 13}, r"max_new_tokens=13 must be 1 to 12"),
        ({"reward": "fun"}, "unknown reward 'fun'"),
        ({"features": "heads,magic"}, "'magic'"),
        ({"probe": "all"}, "unknown probe 'all'"),
        ({"capacity": 6}, r"do not fit into 6 KV rows"),
        ({"costs": "analytic:node=1"}, "base"),
        ({"bank": "default"}, "depth 4, the recording only 3"),
    ],
)
def test_wrong_arguments_are_named(settings, wrong, message):
    with pytest.raises(ValueError, match=message):
        gymnasium.make(ID, disable_env_checker=True, **(settings | wrong)).reset()


def test_there_is_nothing_to_render(settings):
    with pytest.raises(ValueError, match="render_mode 'ansi' is not supported"):
        ReplayEnv(**settings, render_mode="ansi")


def test_wrong_reset_options_are_named(settings):
    env = gymnasium.make(ID, **settings)
    with pytest.raises(ValueError, match="no prompt 'nope'"):
        env.reset(options={"prompt_id": "nope"})
    with pytest.raises(ValueError, match="unknown reset options"):
        env.reset(options={"prompt": "t4"})


def test_the_manifest_names_what_a_result_depends_on(settings, tmp_path):
    env = gymnasium.make(ID, **settings, probe="chain", max_new_tokens=5, capacity=64).unwrapped
    recording = env.tables.recording
    assert env.manifest == recording.manifest | {
        "bank": "bank",
        "bank_fingerprint": BANK.fingerprint,
        "features_fingerprint": env.feature_set.fingerprint,
        "probe": "chain",
        "max_new_tokens": 5,
        "capacity": 64,
        "replay": True,
        "approximate": False,
    }
    replace(recording, manifest=recording.manifest | {"approximate": True}).save(tmp_path / "typical.npz")
    typical = gymnasium.make(ID, **(settings | {"recording": str(tmp_path / "typical.npz")}))
    assert typical.unwrapped.manifest["approximate"]


def test_gymnasium_vector_environments(settings):
    actions = np.random.default_rng(0).integers(len(BANK), size=(30, 2))

    def trace(mode):
        envs = gymnasium.make_vec(ID, num_envs=2, vectorization_mode=mode, **settings)
        try:
            seen = [envs.reset(seed=0)]
            seen += [envs.step(action) for action in actions]
        finally:
            envs.close()
        return seen

    for one, other in zip(trace("sync"), trace("async"), strict=True):
        for a, b in zip(one[:-1], other[:-1], strict=True):
            np.testing.assert_array_equal(a, b)
        assert one[-1]["tokens"].tolist() == other[-1]["tokens"].tolist()


def test_stable_baselines3_subprocesses(settings):
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")

    def build():
        import entmtp_env  # noqa: F401

        return gymnasium.make(ID, **settings)

    envs = vec_env.SubprocVecEnv([build, build])
    try:
        envs.reset()
        _, rewards, _, infos = envs.step(np.array([0, 3]))
        assert (rewards > 0).all()
        assert [info["tree"] for info in infos] == [BANK.names[0], BANK.names[3]]
    finally:
        envs.close()
