"""No file, however damaged or hostile, does more than be refused."""

import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from entmtp_env.decoding import Backbone, load_heads, save_heads
from entmtp_env.decoding.checkpoint import heads_fingerprint, read_manifest
from entmtp_env.decoding.node_table import NodeTable
from entmtp_env.decoding.published import load_published
from entmtp_env.decoding.stages import Stages
from entmtp_env.prompts import load_prompts
from entmtp_env.replay.cost_table import CostTable
from entmtp_env.replay.env import ReplayEnv
from entmtp_env.replay.recording import Recording
from entmtp_env.replay.staged_drafts import StagedDrafts
from entmtp_env.trees import DraftTree, TopologyBank, default_bank
from eval.stored import load_results
from policies import PolicyFile, make_policy
from policies.learned import Learned
from tests import fuzzing
from tests.eval.tiny_results import tiny_results
from tests.fake_env import FakeEnv
from tests.policies.test_network import make_network
from tests.published import hydra_state, medusa_state, save_hydra, save_medusa, vicuna
from tests.recordings import BANK, COSTS, random_recording
from tests.staged import STAGES, random_drafts
from tests.tiny import tiny_backbone, tiny_heads
from train.texts import read_texts

pytestmark = pytest.mark.slow
COUNT = 250
REFUSALS = (ValueError, FileNotFoundError)
ENV = FakeEnv()


@dataclass(frozen=True)
class Loader:
    """A loader and how to write what it reads.

    ``load`` gives what must stay equal when a file with a checksum is read; ``distort`` makes a hostile file
    whose checksum, if it has one, is right.
    """

    write: Callable[[Path], Any]
    load: Callable[[Path], Any]
    distort: Callable[[str, bytes, Random, Path], bytes]
    checksum: bool = False


def act(policy):
    """A decision of a policy that could be loaded is legal."""
    action, _ = policy.predict(np.full(len(ENV.feature_names), 0.5, np.float32))
    assert 0 <= int(action) < len(ENV.bank)
    return policy.spec, int(action)


def load_bank(folder):
    bank = TopologyBank.load(folder / "bank.json")
    return bank.name, bank.fingerprint, bank.union.fingerprint


def cost_table():
    shape = (len(BANK), 2)
    seconds = np.random.default_rng(0).uniform(0.1, 0.2, shape)
    parts = {name: np.full(shape, value) for name, value in (("lower", 0.1), ("upper", 0.2))}
    parts |= {"draft_seconds": seconds / 4, "verify_seconds": seconds / 2, "prefill_seconds": np.ones(2)}
    return CostTable("fuzz", tuple(BANK), np.array([8, 64]), seconds, manifest={"probe": "none"}, **parts)


def load_costs(folder):
    table = CostTable.load(folder / "costs.json")
    assert np.isfinite(table.at(TopologyBank(table.trees), np.array([1, 9])).seconds).all()
    return table.fingerprint


def load_recording(folder):
    path = str(folder / "r.npz")
    recording = Recording.load(path)
    bank = TopologyBank([tree for tree in BANK if tree.depth <= recording.depth])
    bank.save(folder / "bank.json")
    env = ReplayEnv(recording=path, bank=str(folder / "bank.json"), costs=COSTS)
    (folder / "bank.json").unlink()
    observation, _ = env.reset(seed=0)
    done = False
    while not done:
        assert env.observation_space.contains(observation)
        observation, _, terminated, truncated, _ = env.step(len(bank) - 1)
        done = terminated or truncated
    return recording.fingerprint, recording.manifest


def load_stages_file(folder):
    stages = Stages.load(folder / "stages.json")
    table = NodeTable(stages)
    table.add([0.5] * stages.shape.widths[0], [0] * stages.shape.expand[0])
    assert stages.settle(len(stages) - 1, 0) < len(stages)
    return stages


def save_staged_drafts(folder):
    rng = np.random.default_rng(0)
    recording = random_recording(rng)
    random_drafts(rng, recording).save(folder / "drafts.npz")


def load_staged_drafts(folder):
    drafts = StagedDrafts.load(folder / "drafts.npz")
    recording = random_recording(np.random.default_rng(0))
    found = drafts.of(recording).true_nodes(recording.ranks)
    assert ((found >= -1) & (found <= drafts.shape.nodes)).all()
    return drafts.identity, drafts.shape, drafts.prompt_ids, drafts.values.tobytes()


