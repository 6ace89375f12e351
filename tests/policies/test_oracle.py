from dataclasses import replace

import gymnasium
import numpy as np
import pytest

import entmtp_env  # noqa: F401
from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.recording import Recording
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.replay.vector_env import ReplayVectorEnv
from entmtp_env.trees import default_bank
from policies import PolicyFile, make_policy, run_episode
from policies.oracle import Oracle
from tests.recordings import BANK, COSTS, random_recording, record_tiny, saved_settings

COSTS_IN_SPEC = COSTS.replace(",", "|")
OBSERVATION = np.zeros(0, dtype=np.float32)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    recording = random_recording(np.random.default_rng(2), texts=6)
    return saved_settings(tmp_path_factory.mktemp("random"), recording)


@pytest.fixture(scope="module")
def replay(settings):
    return gymnasium.make("EntMTP/Replay-v0", **settings)


@pytest.fixture(scope="module")
def recorded(tiny_files, tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "recording.npz"
    record_tiny(tiny_files, 24).save(path)
    return str(path)


@pytest.fixture
def live(tiny_files):
    def build(**settings):
        return gymnasium.make("EntMTP/Live-v0", **(tiny_files.kwargs | settings))

    return build


def test_in_a_replay_it_needs_no_options_and_takes_the_least_time(replay):
    policy, oracle = make_policy("oracle", replay), solve(replay.unwrapped.tables)
    assert (policy.name, policy.spec) == ("oracle", "oracle")
    others = [make_policy(spec, replay) for spec in ("random", "threshold", "static:wide")]
    for text, prompt in enumerate(replay.unwrapped.prompts):
        episode = run_episode(replay, policy, prompt.prompt_id, seed=0)
        assert episode.seconds == pytest.approx(oracle.seconds[text])
        assert [step.action for step in episode.steps] == oracle.schedule(text)
        for other in others:
            assert episode.seconds <= run_episode(replay, other, prompt.prompt_id, seed=0).seconds + 1e-12


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_in_many_environments_at_once(settings, mode):
    envs = ReplayVectorEnv(5, autoreset_mode=mode, **settings)
    policy, oracle = make_policy("oracle", envs), solve(envs.tables)
    least = {text.prompt_id: took for text, took in zip(envs.prompts, oracle.seconds, strict=True)}
    observations, _ = envs.reset(seed=0)
    episodes = 0
    for _ in range(60):
        actions, state = policy.predict(observations)
        assert actions.shape == (5,)
        assert state is None
        observations, _, terminated, truncated, infos = envs.step(actions)
        infos = infos.get("final_info", infos)
        for i in np.flatnonzero(terminated | truncated):
            assert infos["total_seconds"][i] == pytest.approx(least[infos["prompt_id"][i]])
            episodes += 1
    assert episodes > 20


def test_live_it_follows_the_plan_of_a_recording(live, recorded):
    env = live(max_new_tokens=20)
    policy = make_policy(f"oracle:recording={recorded},costs={COSTS_IN_SPEC}", env)
    tables = ReplayTables.build(Recording.load(recorded), load_costs(COSTS), default_bank(), 20, 256)
    oracle, trees = solve(tables), set()
    for text, prompt in enumerate(tables.recording.texts):
        steps = run_episode(env, policy, prompt.prompt_id, seed=0).steps
        assert [step.action for step in steps] == oracle.schedule(text)
        trees |= {step.tree for step in steps}
    assert len(trees) > 1


def test_a_spec_and_a_file_give_the_same_policy_again(replay, settings, tmp_path):
    policy = Oracle(replay, settings["recording"], COSTS.split(","))
    assert policy.spec == f"oracle:recording={settings['recording']},costs={COSTS_IN_SPEC}"
    PolicyFile.of(policy).save(tmp_path / "oracle.json")
    short = f"oracle:{settings['recording']},costs={COSTS_IN_SPEC}"
    for spec in (policy.spec, short, f"oracle@{tmp_path}/oracle.json"):
        again = make_policy(spec, replay)
        assert again.spec == policy.spec
        for prompt in replay.unwrapped.prompts:
            observation, _ = replay.reset(options={"prompt_id": prompt.prompt_id})
            assert again.predict(observation) == policy.predict(observation)


def test_a_plan_may_be_made_for_other_costs_than_those_of_the_replay(replay, settings):
    dear = "analytic:base=0.001|node=1"
    policy = make_policy(f"oracle:recording={settings['recording']},costs={dear}", replay)
    episode = run_episode(replay, policy, "t0", seed=0)
    assert {step.tree for step in episode.steps} == {"autoregressive"}


def test_past_the_end_of_the_recorded_text_the_best_static_tree_goes_on(bare_env):
    recording = random_recording(np.random.default_rng(4), texts=2)
    tables = ReplayTables.build(recording, load_costs("analytic:base=1,depth=0.001"), BANK)
    env = bare_env(BANK, features=())
    env.tables, oracle = tables, solve(tables)
    policy = Oracle(env)
    length = int(recording.lengths[1])
    for position, expected in [
        (length - 1, oracle.actions[tables.ends[1] - 1]),
        (length, oracle.best_static),
        (length + 40, oracle.best_static),
    ]:
        env.place = "t1", position
        assert policy.predict(OBSERVATION)[0] == expected
    assert oracle.best_static != 0
    env.place = "t7", 0
    with pytest.raises(ValueError, match=r"prompt 't7' is not in the recording.*train record"):
        policy.predict(OBSERVATION)


def test_it_runs_only_where_it_was_built(replay):
    policy = make_policy("oracle", replay)
    observation, _ = replay.reset(seed=0)
    with pytest.raises(ValueError, match="got 3 observations, its environment has 1 texts"):
        policy.predict(np.stack([observation] * 3))


def test_a_live_environment_needs_a_recording(live, recorded):
    with pytest.raises(ValueError, match=r"oracle:recording=<file>,costs=<file>.*train record"):
        make_policy("oracle", live())
    with pytest.raises(ValueError, match="need a recording"):
        make_policy("oracle:costs=analytic:base=1", live())
    with pytest.raises(FileNotFoundError, match=r"no recording 'nowhere\.npz'"):
        make_policy("oracle:nowhere.npz", live())
    with pytest.raises(ValueError, match="max_new_tokens=30 must be 1 to 24"):
        make_policy(f"oracle:{recorded},costs={COSTS_IN_SPEC}", live(max_new_tokens=30))


@pytest.mark.parametrize("key", ["acceptance", "model_fingerprint", "heads_fingerprint"])
def test_a_recording_of_something_else_is_refused(live, recorded, tmp_path, key):
    recording = Recording.load(recorded)
    path = tmp_path / "other.npz"
    replace(recording, manifest=recording.manifest | {key: "other"}).save(path)
    with pytest.raises(ValueError, match=rf"{key} is 'other' in the recording.*train record"):
        make_policy(f"oracle:{path},costs={COSTS_IN_SPEC}", live())


def test_sampled_texts_are_planned_in_a_replay_only(live, tiny_files, tmp_path):
    rule = "sample:temperature=0.8"
    path = tmp_path / "sampled.npz"
    record_tiny(tiny_files, 24, rule).save(path)
    with pytest.raises(ValueError, match=r"under 'sample:temperature=0.8' a live text is another one"):
        make_policy(f"oracle:{path},costs={COSTS_IN_SPEC}", live(acceptance=rule))
    replay = gymnasium.make("EntMTP/Replay-v0", recording=str(path), costs=COSTS, bank="default")
    oracle = solve(replay.unwrapped.tables)
    policy = make_policy(f"oracle:{path},costs={COSTS_IN_SPEC}", replay)
    assert run_episode(replay, policy, "t3", seed=0).seconds == pytest.approx(oracle.seconds[3])
    assert replay.unwrapped.bank.fingerprint == default_bank().fingerprint
