import copy
import itertools
import math
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import entmtp_env
from entmtp_env.engine import get_engine

ID = "EntMTP/Live-v0"
INFO = {
    "prompt_id": str,
    "prefill_seconds": float,
    "tree": str,
    "accept_length": int,
    "tokens": int,
    "seconds": float,
    "draft_seconds": float,
    "verify_seconds": float,
    "accept_seconds": float,
    "commit_seconds": float,
    "feature_seconds": float,
    "total_tokens": int,
    "total_seconds": float,
    "finish_reason": str,
    "text": str,
}
PARTS = ("draft", "verify", "accept", "commit", "feature")


@pytest.fixture
def make(tiny_files):
    def build(**overrides):
        return gymnasium.make(ID, **(tiny_files.kwargs | overrides))

    return build


def play(env, choose, **reset):
    """Every (observation, reward, terminated, truncated, info) of an episode; the reset first."""
    observation, info = env.reset(**reset)
    steps = [(observation, 0.0, False, False, info)]
    while not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(choose(len(steps) - 1)))
    return steps


def fixed_clock():
    ticks = itertools.count()
    return lambda: next(ticks) * 0.001


@pytest.mark.parametrize("probe", ["none", "first", "chain", "union"])
def test_gymnasium_checker_finds_nothing(make, probe):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(probe=probe, render_mode="ansi").unwrapped)


def test_stable_baselines3_checker_finds_nothing(make):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(make())


def test_ppo_learns_256_steps(make):
    sb3 = pytest.importorskip("stable_baselines3")
    env = make(reward="throughput_advantage:reference=100")
    model = sb3.PPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=2, seed=0, device="cpu")
    before = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(256)
    after = list(model.policy.parameters())
    assert model.num_timesteps == 256
    assert any(not a.equal(b) for a, b in zip(before, after, strict=True))
    assert all(p.isfinite().all() for p in after)


def test_fifty_steps_repeat_with_a_fixed_clock(make):
    def run():
        env = make()
        env.unwrapped.clock = fixed_clock()
        rng = np.random.default_rng(3)
        observation, info = env.reset(seed=11)
        trace = [(observation, 0.0, info)]
        while len(trace) < 51:
            observation, reward, terminated, truncated, info = env.step(rng.integers(10))
            trace.append((observation, reward, info))
            if terminated or truncated:
                observation, info = env.reset()
        return trace

    for (obs_a, reward_a, info_a), (obs_b, reward_b, info_b) in zip(run(), run(), strict=True):
        np.testing.assert_array_equal(obs_a, obs_b)
        assert reward_a == reward_b
        assert info_a == info_b


@pytest.mark.parametrize("features", ["acceptance,position,token", "entropy", "heads", "base,token"])
def test_groups_show_what_they_show_among_all_and_cost_no_more(make, features, monkeypatch):
    whole, part = make(), make(features=features)
    groups, asked = set(features.split(",")), set()
    columns = [whole.unwrapped.feature_names.index(name) for name in part.unwrapped.feature_names]
    decoder = part.unwrapped.decoder
    for name in ("base_signals", "head_signals"):
        real = getattr(decoder, name)
        monkeypatch.setattr(decoder, name, lambda name=name, real=real: (asked.add(name), real())[1])
    rng = np.random.default_rng(0)
    actions = rng.integers(10, size=50)
    for seen, expected in zip(
        play(part, lambda i: actions[i], seed=4), play(whole, lambda i: actions[i], seed=4), strict=True
    ):
        np.testing.assert_array_equal(seen[0], expected[0][columns])
        assert seen[4]["text"] == expected[4]["text"]
    assert ("base_signals" in asked) == bool(groups & {"base", "entropy", "heads"})
    assert ("head_signals" in asked) == ("heads" in groups)


@pytest.mark.parametrize("probe", ["none", "first", "chain", "union"])
@pytest.mark.parametrize("acceptance", ["greedy", "sample:temperature=0.8"])
def test_the_text_does_not_depend_on_the_schedule(make, probe, acceptance):
    rng = np.random.default_rng(0)
    reference, scheduled = make(acceptance=acceptance), make(acceptance=acceptance, probe=probe)
    for prompt in ("t0", "t3", "t5"):
        reset = {"seed": 5, "options": {"prompt_id": prompt}}
        expected = play(reference, lambda _: 0, **reset)[-1][4]
        got = play(scheduled, lambda _: rng.integers(10), **reset)[-1][4]
        assert got["text"] == expected["text"]
        assert got["finish_reason"] == expected["finish_reason"]
        assert got["total_tokens"] == expected["total_tokens"] > 0


