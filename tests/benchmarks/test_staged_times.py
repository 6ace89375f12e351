from benchmarks.interleaved import take_turns
from benchmarks.staged_times import KINDS, staged_findings, staged_turn
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.stages import Stages
from entmtp_env.staged_env import StagedEnv


def test_decisions_in_live_texts(tiny_files, tmp_path):
    stages = Stages("two", DraftShape((1, 2), (3, 2)), (0, 1, 5))
    stages.save(tmp_path / "stages.json")
    settings = {key: value for key, value in tiny_files.kwargs.items() if key not in ("bank", "probe")}
    env = StagedEnv(**settings | {"max_new_tokens": 3, "stages": str(tmp_path / "stages.json")})
    verified = []
    verify = env.decoder.verify_best
    env.decoder.verify_best = lambda nodes: verified.append(nodes) or verify(nodes)
    samples = take_turns([staged_turn(env, 4)], 2, lambda: None)
    assert verified == [5] * 3 * 5
    assert set(samples) == {f"staged {kind}" for kind in KINDS}
    assert all((values > 0).all() for values in samples.values())
    ones = staged_findings({name: 0 * values + 1e-6 for name, values in samples.items()})
    assert [round(own.value, 6) for own in ones] == [1, 1, 2, 1]
