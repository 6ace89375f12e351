import numpy as np
import pytest

from entmtp_env.trees import DraftTree, TopologyBank
from eval.step_prices import RandomRuns, price_steps
from policies.rollout import Episode, StepRecord

BANK = TopologyBank([DraftTree("none"), DraftTree.chain(1), DraftTree.chain(2)], "three")
PROMPT = {"a": 10, "b": 40}


def price(tree, context):
    return 0.01 * (1 + tree) * (1 + 0.002 * context)


def episode(prompt_id, actions, slow_switch=1.0, noise=None):
    context, steps, before = PROMPT[prompt_id], [], None
    for i, action in enumerate(actions):
        seconds = price(action, context) * (slow_switch if action != before else 1.0)
        seconds *= 1.0 if noise is None else noise[i]
        parts = {"draft_seconds": 0.2 * seconds if action else 0.0, "verify_seconds": 0.7 * seconds}
        zero = dict.fromkeys(set(StepRecord.__dataclass_fields__), 0)
        steps.append(
            StepRecord(
                **zero
                | parts
                | {"action": action, "tree": BANK.names[action], "tokens": 2, "seconds": seconds}
            )
        )
        context, before = context + 2, action
    return Episode(prompt_id, tuple(steps), 0.001 * PROMPT[prompt_id], "length", "")


def test_lines_are_found_and_steps_behind_another_tree_left_out():
    runs = [0, 0, 0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 2, 2]
    table = price_steps(
        "run", BANK, [episode(p, runs, slow_switch=3.0) for p in PROMPT], PROMPT, {"probe": "none"}
    )
    costs = table.at(BANK, np.array([15, 40, 60]))
    # One slope for all trees is exact where they are proportional.
    expected = np.array([[price(k, c) for c in (15, 40, 60)] for k in range(3)])
    assert costs.seconds == pytest.approx(expected, rel=0.01)
    assert costs.verify_seconds == pytest.approx(0.7 * expected, rel=0.01)
    assert (costs.draft_seconds[0] == 0).all()
    assert costs.draft_seconds[1:] == pytest.approx(0.2 * expected[1:], rel=0.01)
    assert costs.prefill_seconds == pytest.approx([0.015, 0.04, 0.06], rel=1e-3)
    assert table.probe == "none"


def test_a_trees_line_adds_up_to_what_its_steps_took():
    rng = np.random.default_rng(0)
    actions = np.repeat(rng.integers(3, size=40), 4)
    noise = np.where(rng.random(160) < 0.1, 4.0, 1.0)
    own = episode("a", actions.tolist(), noise=noise)
    table = price_steps("run", BANK, [own], PROMPT, {})
    contexts = 10 + 2 * np.arange(160)
    stays = np.r_[False, actions[1:] == actions[:-1]]
    for k in range(3):
        picked = stays & (actions == k)
        replayed = table.at(BANK, contexts[picked]).seconds[k].sum()
        assert replayed == pytest.approx(
            sum(s.seconds for s, p in zip(own.steps, picked, strict=True) if p), rel=1e-6
        )


def test_a_tree_without_a_step_is_named():
    with pytest.raises(ValueError, match=r"no step of chain-2 was timed in 1 texts; run more prompts"):
        price_steps("run", BANK, [episode("a", [0, 0, 1, 1, 2, 0])], PROMPT, {})


def test_every_tree_has_its_runs():
    policy = RandomRuns(5, seed=3)
    actions = [int(policy.predict(np.zeros(2))[0]) for _ in range(60)]
    assert np.bincount(actions).tolist() == [12] * 5
    assert all(len(set(actions[i : i + 4])) == 1 for i in range(0, 60, 4))