def test_types_bounds_and_keys_of_everything_returned(make):
    env = make(probe="union")
    steps = play(env, lambda i: i % 10, seed=1)
    for observation, reward, terminated, truncated, info in steps:
        assert observation.dtype == np.float32
        assert env.observation_space.contains(observation)
        assert [type(x) for x in (reward, terminated, truncated)] == [float, bool, bool]
        assert {key: type(value) for key, value in info.items()} == INFO
    assert len({id(step[0]) for step in steps}) == len(steps)
    assert not any(np.shares_memory(a[0], b[0]) for a, b in itertools.pairwise(steps))


def test_accounting(make):
    env = make()
    steps = play(env, lambda i: (3 * i) % 10, seed=2)
    infos = [step[4] for step in steps[1:]]
    assert all(info["tokens"] == info["accept_length"] + 1 for info in infos)
    assert sum(info["tokens"] for info in infos) == infos[-1]["total_tokens"]
    assert sum(info["seconds"] for info in infos) == pytest.approx(infos[-1]["total_seconds"])
    parts = [[info[f"{part}_seconds"] for part in PARTS] for info in infos]
    assert min(map(min, parts)) > 0
    assert [sum(own) for own in parts] == pytest.approx([info["seconds"] for info in infos])
    throughput = infos[-1]["total_tokens"] / infos[-1]["total_seconds"]
    assert sum(step[1] for step in steps) == pytest.approx(throughput)
    assert [info["tree"] for info in infos] == [
        env.unwrapped.bank[(3 * i) % 10].name for i in range(len(infos))
    ]
    assert all(info["text"] == "" for info in infos[:-1])
    assert infos[-1]["text"]


def test_the_last_step_is_told_until_the_next_text_begins(make):
    env = make().unwrapped
    assert env.last_step == (0, 0.0)
    env.reset(seed=0)
    assert env.last_step == (0, 0.0)
    info = env.step(1)[4]
    assert env.last_step == (info["tokens"], info["seconds"]) > (0, 0.0)
    env.reset()
    assert env.last_step == (0, 0.0)


def test_end_of_text_terminates_and_caps_truncate(make):
    ends = {}
    for prompt, cap in itertools.product(("t0", "t1", "t2", "t3", "t4", "t5"), (1, 3, 200)):
        last = play(make(max_new_tokens=cap), lambda _: 9, seed=0, options={"prompt_id": prompt})[-1]
        reason = last[4]["finish_reason"]
        ends[reason] = (last[2], last[3])
        assert last[4]["total_tokens"] == cap or (reason != "length" and last[4]["total_tokens"] < cap)
    context = play(make(max_new_tokens=500, capacity=80, acceptance="sample"), lambda _: 0, seed=1)[-1]
    ends[context[4]["finish_reason"]] = (context[2], context[3])
    assert ends["length"] == (False, True)
    assert ends["eos"] == (True, False)
    assert ends["context"] == (False, True)


@pytest.mark.parametrize("action", [2, np.int64(2), np.int32(2), np.array(2), np.array(2, dtype=np.uint8)])
def test_any_integer_is_an_action(make, action):
    env = make().unwrapped
    env.reset(seed=0)
    assert env.step(action)[4]["tree"] == env.bank[2].name


@pytest.mark.parametrize("action", [-1, 10, 1000])
def test_an_action_out_of_range_is_refused(make, action):
    env = make().unwrapped
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"outside 0\.\.9"):
        env.step(action)


def test_stepping_needs_a_running_text(make):
    env = make(max_new_tokens=1).unwrapped
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(0)


def test_seeds_fix_prompt_order_and_every_prompt_comes_once(make):
    def order(seed):
        env = make(max_new_tokens=1)
        return [env.reset(seed=seed if i == 0 else None)[1]["prompt_id"] for i in range(6)]

    assert order(4) == order(4)
    assert sorted(order(4)) == [f"t{i}" for i in range(6)]
    assert len({tuple(order(seed)) for seed in range(8)}) > 1


