"""Random staged drafts of random recordings, for tests of what runs on them."""

import numpy as np

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.isotonic import Curve
from entmtp_env.decoding.stages import Stages
from entmtp_env.replay.cost_table import CostTable
from entmtp_env.replay.staged_drafts import StagedDrafts, identity
from entmtp_env.trees import DraftTree
from tests.recordings import COSTS, random_recording

SHAPE = DraftShape((1, 2, 3), (3, 3, 2))
CURVES = tuple(Curve((0.0, 0.4, 1.0), y) for y in ((0.0, 0.2, 0.9), (0.0, 0.5, 0.6), (0.0, 0.2, 1.0)))
STAGES = Stages("random", SHAPE, (0, 1, 2, 4, 8, 12), CURVES)


def random_drafts(rng, recording, shape=SHAPE):
    """Drafts with random confidences below the best nodes of the depth before."""
    rows = len(recording.tokens)
    above, values, places = np.ones((rows, 1), dtype=np.float32), [], []
    for expand, children in zip(shape.expand, shape.children, strict=True):
        best = np.argsort(-above, axis=1, kind="stable")[:, :expand]
        confidence = -np.sort(-rng.random((rows, expand, children), dtype=np.float32), axis=2) / 1.5
        above = np.take_along_axis(above, best, axis=1)[:, :, None] * confidence
        above = above.reshape(rows, -1)
        values.append(above)
        places.append(best)
    ids = tuple(text.prompt_id for text in recording.texts)
    return StagedDrafts(
        identity(recording),
        shape,
        ids,
        recording.offsets,
        recording.tokens,
        np.concatenate(values, axis=1),
        np.concatenate(places, axis=1).astype(np.uint16),
    )


def measured_costs(folder, seed=0):
    """Save a table whose depths and sizes cost what they like; its path."""
    rng = np.random.default_rng(seed)
    chains = [DraftTree.chain(depth) for depth in range(SHAPE.depth + 1)]
    stars = [DraftTree(f"star-{n}", tuple((rank,) for rank in range(n))) for n in STAGES.budgets if n > 3]
    trees, contexts = [*chains, *stars], np.array([5, 20, 60])
    drafting = np.concatenate((np.zeros((1, 3)), rng.uniform(1e-4, 5e-3, (SHAPE.depth, 3)).cumsum(axis=0)))
    draft = np.array([drafting[tree.depth] for tree in trees])
    verify = rng.uniform(0.02, 0.03, draft.shape)
    table = CostTable(
        "measured",
        tuple(trees),
        contexts,
        seconds=draft + verify,
        lower=draft + verify,
        upper=draft + verify,
        draft_seconds=draft,
        verify_seconds=verify,
        prefill_seconds=np.array([0.01, 0.02, 0.05]),
        manifest={"probe": "none"},
    )
    table.save(folder / "costs.json")
    return str(folder / "costs.json")


def staged_settings(folder, seed=0, stages=STAGES, **settings):
    """Save a random recording, its drafts and stages; arguments for a staged replay of them."""
    rng = np.random.default_rng(seed)
    recording = random_recording(rng, **settings)
    recording.save(folder / "recording.npz")
    random_drafts(rng, recording, stages.shape).save(folder / "drafts.npz")
    stages.save(folder / "stages.json")
    return {
        "recording": str(folder / "recording.npz"),
        "drafts": str(folder / "drafts.npz"),
        "stages": str(folder / "stages.json"),
        "costs": COSTS,
    }
