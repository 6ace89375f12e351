"""A staged policy on the device: the same decisions as in a staged environment."""

import gymnasium
import numpy as np
import pytest

import entmtp_env  # noqa: F401
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.isotonic import Curve
from entmtp_env.decoding.staged_graph import StagedGraphDecoder
from entmtp_env.decoding.stages import DEEPER, Stages
from entmtp_env.decoding.static_choice import StagedChoice
from policies.staged import StagedThreshold
from tests.entmtp_env.decoding.tape import Tapes

OUTPUTS = ((0.0, 0.3, 0.9), (0.0, 0.3, 0.8), (0.0, 0.1, 1.0), (0.1, 0.2, 0.4))
CURVES = tuple(Curve((0.0, 0.2, 1.0), outputs) for outputs in OUTPUTS)
STAGES = Stages("tiny", DraftShape((1, 2, 2, 2), (4, 3, 2, 2)), (0, 1, 2, 4, 8, 16), CURVES)


@pytest.mark.parametrize("rate", [None, 40.0])
def test_decisions_are_those_of_the_policy_in_its_environment(tiny_files, tmp_path, rate):
    STAGES.save(tmp_path / "stages.json")
    settings = tiny_files.kwargs | {"stages": str(tmp_path / "stages.json")}
    env = gymnasium.make("EntMTP/Staged-v0", **settings).unwrapped
    costs = "analytic:base=0.02|node=0.0015|depth=0.001|context=0.0001"
    policy = StagedThreshold(env, thresholds="0.3|0.3|0.2|0.15", costs=costs, rate=rate)
    prices = policy._costs
    choice = StagedChoice(
        tuple(policy._thresholds.tolist()), prices.verify_seconds, prices.draft_seconds, rate
    )
    decoder = StagedGraphDecoder(
        env.engine.backbone,
        env.engine.heads,
        STAGES,
        capacity=env.capacity,
        eos_token_ids=env.engine.eos_token_ids,
        capture=Tapes(),
    )
    sizes, depths = set(), set()
    for seed, prompt in enumerate(env.prompts):
        observation, _ = env.reset(seed=seed, options={"prompt_id": prompt.prompt_id})
        decoder.start(env.engine.encode(prompt), max_new_tokens=env.max_new_tokens)
        memory, done, depth = None, False, 0
        while not done:
            action, memory = policy.predict(observation, memory, np.array([memory is None]))
            observation, _, terminated, truncated, info = env.step(int(action))
            done = terminated or truncated
            if action == DEEPER:
                depth += 1
                continue
            step = decoder.step_by(choice)
            nodes = env.decoder.built.nodes.tolist()
            assert decoder.built.nodes.tolist() == nodes
            assert (len(step.tokens), step.finish_reason) == (info["tokens"], info["finish_reason"])
            sizes.add(len(nodes) - 1)
            depths.add(depth)
            depth = 0
        assert decoder.tokens == env.decoder.tokens
    assert len(sizes) >= 2, sizes
    assert len(depths) >= 3, depths