def test_reset_options(make):
    env = make()
    assert env.reset(options={"prompt_id": "t4"})[1]["prompt_id"] == "t4"
    with pytest.raises(ValueError, match="no prompt 'nope'"):
        env.reset(options={"prompt_id": "nope"})
    with pytest.raises(ValueError, match="unknown reset options"):
        env.reset(options={"prompt": "t4"})


def test_a_prompt_that_is_too_long_is_named(make):
    env = make(capacity=66)
    with pytest.raises(ValueError, match=r"prompt 't5'.*raise the capacity"):
        env.reset(options={"prompt_id": "t5"})


def test_two_environments_on_one_model_do_not_disturb_each_other(make):
    alone = {p: play(make(), lambda _: 5, options={"prompt_id": p})[-1][4]["text"] for p in ("t1", "t5")}
    envs = {p: make() for p in alone}
    texts = {}
    for prompt, env in envs.items():
        env.reset(options={"prompt_id": prompt})
    while len(texts) < len(envs):
        for prompt, env in envs.items():
            if prompt not in texts:
                _, _, terminated, truncated, info = env.step(5)
                if terminated or truncated:
                    texts[prompt] = info["text"]
    assert texts == alone
    a, b = (env.unwrapped for env in envs.values())
    assert a.engine is b.engine
    assert a.decoder is not b.decoder


def test_specs_are_plain_and_survive_copies(make, tiny_files):
    env = make()
    env.reset(seed=0)
    spec = pickle.loads(pickle.dumps(copy.deepcopy(env.spec)))
    assert spec.nondeterministic
    assert gymnasium.make(spec).reset(seed=0)[1]["prompt_id"] == env.reset(seed=0)[1]["prompt_id"]


def test_subprocess_vector_environments(tiny_files):
    if torch.get_num_threads() > 1:
        torch.randn(2000, 2000) @ torch.randn(2000, 2000)  # OpenMP's threads are up when the workers fork
    envs = gymnasium.make_vec(ID, num_envs=2, vectorization_mode="async", **tiny_files.kwargs)
    try:
        envs.reset_async(seed=0)
        envs.reset_wait(timeout=60)
        observations, rewards, *_ = envs.step(np.array([1, 9]))
        assert observations.shape == (2, *envs.single_observation_space.shape)
        assert (rewards > 0).all()
    finally:
        envs.close()


def test_warm_up_leaves_nothing_to_build(make):
    env = make(probe="chain").unwrapped
    env.warm_up()
    plans = len(env.decoder._plans)
    play(env, lambda i: i % 10, seed=0)
    assert len(env.decoder._plans) == plans
    env.warm_up()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


@pytest.mark.parametrize("env_id", [ID, "EntMTP/Staged-v0", "EntMTP/PromptLookup-v0"])
def test_a_warm_up_that_fails_names_its_prompt_and_frees_the_model(tiny_files, env_id, monkeypatch):
    env = gymnasium.make(env_id, **tiny_files.kwargs).unwrapped
    held = []

    def fail(*_, **__):
        held.append(env.engine.lock._is_owned())
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(env.decoder, "start", fail)
    with pytest.raises(MemoryError, match="warm-up with prompt 't3': no memory is left"):
        env.warm_up("t3")
    assert held == [True]
    assert not env.engine.lock._is_owned()


def test_probes_are_fresh_and_lag_is_one_step(make):
    """With a chain probe the head features are those of the coming draft; without, those of the last."""
    reset = {"seed": 0, "options": {"prompt_id": "t2"}}
    lagged, fresh = make(features="heads"), make(features="heads", probe="chain")
    column = lagged.unwrapped.feature_names.index("head_entropy_1")
    chain = lagged.unwrapped.bank.index("tree-8x4")
    late = [step[0][column] for step in play(lagged, lambda _: chain, **reset)]
    early = [step[0][column] for step in play(fresh, lambda _: chain, **reset)]
    assert late[0] == 0
    np.testing.assert_allclose(late[1:-1], early[:-2], rtol=1e-5)


