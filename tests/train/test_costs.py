import dataclasses
import io
import itertools
import shutil

import numpy as np
import pytest
from rich.console import Console
from transformers import AutoTokenizer

from entmtp_env.live import LiveEnv
from entmtp_env.replay.costs import load_costs
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

    def __init__(self, monkeypatch, tick=lambda action, length: TICK):
        self.steps, self.now, self.tick = [], 0.0, TICK
        real = LiveEnv.step

        def step(env, action):
            self.tick = tick(action, env.decoder.length)
            self.steps.append((env._prompt.prompt_id, action, env.decoder.length))
            result = real(env, action)
            self.tick = TICK
            return result

        monkeypatch.setattr(LiveEnv, "step", step)

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
        assert 4 * tick(k, length) <= table.lower[k, c] <= table.seconds[k, c] <= table.upper[k, c]
        assert table.upper[k, c] <= 5 * tick(k, length + 32) + 1e-9


def test_median_and_quartiles(config, monkeypatch):
    calls = itertools.count()
    log = Log(monkeypatch, lambda action, length: TICK * (1 + next(calls)))
    config = dataclasses.replace(config, contexts=(8,), repeats=5)
    table = measure_costs(config, log.clock)
    # Of steps with one tree in a row, the first is not timed.
    rows = itertools.groupby(enumerate(log.steps), lambda item: item[1][:2])
    timed = [(action, i) for (_, action), row in rows for i, _ in list(row)[1:]]
    for k in range(len(TREES)):
        own = [4 * TICK * (1 + i) for action, i in timed if action == k]
        assert len(own) == 5
        lower, median, upper = np.sort(own)[1:4]
        np.testing.assert_allclose(
            [table.lower[k], table.seconds[k], table.upper[k]], [[lower], [median], [upper]]
        )


def test_trees_and_contexts_take_turns_and_texts_begin_again(config, monkeypatch):
    monkeypatch.setattr("train.costs._DRIFT", 6)
    log = Log(monkeypatch)
    measure_costs(config, log.clock)
    # 12 repeats: four visits to each context, each with its own passage and 1 + 3 steps of every tree.
    rows = [
        (prompt_id, action, len([*row]))
        for (prompt_id, action), row in itertools.groupby(log.steps, lambda step: step[:2])
    ]
    assert [count for _, _, count in rows] == [4] * (4 * 3 * len(TREES))
    visits = [rows[i : i + len(TREES)] for i in range(0, len(rows), len(TREES))]
    assert all(len({prompt_id for prompt_id, _, _ in visit}) == 1 for visit in visits)
    assert all(sorted(action for _, action, _ in visit) == [0, 1, 2, 3] for visit in visits)
    assert len({tuple(action for _, action, _ in visit) for visit in visits}) > 4
    for i in range(4):
        own = sorted(visit[0][0] for visit in visits[3 * i : 3 * i + 3])
        assert own == sorted(f"{n}-{i}" for n in config.contexts)
    for prompt_id, _, length in log.steps:
        assert 0 <= length - int(prompt_id.split("-")[0]) <= 6


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
