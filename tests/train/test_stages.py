import gymnasium
import numpy as np
import pytest

from entmtp_env.decoding.stages import load_stages
from entmtp_env.engine import get_engine
from entmtp_env.prompts import load_prompts
from entmtp_env.replay.staged_recorder import record_stages
from policies import run_episode
from policies.staged import StagedThreshold
from tests.recordings import COSTS, record_tiny
from train.stages import StagesCommand, make_stages

SETTINGS = {"expand": (1, 2), "children": (3, 2), "budgets": (0, 2, 5)}


@pytest.fixture(scope="module")
def recording(tiny_files, tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "tiny.npz"
    made = record_tiny(tiny_files, 16)
    made.save(path)
    return made, str(path)


def command(files, recording, out, **changes):
    own = {"model": files.model, "heads": files.heads, "dtype": "float32", "device": "cpu"}
    settings = SETTINGS | own | {"prompts": (files.prompts,)} | changes
    return StagesCommand(recordings=(recording,), out=out, **settings)


def test_drafts_and_stages_replay_at_once(tiny_files, recording, tmp_path):
    texts, path = recording
    drafts = make_stages(command(tiny_files, path, tmp_path / "run"))
    engine = get_engine(tiny_files.model, tiny_files.heads, "float32", "cpu")
    prompts = {p.prompt_id: engine.encode(p) for p in load_prompts(tiny_files.prompts)}
    np.testing.assert_array_equal(drafts.values, record_stages(engine, texts, prompts, drafts.shape).values)
    stages = load_stages(str(tmp_path / "run" / "stages.json"))
    assert (stages.name, stages.budgets, len(stages.curves)) == ("run", (0, 2, 5), 2)
    env = gymnasium.make(
        "EntMTP/StagedReplay-v0",
        recording=path,
        drafts=str(tmp_path / "run" / "drafts.npz"),
        stages=str(tmp_path / "run" / "stages.json"),
        costs=COSTS,
    )
    episode = run_episode(env, StagedThreshold(env, thresholds="0|0.2"), "t1", seed=0)
    assert episode.tokens == texts.lengths[[t.prompt_id for t in texts.texts].index("t1")]


def test_texts_for_evaluation_are_only_drafted(tiny_files, recording, tmp_path):
    make_stages(command(tiny_files, recording[1], tmp_path, fit=False))
    assert [path.name for path in tmp_path.iterdir()] == ["drafts.npz"]
    with pytest.raises(FileExistsError, match=r"drafts\.npz: there already; .*--overwrite"):
        make_stages(command(tiny_files, recording[1], tmp_path, fit=False))
    make_stages(command(tiny_files, recording[1], tmp_path, overwrite=True))
    assert {path.name for path in tmp_path.iterdir()} == {"drafts.npz", "stages.json"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budgets": (0, 9)}, "exceeds the 7 drafted"),
        ({"expand": (1, 4)}, "cannot expand 4 nodes"),
    ],
)
def test_settings_are_checked_before_the_model_is_loaded(tiny_files, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        command(tiny_files, "none.npz", tmp_path, model="none", **change)
    with pytest.raises(ValueError, match="at least one"):
        StagesCommand(recordings=(), out=tmp_path)
