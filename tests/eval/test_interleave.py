import numpy as np
import pytest

from entmtp_env.prompts import Prompt
from eval.interleave import (
    Entrant,
    EvaluationError,
    draw_prompts,
    interleave,
    interleave_entrants,
    warm_up,
)
from policies import make_policy
from tests.eval.decoder_env import DecoderEnv

POLICIES = ("autoregressive", "hydra-default", "threshold", "random")


@pytest.fixture
def env(decoder, prompt_file):
    return decoder("m", "auto", "default", prompt_file(), "greedy", 12, "none", "all", 2048, "float32", "cpu")


@pytest.fixture
def policies(env):
    return {spec: make_policy(spec, env) for spec in POLICIES}


SEEDS = {f"q{i}": 50 + i for i in range(12)}


def test_every_policy_runs_every_prompt_with_its_seed(env, policies):
    runs = list(interleave(env, policies, SEEDS, seed=0))
    for spec in POLICIES:
        assert [(r.episode.prompt_id, r.seed) for r in runs if r.policy == spec] == list(SEEDS.items())
    resets = [detail for event, detail in env.log if event == "reset"]
    assert resets == [item for item in SEEDS.items() for _ in POLICIES]


def test_all_policies_finish_a_prompt_before_the_next_in_an_order_that_changes(env, policies):
    runs = [run.policy for run in interleave(env, policies, SEEDS, seed=0)]
    orders = [tuple(runs[i : i + len(POLICIES)]) for i in range(0, len(runs), len(POLICIES))]
    assert all(sorted(order) == sorted(POLICIES) for order in orders)
    assert len(set(orders)) > 4
    assert {order[0] for order in orders} == set(POLICIES)
    assert [run.policy for run in interleave(env, policies, SEEDS, seed=0)] == runs
    assert [run.policy for run in interleave(env, policies, SEEDS, seed=1)] != runs


def test_lossless_policies_emit_equal_tokens(env, policies):
    by_prompt = {}
    for run in interleave(env, policies, SEEDS, seed=0):
        by_prompt.setdefault(run.episode.prompt_id, set()).add((run.episode.tokens, run.episode.text))
    assert all(len(outcomes) == 1 for outcomes in by_prompt.values())
    assert len({text for outcomes in by_prompt.values() for _, text in outcomes}) == len(SEEDS)


@pytest.fixture
def apart(decoder, prompt_file):
    """The policies, each with an environment of its own."""
    settings = ("greedy", 12, "none", "all", 2048, "float32", "cpu")
    envs = {spec: decoder("m", "auto", "default", prompt_file(), *settings) for spec in POLICIES}
    return {spec: Entrant(env, make_policy(spec, env)) for spec, env in envs.items()}


def test_rows_take_turns_after_every_step(apart, monkeypatch):
    turns = []
    for spec, entrant in apart.items():
        step = entrant.env.step
        monkeypatch.setattr(
            entrant.env, "step", lambda action, spec=spec, step=step: (turns.append(spec), step(action))[1]
        )
    runs = []
    for run in interleave_entrants(apart, SEEDS, seed=0, turns="step"):
        runs.append(run)
        if len(runs) % len(POLICIES):
            continue
        steps = {own.policy: len(own.episode.steps) for own in runs[-len(POLICIES) :]}
        order = list(dict.fromkeys(turns))
        rounds = [[spec for spec in order if steps[spec] > k] for k in range(max(steps.values()))]
        assert turns == [spec for own in rounds for spec in own]
        turns.clear()
    assert len(runs) == len(POLICIES) * len(SEEDS)


def test_turns_change_no_episode_but_its_times(apart):
    def told(run):
        episode = run.episode
        steps = [(step.action, step.tokens) for step in episode.steps]
        return run.policy, run.seed, episode.prompt_id, steps, episode.text

    by_step, by_text = (
        sorted(told(run) for run in interleave_entrants(apart, SEEDS, seed=0, turns=turns))
        for turns in ("step", "text")
    )
    assert by_step == by_text


def test_rows_that_take_turns_after_every_step_must_not_share_an_environment(env, policies):
    entrants = {name: Entrant(env, own) for name, own in policies.items()}
    with pytest.raises(ValueError, match="no two rows may share an environment"):
        next(interleave_entrants(entrants, SEEDS, seed=0, turns="step"))


def test_what_is_done_is_left_out_whatever_the_turns(apart):
    done = {("threshold", "q1"), *((spec, "q2") for spec in POLICIES)}
    for turns in ("step", "text"):
        runs = interleave_entrants(apart, SEEDS, seed=0, done=done, turns=turns)
        left = {(spec, prompt_id) for spec in POLICIES for prompt_id in SEEDS} - done
        assert {(run.policy, run.episode.prompt_id) for run in runs} == left


def test_warming_up_covers_trees_and_policies(env):
    class Counting:
        calls = 0

        def predict(self, observation, state=None, episode_start=None, deterministic=True):
            self.calls += 1
            assert episode_start.tolist() == [True]
            return np.array(0), None

    policies = {"a": Counting(), "b": Counting()}
    warm_up(env, policies, "q3")
    assert [event for event, _ in env.log] == ["warm_up", "reset"]
    assert [policy.calls for policy in policies.values()] == [1, 1]


def test_a_failed_episode_stops_the_run(env, policies, monkeypatch):
    monkeypatch.setattr(DecoderEnv, "broken_on", "q1")
    finished = []
    with pytest.raises(
        EvaluationError, match=r"policy '.*' on prompt 'q1' ended with 'error: out of memory'"
    ):
        finished.extend(r.episode.prompt_id for r in interleave(env, policies, SEEDS, seed=0))
    with pytest.raises(EvaluationError, match="'threshold'"):
        list(interleave(env, {"threshold": policies["threshold"]}, {"q1": 0}, seed=0))


def test_an_environment_that_ignores_the_prompt_is_found_out(env, policies, monkeypatch):
    reset = DecoderEnv.reset
    monkeypatch.setattr(DecoderEnv, "reset", lambda self, *, seed, options: reset(self, seed=seed))
    with pytest.raises(EvaluationError, match="asked for prompt 'q0'"):
        list(interleave(env, policies, SEEDS, seed=0))


def test_an_exception_names_policy_and_prompt(env):
    class Broken:
        def predict(self, observation, state=None, episode_start=None, deterministic=True):
            raise ValueError("shapes do not match")

    with pytest.raises(RuntimeError, match="policy 'mine' failed on prompt 'q0'") as caught:
        list(interleave(env, {"mine": Broken()}, SEEDS, seed=0))
    assert str(caught.value.__cause__) == "shapes do not match"


def test_prompts_are_drawn_with_their_seeds():
    prompts = [Prompt(f"p{i}", "text") for i in range(20)]
    every = draw_prompts(prompts, 0, seed=7)
    assert sorted(every) == sorted(prompt.prompt_id for prompt in prompts)
    assert list(every) != [prompt.prompt_id for prompt in prompts]
    assert list(every.values()) == list(range(7, 27))
    assert list(draw_prompts(prompts, 5, seed=7).items()) == list(every.items())[:5]
    assert draw_prompts(prompts, 50, seed=7) == every
    assert list(draw_prompts(prompts, 0, seed=8)) != list(every)