def test_tree_values_are_sums_of_path_values(make):
    env = make(probe="union").unwrapped
    env.reset(seed=3)
    values = dict(zip(env.bank.union.nodes, env.decoder.probe_values().tolist(), strict=True))
    observation = env.step(2)[0]
    values = dict(zip(env.bank.union.nodes, env.decoder.probe_values().tolist(), strict=True))
    for k, tree in enumerate(env.bank):
        expected = math.fsum(values[node] for node in tree.nodes)
        assert observation[env.feature_names.index(f"tree_value_{k}")] == pytest.approx(expected, rel=1e-4)


def test_render(make):
    env = make(render_mode="ansi")
    env.reset(seed=0)
    assert "0 tokens" in env.render()
    info = env.step(6)[4]
    shown = env.render()
    assert f"tree {info['tree']}" in shown
    assert f"{info['total_tokens']} tokens" in shown
    assert make().render_mode is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"acceptance": "best"}, "acceptance rule 'best'"),
        ({"reward": "fun"}, "unknown reward 'fun'"),
        ({"features": "heads,magic"}, "'magic'"),
        ({"probe": "all"}, "unknown probe 'all'"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"dtype": "int3"}, "dtype 'int3'"),
    ],
)
def test_wrong_arguments_are_named(make, wrong, message):
    with pytest.raises(ValueError, match=message):
        make(**wrong).reset(seed=0)


def test_missing_files_are_named(make):
    with pytest.raises(FileNotFoundError, match="no topology bank 'mine'"):
        make(bank="mine")
    with pytest.raises(FileNotFoundError, match="train"):
        make(heads="nowhere.safetensors").reset()


def test_a_bank_deeper_than_the_heads_is_refused(make, tmp_path):
    path = tmp_path / "deep.json"
    entmtp_env.TopologyBank([entmtp_env.DraftTree.chain(5)]).save(path)
    with pytest.raises(ValueError, match="depth 5, but there are 4 draft heads"):
        make(bank=str(path)).reset(seed=0)


def test_engines_are_shared_and_described(tiny_files):
    names = (tiny_files.model, tiny_files.heads, "float32", "cpu")
    assert get_engine(*names) is get_engine(*names)
    manifest = get_engine(*names).manifest
    assert manifest["dtype"] == "float32"
    assert len(manifest["heads_fingerprint"]) == 16


def test_stable_baselines3_subprocesses_load_their_own_model(tiny_files):
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")

    def build():
        import entmtp_env  # noqa: F401

        return gymnasium.make(ID, **tiny_files.kwargs)

    envs = vec_env.SubprocVecEnv([build, build])
    try:
        envs.reset()
        observations, rewards, _, infos = envs.step(np.array([0, 9]))
        assert observations.shape == (2, *envs.observation_space.shape)
        assert (rewards > 0).all()
        assert [info["tree"] for info in infos] == ["autoregressive", "hydra-default"]
    finally:
        envs.close()


def test_autoreset_steps_are_no_decode_steps(tiny_files):
    """A vector environment's step that only resets emits no tokens and takes no time."""
    envs = gymnasium.make_vec(ID, num_envs=1, **(tiny_files.kwargs | {"max_new_tokens": 5}))
    envs.reset(seed=0)
    resets, after_end = 0, False
    for _ in range(40):
        _, rewards, terminated, truncated, infos = envs.step(np.array([3]))
        if after_end:
            resets += 1
            assert (rewards[0], infos["tokens"][0], infos["seconds"][0], infos["tree"][0]) == (0, 0, 0, "")
        else:
            assert infos["tokens"][0] == infos["accept_length"][0] + 1
            assert infos["seconds"][0] > 0
        after_end = bool(terminated[0] or truncated[0])
    assert resets >= 3


def test_it_warms_up_with_the_prompt_that_is_asked_for(make, monkeypatch):
    env = make().unwrapped
    start, lengths = env.decoder.start, []

    def started(prompt, *args, **settings):
        lengths.append(len(prompt))
        return start(prompt, *args, **settings)

    monkeypatch.setattr(env.decoder, "start", started)
    env.warm_up("t3")
    assert set(lengths) == {4}
    env.warm_up()
    assert lengths[-1] == 1
    with pytest.raises(ValueError, match="no prompt 'gone'"):
        env.warm_up("gone")
