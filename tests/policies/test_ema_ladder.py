import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.trees.bank import TopologyBank
from entmtp_env.trees.tree import DraftTree
from policies import make_policy
from policies.ema_ladder import EmaLadder

TREES = ("chain-1", "tree-4x2", "chain-3", "tree-15x4")
SETTINGS = st.fixed_dictionaries(
    {
        "alpha": st.sampled_from([0.1, 0.25, 0.5, 1.0]),
        "warmup": st.integers(1, 6),
        "margin": st.sampled_from([0.0, 0.125, 0.3]),
        "dwell": st.integers(1, 7),
    }
)
WISHES = st.lists(st.integers(0, 4), min_size=1, max_size=80)


def play(env, observe, policy, wishes, override=None):
    """Names of the trees used when step t accepts min(depth, wishes[t]) drafts."""
    state, used, accepted, last = None, [], 0, 0
    for step, wish in enumerate(wishes):
        row = observe(accept_last=[accepted / env.bank.depth], last_tree=[last / (len(env.bank) - 1)])[0]
        action, state = policy.predict(row, state)
        used.append(env.bank[int(action)].name)
        last = (override or {}).get(step, int(action))
        accepted = min(env.bank[last].depth, wish)
    return used


def slow_ladder(env, wishes, alpha, warmup, margin, dwell):
    """The rule, one step at a time, from the accept lengths themselves."""
    depths = [env.bank[env.bank.index(tree)].depth for tree in TREES]
    used, history, rung, since = [], [], 0, 0
    for step, wish in enumerate(wishes):
        if len(history) >= warmup and step - since >= dwell:
            ema = history[0]
            for accepted in history[1:]:
                ema += alpha * (accepted - ema)
            if rung + 1 < len(TREES) and ema > depths[rung] - 0.5 + margin:
                rung, since = rung + 1, step
            elif rung > 0 and ema <= depths[rung - 1] - 0.5 - margin:
                rung, since = rung - 1, step
        used.append(TREES[rung])
        history.append(min(depths[rung], wish))
    return used


@settings(deadline=None)
@given(wishes=WISHES, options=SETTINGS)
def test_equals_a_slow_reference(env, observe, wishes, options):
    policy = EmaLadder(env, trees=TREES, **options)
    assert play(env, observe, policy, wishes) == slow_ladder(env, wishes, **options)


@settings(deadline=None)
@given(wishes=WISHES, options=SETTINGS)
def test_no_two_switches_within_the_dwell(env, observe, wishes, options):
    used = play(env, observe, EmaLadder(env, trees=TREES, **options), wishes)
    switches = [t for t in range(1, len(used)) if used[t] != used[t - 1]]
    assert all(t >= max(options["warmup"], options["dwell"]) for t in switches[:1])
    assert all(b - a >= options["dwell"] for a, b in itertools.pairwise(switches))


def test_climbs_on_easy_text_and_comes_back_on_hard_text(env, observe):
    policy = make_policy("ema-ladder", env)
    used = play(env, observe, policy, [4] * 60 + [0] * 60)
    rungs = [policy.options["trees"].index(tree) for tree in used]
    assert (rungs[0], rungs[59], rungs[-1]) == (0, len(policy.options["trees"]) - 1, 0)
    assert all(abs(a - b) <= 1 for a, b in itertools.pairwise(rungs))


def test_steps_that_drafted_nothing_do_not_count(env, observe):
    policy = EmaLadder(env, trees=TREES, warmup=4, dwell=1)
    plain = env.bank.index("autoregressive")
    used = play(env, observe, policy, [1] * 12, override={0: plain, 3: plain, 5: plain})
    assert used.index("tree-4x2") == 7


def test_an_edge_belongs_to_the_lower_rung(env, observe):
    policy = EmaLadder(env, trees="chain-2|chain-3", edges=1, alpha=1, warmup=1, margin=0, dwell=1)
    assert play(env, observe, policy, [2, 1, 1, 1]) == ["chain-2", "chain-3", "chain-2", "chain-2"]


def test_the_first_observation_holds_no_accept_length(bare_env, observe):
    env = bare_env(TopologyBank([DraftTree.chain(1), DraftTree.chain(2), DraftTree("plain")]))
    policy = EmaLadder(env, alpha=0.5, warmup=1, dwell=1)
    assert play(env, observe, policy, [1, 1]) == ["chain-1", "chain-2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("alpha=0", r"alpha=0 must be in \(0, 1\]"),
        ("margin=-0.1", "margin=-0.1 must be >= 0"),
        ("dwell=0", "option dwell=0 must be a whole number >= 1"),
        ("warmup=2.5", "option warmup=2.5"),
        ("trees=chain-1|chain-2,edges=1", "'chain-1' can never be crossed"),
        ("trees=autoregressive|chain-2,edges=0.5", "'autoregressive' can never be crossed"),
        ("margin=0.6", "can never be crossed"),
    ],
)
def test_wrong_options_are_named(env, options, message):
    with pytest.raises(ValueError, match=message):
        make_policy(f"ema-ladder:{options}", env)


def test_it_needs_the_accept_history(fake_env):
    with pytest.raises(ValueError, match="'last_tree'"):
        make_policy("ema-ladder", fake_env(features=("accept_last",)))