def save_training_texts(folder):
    lines = [fuzzing.dumps({"p": [1, i, 7], "g": [3, 4, i, 2], "id": f"q{i}"}) for i in range(6)]
    (folder / "texts.jsonl").write_bytes(b"\n".join(lines))


def load_own_heads(folder):
    path, backbone = folder / "heads.safetensors", tiny_backbone()
    manifest, heads = read_manifest(path), load_heads(path)
    fingerprint = heads_fingerprint(heads)
    heads.attach(backbone)
    assert heads.logits(1, torch.ones(1, heads.inputs(1) * heads.config.hidden_size)).isfinite().all()
    return fingerprint, manifest, heads.config


def load_released(folder):
    heads = load_published(folder, BASE)
    heads.attach(BASE)
    heads.logits(1, torch.ones(1, heads.inputs(1) * heads.config.hidden_size))


def load_prompt_file(spec):
    prompts = load_prompts(spec)
    for prompt in prompts:
        text = prompt.prompt_id + prompt.text
        assert text.encode(errors="replace").decode() == text, "half a surrogate pair"
    return prompts


def load_comparison(folder):
    results = load_results(folder)
    for policies in results.sets().values():
        for runs in policies.values():
            assert np.isfinite([own.run.episode.tau + own.run.episode.seconds for own in runs]).all()


BASE = Backbone(vicuna(), torch.float32)
ROWS = [{"question": f"Why {i}? 東京 👩‍👧", "answer": "", "id": i} for i in range(6)]


def write_json_rows(folder):
    (folder / "q.json").write_bytes(fuzzing.dumps(ROWS))


def write_parquet(folder):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.Table.from_pylist(ROWS), folder / "q.parquet")


def write_lines(folder):
    lines = [fuzzing.dumps({"id": f"q{row['id']}", "prompt": row["question"]}) for row in ROWS]
    (folder / "p.jsonl").write_bytes(b"\n".join(lines))


def by_suffix(name, data, random, scratch):
    """Distort what has no checksum by its format."""
    if name.endswith(".pt"):
        return fuzzing.distort_pickle(data, random)
    if name.endswith(".jsonl"):
        return fuzzing.distort_lines(data, random)
    if name.endswith(".parquet"):
        return fuzzing.damage(data, random)
    return fuzzing.distort_json(data, random)


def sealed(name, data, random, scratch):
    return fuzzing.distort_sealed(data, random)


def save_learned(folder):
    network = make_network(sizes=(len(ENV.feature_names), 4, len(ENV.bank)))
    Learned(ENV, network, kind="q").save(folder / "policy.npz", {"seed": 3})


