import dataclasses
import io
import itertools
import shutil

import numpy as np
import pytest
from rich.console import Console
from transformers import AutoTokenizer

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.stages import Stages
from entmtp_env.live import LiveEnv
from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.staged_costs import staged_prices
from entmtp_env.staged_env import StagedEnv
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank
from train.costs import Costs, costs_table, measure_costs

TREES = (
    AUTOREGRESSIVE,
    DraftTree.chain(1),
    DraftTree.chain(3),
    DraftTree("wide", ((0,), (1,), (2,), (0, 0))),
)
TICK = 0.001


@pytest.fixture
def config(tiny_files, tmp_path):
    TopologyBank(TREES).save(tmp_path / "bank.json")
    return Costs(
        out=tmp_path / "tiny.json",
        model=tiny_files.model,
        heads=tiny_files.heads,
        bank=str(tmp_path / "bank.json"),
        prompts=tiny_files.prompts,
        contexts=(8, 90, 150),
        repeats=12,
        dtype="float32",
        device="cpu",
        capacity=256,
    )


class Log:
    """The steps of a measurement, and a clock that every call moves on by a time known from the step."""

    def __init__(self, monkeypatch, tick=lambda action, length: TICK, owner=LiveEnv):
        self.steps, self.now, self.tick = [], 0.0, TICK
        real = owner.step

        def step(env, action):
            self.tick = tick(action, env.decoder.length)
            self.steps.append((env._prompt.prompt_id, action, env.decoder.length))
            result = real(env, action)
            self.tick = TICK
            return result

        monkeypatch.setattr(owner, "step", step)

    def clock(self):
        self.now += self.tick
        return self.now


@pytest.mark.parametrize("probe", ["none", "first", "chain"])
def test_seconds_are_those_of_a_live_step(config, monkeypatch, probe):
    table = measure_costs(dataclasses.replace(config, probe=probe), Log(monkeypatch).clock)
    # Draft, verify, accept and commit, observations left out; a probe is drafting.
    probed = 0.0 if probe == "none" else TICK
    shape = (len(TREES), 3)
    for values in (table.seconds, table.lower, table.upper):
        np.testing.assert_allclose(values, np.full(shape, 4 * TICK + probed))
    np.testing.assert_allclose(table.draft_seconds, np.full(shape, TICK + probed))
    np.testing.assert_allclose(table.verify_seconds, np.full(shape, TICK))
    np.testing.assert_allclose(table.prefill_seconds, np.full(3, TICK))


def test_each_tree_and_context_gets_its_own_time(config, monkeypatch):
    def tick(action, length):
        return TICK * (1 + action) + 1e-5 * length

    table = measure_costs(config, Log(monkeypatch, tick).clock)
    assert table.trees == TREES
    np.testing.assert_array_equal(table.contexts, config.contexts)
    for k, c in itertools.product(range(len(TREES)), range(3)):
        length = table.contexts[c]
        assert table.lower[k, c] <= table.seconds[k, c] <= table.upper[k, c]
        assert 4 * tick(k, length) <= table.seconds[k, c] <= 4 * tick(k, length + 32) + 1e-9


def test_the_machine_may_drift(config, monkeypatch):
    rng = np.random.default_rng(0)
    slow = np.exp(np.cumsum(rng.normal(0, 0.02, 1000)))
    calls = itertools.count()
    log = Log(monkeypatch, lambda action, length: TICK * (1 + action) * slow[next(calls)])
    table = measure_costs(config, log.clock)
    met = slow[: next(calls)]
    assert met.max() > 1.3 * met.min()
    expected = np.broadcast_to(np.arange(1.0, 5.0)[:, None], table.seconds.shape)
    np.testing.assert_allclose(table.seconds / table.seconds[:1], expected, rtol=0.03)
    assert (table.upper < 1.1 * table.lower).all()


def test_median_and_quartiles_are_of_what_drift_leaves(config, monkeypatch):
    rng = np.random.default_rng(0)
    log = Log(monkeypatch, lambda action, length: TICK * rng.choice([1.0, 1.3, 1.6]))
    table = measure_costs(dataclasses.replace(config, contexts=(8,), repeats=40), log.clock)
    assert (table.lower < table.seconds).any()
    assert (table.seconds < table.upper).any()
    assert (table.upper / table.lower < 1.7).all()


