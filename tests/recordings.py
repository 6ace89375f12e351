"""Random recordings, and recordings of the tiny model, for tests of what runs on them."""

import numpy as np

from entmtp_env.decoding.batch import generate_batch
from entmtp_env.decoding.ranks import NO_TOKEN, NOT_DRAFTABLE
from entmtp_env.engine import get_engine
from entmtp_env.prompts import load_prompts
from entmtp_env.replay.recorder import Recorder, Text
from entmtp_env.replay.recording import RecordedText, Recording
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank

COSTS = "analytic:base=0.02,node=0.0005,depth=0.001,context=0.0001"
BANK = TopologyBank([DraftTree.chain(1), DraftTree.chain(3), DraftTree("wide", ((0,), (1,), (2,), (1, 0)))])


def seconds(tree, context):
    """What a step takes by ``COSTS``."""
    return 0.02 + 0.0005 * len(tree) + 0.001 * tree.depth + 0.0001 * context


def accepted(tree, ranks):
    """Length of the longest prefix of ``ranks`` that is a path of ``tree``."""
    return max(d for d in range(len(ranks) + 1) if d == 0 or tuple(ranks[:d]) in tree.nodes)


def random_recording(rng, texts=3, depth=3, longest=12, cap=12, candidates=None, name="t"):
    """A recording of random ranks; some texts end by EOS, some at the cap."""
    candidates = candidates or DraftTree("candidates")
    lengths = rng.integers(1, longest + 1, size=texts)
    recorded, ranks = [], []
    for i, n in enumerate(lengths):
        reason = "length" if n == cap and rng.random() < 0.5 else "eos"
        recorded.append(RecordedText(f"{name}{i}", int(rng.integers(1, 9)), i, reason, f"text {i}"))
        drawn = rng.choice([0, 0, 0, 1, 2, 5, NOT_DRAFTABLE], size=(n + 1, depth))
        behind = np.arange(n + 1)[:, None] + np.arange(1, depth + 1) > n
        drawn[behind] = NO_TOKEN
        ranks.append(drawn)
    rows = int(lengths.sum()) + texts
    identity = {
        "model_fingerprint": "m",
        "heads_fingerprint": "h",
        "acceptance": "greedy",
        "dtype": "float32",
        "max_new_tokens": cap,
    }

    def floats(*shape):
        return rng.random(shape, dtype=np.float32)

    return Recording(
        manifest=identity,
        texts=tuple(recorded),
        offsets=np.concatenate(([0], np.cumsum(lengths + 1))),
        tokens=rng.integers(0, 99, size=rows, dtype=np.int32),
        ranks=np.concatenate(ranks).astype(np.int32),
        base_top1=floats(rows),
        base_entropy=floats(rows),
        head_top1=floats(rows, depth),
        head_entropy=floats(rows, depth),
        root_shape=rng.random((rows, 5)) < 0.5,
        candidates=candidates,
        path_values=floats(rows, len(candidates)).astype(np.float16),
    )


def saved_settings(folder, recording, bank=BANK):
    """Save a recording and a bank; arguments for a replay environment of them."""
    recording.save(folder / "recording.npz")
    bank.save(folder / "bank.json")
    return {
        "recording": str(folder / "recording.npz"),
        "bank": str(folder / "bank.json"),
        "costs": COSTS,
    }


def record_tiny(files, cap, acceptance="greedy", seeds=None, candidates=AUTOREGRESSIVE):
    """Record the prompts of ``tiny_files``; ``seeds`` of the sampling, by prompt id."""
    engine = get_engine(files.model, files.heads, "float32", "cpu")
    recorder = Recorder(engine, acceptance, cap, candidates)
    texts = [
        Text(prompt.prompt_id, tuple(engine.encode(prompt)), (seeds or {}).get(prompt.prompt_id, 0))
        for prompt in load_prompts(files.prompts)
    ]
    requests = [recorder.request(text) for text in texts]
    replies = dict(
        generate_batch(engine.backbone, requests, max_new_tokens=cap, eos_token_ids=engine.eos_token_ids)
    )
    return recorder.record(
        [Text(t.prompt_id, t.prompt, t.seed, tuple(replies[i])) for i, t in enumerate(texts)]
    )