CANDIDATES = DraftTree("candidates", ((0,), (1,), (0, 0)))
LOADERS = {
    "bank": Loader(lambda folder: default_bank().save(folder / "bank.json"), load_bank, by_suffix),
    "recording": Loader(
        lambda folder: random_recording(np.random.default_rng(0), candidates=CANDIDATES).save(
            folder / "r.npz"
        ),
        load_recording,
        sealed,
        checksum=True,
    ),
    "cost table": Loader(
        lambda folder: cost_table().save(folder / "costs.json"),
        load_costs,
        lambda name, data, random, scratch: fuzzing.distort_cost_table(data, random),
        checksum=True,
    ),
    "stages": Loader(lambda folder: STAGES.save(folder / "stages.json"), load_stages_file, by_suffix),
    "staged drafts": Loader(save_staged_drafts, load_staged_drafts, sealed, checksum=True),
    "training texts": Loader(
        save_training_texts, lambda folder: read_texts(folder / "texts.jsonl"), by_suffix
    ),
    "policy": Loader(
        lambda folder: PolicyFile.of(make_policy("threshold", ENV), {"n": 3}).save(folder / "p.json"),
        lambda folder: act(make_policy(f"threshold@{folder / 'p.json'}", ENV)),
        by_suffix,
    ),
    "trained policy": Loader(
        save_learned,
        lambda folder: act(make_policy(f"learned@{folder / 'policy.npz'}", ENV)),
        sealed,
        checksum=True,
    ),
    "heads": Loader(
        lambda folder: save_heads(
            tiny_heads(tiny_backbone(), pack=False), folder / "heads.safetensors", manifest={"seed": 3}
        ),
        load_own_heads,
        lambda name, data, random, scratch: fuzzing.distort_heads(data, random, scratch),
        checksum=True,
    ),
    "released hydra": Loader(
        lambda folder: save_hydra(folder, hydra_state(vicuna())), load_released, by_suffix
    ),
    "released medusa": Loader(lambda folder: save_medusa(folder, medusa_state()), load_released, by_suffix),
    "prompts": Loader(write_lines, lambda folder: load_prompt_file(str(folder / "p.jsonl")), by_suffix),
    "rows of json": Loader(
        write_json_rows, lambda folder: load_prompt_file(f"gsm8k@{folder / 'q.json'}"), by_suffix
    ),
    "rows of parquet": Loader(
        write_parquet, lambda folder: load_prompt_file(f"gsm8k@{folder / 'q.parquet'}"), by_suffix
    ),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder for the files, deep in a tree that nothing else may be written to."""
    folder = tmp_path / "a" / "b" / "files"
    folder.mkdir(parents=True)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def fuzz(loader, place, change, must_refuse):
    """Load many changed versions of the loader's files, one changed at a time."""
    loader.write(place)
    originals = {path.name: path.read_bytes() for path in place.iterdir()}
    expected = loader.load(place)
    listing = sorted(place.parents[2].rglob("*"))
    for number in range(COUNT):
        random = Random(number)
        name = random.choice(sorted(originals))
        changed = change(name, originals[name], random)
        (place / name).write_bytes(changed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = loader.load(place)
        except REFUSALS:
            pass
        except BaseException as error:
            raise AssertionError(f"variant {number} of {name}: {error!r}") from error
        else:
            assert not must_refuse or result == expected, f"variant {number} of {name} passed"
        (place / name).write_bytes(originals[name])
    assert sorted(place.parents[2].rglob("*")) == listing
    assert loader.load(place) == expected


@pytest.mark.parametrize("name", LOADERS)
def test_damaged_files(name, place):
    loader = LOADERS[name]
    fuzz(loader, place, lambda _, data, random: fuzzing.damage(data, random), loader.checksum)


@pytest.mark.parametrize("name", LOADERS)
def test_hostile_files(name, place, tmp_path_factory):
    loader, scratch = LOADERS[name], tmp_path_factory.mktemp("scratch") / "file"
    fuzz(loader, place, lambda *change: loader.distort(*change, scratch), must_refuse=False)


@pytest.mark.parametrize("change", [fuzzing.damage, None], ids=["damaged", "hostile"])
def test_results(change, place, tiny_files):
    def write(folder):
        for path in tiny_results(tiny_files).iterdir():
            if path.suffix in (".json", ".jsonl"):
                (folder / path.name).write_bytes(path.read_bytes())

    def apply(name, data, random):
        return change(data, random) if change else by_suffix(name, data, random, None)

    fuzz(Loader(write, load_comparison, by_suffix), place, apply, must_refuse=False)


def bombs(bomb):
    """Files that run code in the reader beside them, which trusts them."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.dumps(bomb, protocol), pickle.loads
        yield pickle.dumps({"w": bomb}, protocol), pickle.loads
    for content in (bomb, {"w": bomb, "v": torch.ones(1)}):
        for zipped in (True, False):
            buffer = io.BytesIO()
            torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
            yield buffer.getvalue(), lambda data: torch.load(io.BytesIO(data), weights_only=False)
    objects = np.array([bomb], dtype=object)
    buffer = io.BytesIO()
    np.save(buffer, objects, allow_pickle=True)
    yield buffer.getvalue(), lambda data: np.load(io.BytesIO(data), allow_pickle=True)
    for kind in ("recording", "policy"):
        header = f'{{"kind": "{kind}", "format": 1}}'.encode()
        content = fuzzing.seal(header, {"ranks": objects, "mean": objects})
        yield content, lambda data: np.load(io.BytesIO(data), allow_pickle=True)["ranks"]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", LOADERS)
def test_no_code_is_run(name, place):
    loader, ran = LOADERS[name], place.parent / "ran"
    loader.write(place)
    for path in sorted(place.iterdir()):
        original = path.read_bytes()
        for content, _ in bombs(fuzzing.Bomb(ran)):
            path.write_bytes(content)
            with pytest.raises(REFUSALS):
                loader.load(place)
            assert not ran.exists()
        path.write_bytes(original)


def test_the_bombs_go_off_where_they_are_trusted(tmp_path):
    for number, (content, read) in enumerate(bombs(fuzzing.Bomb(tmp_path / "ran"))):
        read(content)
        assert (tmp_path / "ran").exists(), number
        (tmp_path / "ran").unlink()