def test_trees_and_contexts_take_turns_and_texts_begin_again(config, monkeypatch):
    monkeypatch.setattr("train.costs._GROWTH", 6)
    log = Log(monkeypatch)
    measure_costs(config, log.clock)
    # The first step of a text is not timed.
    context = [int(prompt_id.split("-")[0]) for prompt_id, _, _ in log.steps]
    timed = [(n, step[1]) for n, step in zip(context, log.steps, strict=True) if step[2] > n]
    # Four visits to each of three context lengths, three rounds in each.
    turns = np.array(timed).reshape(4, 3, 3, len(TREES), 2)
    assert (turns[..., 0] == turns[:, :, :1, :1, 0]).all()
    assert (np.sort(turns[:, :, 0, 0, 0]) == config.contexts).all()
    assert (np.sort(turns[..., 1]) == np.arange(len(TREES))).all()
    assert len({turn.tobytes() for turn in turns[..., 1].reshape(-1, len(TREES))}) > 12
    assert {step[0] for step in log.steps} == {f"{n}-{i}" for n in config.contexts for i in range(4)}
    assert all(0 <= step[2] - n <= max(6, n // 16) for n, step in zip(context, log.steps, strict=True))


def test_stages_are_measured_decision_by_decision(config, monkeypatch, tmp_path):
    stages = Stages("two", DraftShape((1, 2), (3, 2)), (0, 1, 2, 5))
    stages.save(tmp_path / "stages.json")
    log = Log(monkeypatch, owner=StagedEnv)
    table = measure_costs(dataclasses.replace(config, stages=str(tmp_path / "stages.json")), log.clock)
    sizes = [(tree.depth, len(tree)) for tree in table.trees]
    assert sizes == [(0, 0), (1, 1), (1, 2), (2, 2), (2, 5)]
    for (depth, _), seconds, draft in zip(sizes, table.seconds, table.draft_seconds, strict=True):
        # Each depth is a decision of its own; verifying, accepting and committing are the last one.
        np.testing.assert_allclose(draft, depth * TICK, atol=1e-12)
        np.testing.assert_allclose(seconds, (3 + depth) * TICK)
    assert table.manifest["bank_fingerprint"] == stages.fingerprint
    assert staged_prices(load_costs(str(config.out))).table.fingerprint == table.fingerprint
    with pytest.raises(ValueError, match="in stages nothing is probed"):
        dataclasses.replace(config, stages="default", probe="first")


def test_the_file_is_the_table_and_says_how(config, monkeypatch, capsys):
    table = measure_costs(config, Log(monkeypatch).clock)
    loaded = load_costs(str(config.out))
    assert loaded.fingerprint == table.fingerprint
    assert loaded.name == "tiny"
    assert loaded.probe == "none"
    manifest = loaded.manifest
    assert (manifest["repeats"], manifest["prompts"], manifest["dtype"]) == (12, config.prompts, "float32")
    assert {"machine", "command", "model_fingerprint", "heads_fingerprint", "device"} <= manifest.keys()
    shown = capsys.readouterr().out
    assert "4.00 (1.00)" in shown
    assert f"wrote {config.out}" in shown.replace("\n", "")


def test_the_table_shows_ratios_to_the_empty_tree(config, monkeypatch):
    table = measure_costs(config, Log(monkeypatch, lambda action, length: TICK * (1 + action)).clock)
    console = Console(width=100, file=io.StringIO())
    console.print(costs_table(table))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["tree", "8", "90", "150"] in lines
    assert ["chain-3", *["12.00", "(3.00)"] * 3] in lines
    assert ["prefill", *["1.0"] * 3] in lines


def test_by_default_contexts_reach_up_to_the_capacity(config, monkeypatch):
    config = dataclasses.replace(config, contexts=(), repeats=1)
    table = measure_costs(config, Log(monkeypatch).clock)
    # 256 rows less 32 tokens of growth, the last step's 1 + 3, and the room for another root and 4 nodes.
    np.testing.assert_array_equal(table.contexts, [64, 215])


def test_a_table_is_not_overwritten_unasked(config, monkeypatch):
    config.out.write_text("precious")
    with pytest.raises(FileExistsError, match="--overwrite"):
        measure_costs(config)
    assert config.out.read_text() == "precious"
    table = measure_costs(dataclasses.replace(config, repeats=1, overwrite=True), Log(monkeypatch).clock)
    assert load_costs(str(config.out)).fingerprint == table.fingerprint


def test_a_step_that_fails_is_an_error_and_leaves_no_table(config, monkeypatch):
    def step(env, action):
        return None, 0.0, False, True, {"finish_reason": "error: out of memory"}

    monkeypatch.setattr(LiveEnv, "step", step)
    with pytest.raises(RuntimeError, match="out of memory"):
        measure_costs(config)
    assert not config.out.exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"contexts": (8, 216)}, "8 to 216 tokens: with 256 KV rows .* must be 1 to 215"),
        ({"contexts": (0,)}, "must be 1 to 215"),
        ({"capacity": 40, "contexts": ()}, "raise the capacity"),
        ({"acceptance": "hopeful"}, "hopeful"),
    ],
)
def test_settings_that_cannot_be_measured(config, overrides, message):
    with pytest.raises(ValueError, match=message):
        measure_costs(dataclasses.replace(config, **overrides))


@pytest.mark.parametrize(("contexts", "message"), [((4,), "chat template takes 4"), ((8, 90), "")])
def test_the_chat_template_is_part_of_the_context(config, monkeypatch, tmp_path, contexts, message):
    shutil.copytree(config.model, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    tokenizer.chat_template = "{% for m in messages %}w1 w2 w3 {{ m.content }} w4{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "model")
    config = dataclasses.replace(config, model=str(tmp_path / "model"), contexts=contexts, repeats=1)
    if message:
        with pytest.raises(ValueError, match=message):
            measure_costs(config)
    else:
        np.testing.assert_array_equal(measure_costs(config, Log(monkeypatch).clock).contexts, contexts)


@pytest.mark.parametrize(
    ("overrides", "message"), [({"repeats": 0}, "repeats"), ({"out": "x.npz"}, r"\.json")]
)
def test_settings_that_measure_nothing(config, overrides, message):
    overrides = {
        key: config.out.with_name(value) if key == "out" else value for key, value in overrides.items()
    }
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **overrides)
