from benchmarks.feature_times import KINDS, feature_findings, feature_turn
from benchmarks.interleaved import take_turns
from entmtp_env.live import LiveEnv


def test_features_and_policy_add_up(tiny_files):
    env = LiveEnv(**(tiny_files.kwargs | {"max_new_tokens": 3}))
    steps = []
    decode = env.decoder.step
    env.decoder.step = lambda tree: steps.append(tree) or decode(tree)
    samples = take_turns([feature_turn(env, 7)], 2, lambda: None)
    # Texts of three tokens end on the way; each of the three rounds goes on with the next one.
    assert len(steps) == 3 * 8
    assert set(samples) == {f"feature {kind}" for kind in KINDS}
    assert all((values > 0).all() for values in samples.values())
    doubled = feature_findings({name: 0 * values + 1e-6 for name, values in samples.items()})
    assert [round(own.value, 6) for own in doubled] == [1, 1, 1, 3]
