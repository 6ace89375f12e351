import contextlib
import dataclasses
import itertools
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train.heads
from entmtp_env.decoding import load_heads
from entmtp_env.decoding.checkpoint import read_manifest
from tests.tiny import VOCAB, tiny_heads
from tests.train.conftest import HELD_OUT
from tests.train.texts import random_texts
from train.heads import train_heads
from train.hidden_states import hidden_states
from train.trainer import Trainer

STEPS, EVERY = 18, 4


class BrokenOff(Exception):  # noqa: N818
    pass


@pytest.fixture
def config(config):
    """A short training with all that is random switched on."""
    return dataclasses.replace(
        config,
        epochs=2.5,
        evaluate_every=EVERY,
        dropout=0.1,
        hidden_noise=0.05,
        average_decay=0.9,
        softmax_tokens=8,
        learn_prompts=True,
        seed=3,
    )


@pytest.fixture
def run(monkeypatch):
    """Train, optionally to be broken off in a step; gives the trainer."""
    trainers = []

    class Observed(Trainer):
        broken_at = None

        def __init__(self, *args):
            super().__init__(*args)
            trainers.append(self)

        def _train_step(self, batch):
            result = super()._train_step(batch)
            if self.step + 1 == Observed.broken_at:
                raise BrokenOff
            return result

    def train_with(config, broken_at=None):
        Observed.broken_at = broken_at
        with pytest.raises(BrokenOff) if broken_at else contextlib.nullcontext():
            train_heads(config)
        Observed.broken_at = None
        return trainers[-1]

    monkeypatch.setattr(train.heads, "Trainer", Observed)
    return train_with


def beside(config, name):
    return dataclasses.replace(config, out=config.out.with_name(name) / "heads.safetensors")


def curve_of(trainer):
    """The learning curve without what the clock says."""
    return [dataclasses.replace(point, seconds=0) for point in trainer.curve]


def assert_same(trainer, other):
    assert curve_of(trainer) == curve_of(other)
    mine, theirs = trainer.heads.state_dict(), other.heads.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    averages = zip(
        trainer.average.state_dict()["average"], other.average.state_dict()["average"], strict=True
    )
    assert all(torch.equal(one, two) for one, two in averages)
    assert not torch.equal(trainer.heads.norms[0].weight, trainer.average.state_dict()["average"][-1])
    best, expected = load_heads(trainer.config.out), load_heads(other.config.out)
    assert all(torch.equal(best.state_dict()[n], t) for n, t in expected.state_dict().items())


@pytest.fixture
def unbroken(config, run):
    trainer = run(beside(config, "unbroken"))
    assert [point.step for point in trainer.curve] == [4, 8, 12, 16, STEPS]
    return trainer


@pytest.mark.parametrize("breaks", [(1,), (EVERY,), (EVERY + 1,), (STEPS,), (6, 6, 15)])
def test_a_resumed_training_is_bit_equal_to_an_unbroken_one(config, run, unbroken, breaks):
    for step in breaks:
        trainer = run(config, broken_at=step)
        assert trainer.step == step - 1
        torch.rand(5)
    resumed = run(config)
    assert not trainer.state_path.exists()
    assert_same(resumed, unbroken)


KILLED_IN_A_STEP = """
import os, signal, sys
from train.__main__ import main
from train.trainer import Trainer
train_step = Trainer._train_step
def killed(self, batch):
    if self.step == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return train_step(self, batch)
Trainer._train_step = killed
main(sys.argv[2:])
"""


def arguments(config):
    """The command line of a configuration."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value != field.default:
            values = value if isinstance(value, tuple) else () if value is True else (value,)
            yield from (f"--{field.name.replace('_', '-')}", *map(str, values))


def test_a_training_killed_for_real_is_resumed(config, run, unbroken, capsys):
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_IN_A_STEP, "10", "heads", *arguments(config)],
        env=os.environ | threads,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    # TensorBoard orders event files by the second.
    time.sleep(1.1)
    resumed = run(config)
    assert f"going on at step 8 from {config.folder / 'state.pt'}" in capsys.readouterr().err
    assert_same(resumed, unbroken)
    assert steps_logged(config.folder) == steps_logged(unbroken.config.folder)


def events(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}


def steps_logged(folder):
    return {tag: [event.step for event in scalars] for tag, scalars in events(folder).items()}


def test_tensorboard_has_every_step_once(config, run, unbroken):
    scalars = events(unbroken.config.folder)
    by_step = {f"train/loss_{d}" for d in (1, 2, 3)} | {
        f"train/{name}" for name in ("gradient_norm", "learning_rate", "tokens_per_second")
    }
    by_point = {f"held_out/{name}_{d}" for name in ("loss", "rank0") for d in (1, 2, 3)}
    assert set(scalars) == by_step | by_point
    for tag in by_step:
        assert [event.step for event in scalars[tag]] == list(range(1, STEPS + 1))
    for depth in (1, 2, 3):
        for name in ("loss", "rank0"):
            logged = [(event.step, event.value) for event in scalars[f"held_out/{name}_{depth}"]]
            curve = [(p.step, pytest.approx(getattr(p, name)[depth - 1])) for p in unbroken.curve]
            assert logged == curve
    rates = [event.value for event in scalars["train/learning_rate"]]
    assert rates[0] == pytest.approx(config.learning_rate / 10)
    assert max(rates) == pytest.approx(config.learning_rate)
    assert rates[-1] == pytest.approx(config.learning_rate / 1000)

    run(config, broken_at=11)
    assert max(steps_logged(config.folder)["train/loss_1"]) == 10
    time.sleep(1.1)
    run(config)
    assert steps_logged(config.folder) == steps_logged(unbroken.config.folder)


def test_a_step_may_be_shorter_than_a_tick_of_the_clock(config, run, monkeypatch):
    """time.monotonic() of Windows advances 64 times a second."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert run(config).step == STEPS


def test_training_needs_no_tensorboard(config, run, unbroken, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert_same(run(config), unbroken)
    assert "pip install tensorboard" in capsys.readouterr().err
    assert not list(config.folder.iterdir())


@pytest.mark.parametrize(
    "change", [{"dropout": 0.2}, {"epochs": 3}, {"seed": 4}, {"dtype": "bfloat16"}, {"max_texts": 60}]
)
def test_the_state_of_another_training_is_refused(config, run, change):
    state = run(config, broken_at=6).state_path
    before = state.read_bytes()
    with pytest.raises(
        ValueError, match=r"cannot go on from .*state\.pt: it is of another training .*delete"
    ):
        train_heads(dataclasses.replace(config, **change))
    assert state.read_bytes() == before


def test_the_element_type_stays_when_another_is_faster_by_now(config, run, unbroken, monkeypatch):
    fastest = iter((False, True))
    monkeypatch.setattr("entmtp_env.decoding.precision.cpu_prefers", lambda dtype: next(fastest))
    config = dataclasses.replace(config, dtype="auto")
    run(config, broken_at=6)
    assert_same(run(config), unbroken)
    assert next(fastest)


def test_files_may_move_between_runs(config, run, unbroken, tmp_path):
    run(config, broken_at=6)
    texts = tmp_path / "all.jsonl"
    texts.write_text("".join(path.read_text() for path in config.texts))
    moved = config.folder.rename(tmp_path / "moved.safetensors.training")
    config = dataclasses.replace(
        config, texts=(texts,), out=moved.with_suffix(""), cache=tmp_path / "hidden", device="auto"
    )
    assert_same(run(config), unbroken)


def test_a_finished_training_is_replaced_only_when_asked_to(config, run):
    run(config)
    finished = config.out.read_bytes()
    with pytest.raises(FileExistsError, match=r"heads\.safetensors: there already; .*add --overwrite"):
        train_heads(config)
    assert config.out.read_bytes() == finished
    # An interrupted training goes on, whether it was to replace anything or not.
    run(dataclasses.replace(config, overwrite=True), broken_at=6)
    assert read_manifest(config.out)["held_out"]["step"] == EVERY
    assert run(config).step == STEPS


def test_heads_are_written_again_when_they_are_gone(config, run):
    # Nothing is learned, so the first point stays the best.
    config = dataclasses.replace(config, learning_rate=1e-12)
    run(config, broken_at=6)
    config.out.unlink()
    run(config)
    assert read_manifest(config.out)["held_out"]["step"] == 8


@pytest.mark.parametrize("damage", ["empty", "cut", "pickle", *range(8), "list", "key", "shape"])
def test_a_damaged_state_is_refused(config, run, damage):
    state = run(config, broken_at=6).state_path
    content = torch.load(state, weights_only=True)
    if damage == "empty":
        state.write_bytes(b"")
    elif damage == "cut":
        state.write_bytes(state.read_bytes()[:-1000])
    elif damage == "pickle":
        state.write_bytes(pickle.dumps({"fingerprint": "x"}, protocol=2))
    elif isinstance(damage, int):
        state.write_bytes(random.Random(damage).randbytes(1000))
    elif damage == "list":
        torch.save([1, 2], state)
    elif damage == "key":
        del content["curve"]
        torch.save(content, state)
    else:
        content["average"]["average"].pop()
        torch.save(content, state)
    with pytest.raises(ValueError, match=r"^cannot go on from .*state\.pt: .{5,}; delete it .* another out$"):
        train_heads(config)
    state.unlink()
    train_heads(dataclasses.replace(config, overwrite=True))
    assert load_heads(config.out)


def test_a_state_cannot_run_code(config, run, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    state = run(config, broken_at=6).state_path
    torch.save(Evil(), state)
    with pytest.raises(ValueError, match="cannot go on"):
        train_heads(config)
    assert not (tmp_path / "evil").exists()


def test_the_best_heads_are_kept_when_the_loss_rises(config, run, written):
    """Fitted for long to few texts, heads become worse on others."""
    config = dataclasses.replace(
        config,
        max_texts=HELD_OUT + 6,
        hard_weight=1.0,
        epochs=60,
        evaluate_every=1,
        learning_rate=0.01,
        softmax_tokens=0,
    )
    trainer = run(config)
    losses = [sum(point.loss) for point in trainer.curve]
    best = losses.index(min(losses))
    assert 0 < best < len(losses) - 3
    assert losses[-1] > 1.1 * losses[best]
    manifest = read_manifest(config.out)
    assert manifest["held_out"] == dataclasses.asdict(trainer.curve[best])
    assert manifest["curve"] == [dataclasses.asdict(point) for point in trainer.curve[: best + 1]]

    kept = load_heads(config.out)
    kept.attach(written[1])
    again = Trainer(config, kept, written[1], trainer.texts, trainer.states, "")
    # Weights are stored in bfloat16.
    assert again._evaluate().loss == pytest.approx(trainer.curve[best].loss, rel=0.02)


def test_evaluation_is_a_mean_over_rows_and_of_the_average(config, written, tmp_path):
    """Texts one by one, with autograd's own cross entropy."""
    backbone = written[1]
    heads = tiny_heads(backbone, "hydra", 3, pack=False)
    texts = random_texts([(2, 2 + 3 * (i % 4)) for i in range(HELD_OUT)] + [(2, 9)] * 3)
    config = dataclasses.replace(config, hard_weight=0.3, batch_tokens=4, epochs=1)
    trainer = Trainer(config, heads, backbone, texts, hidden_states(backbone, "m", texts, tmp_path), "")
    trained = [weight.clone() for weight in heads.parameters()]
    average = trainer.average.state_dict()["average"]
    for weight in average:
        weight.mul_(0.9)
    point = trainer._evaluate()
    assert all(torch.equal(one, two) for one, two in zip(heads.parameters(), trained, strict=True))

    for weight, averaged in zip(heads.parameters(), average, strict=True):
        weight.data.copy_(averaged)
    lm_head = backbone.lm_head_weight[heads.vocab_ids]
    for depth in (1, 2, 3):
        losses, hits = [], []
        for text in texts[:HELD_OUT]:
            hidden = backbone.forward_batch(torch.tensor([text.tokens]))[0].bfloat16().float()
            for root in range(len(text.prompt), len(text.tokens) - depth):
                path = heads.embed(torch.tensor(text.tokens[root : root + depth])).flatten()
                logits = heads.output(depth, torch.cat((hidden[root - 1], path))) @ lm_head.T
                soft = torch.softmax(hidden[root + depth - 1] @ lm_head.T, -1)
                known = heads.vocab_ids == text.tokens[root + depth]
                target = 0.7 * soft + 0.3 * known if known.any() else soft
                losses.append(-(target * torch.log_softmax(logits, -1)).sum().item())
                hits.append(known[logits.argmax()].item())
        assert point.loss[depth - 1] == pytest.approx(sum(losses) / len(losses), rel=1e-3)
        assert point.rank0[depth - 1] == pytest.approx(sum(hits) / len(hits), abs=1e-4)


def test_every_training_text_is_seen_as_often_as_there_are_epochs(config, run, monkeypatch):
    seen = []
    make_batch = Trainer._batch

    def watched(self, indices, *args):
        seen.append(tuple(indices))
        return make_batch(self, indices, *args)

    monkeypatch.setattr(Trainer, "_batch", watched)
    trainer = run(dataclasses.replace(config, epochs=3))
    trained = [indices for indices in seen if min(indices) >= HELD_OUT]
    assert len(trained) == trainer.steps
    counts = [sum(i in indices for indices in trained) for i in trainer.train_set]
    assert sum(counts) == pytest.approx(3 * len(trainer.train_set), rel=0.03)
    assert min(counts) >= 2
    assert max(counts) <= 4


def test_a_report_line_is_json(config, run, capsys):
    trainer = run(config)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert lines == [dataclasses.asdict(point) for point in trainer.curve]
    seconds = [line["seconds"] for line in lines]
    assert all(before <= after for before, after in itertools.pairwise(seconds))


def one_step(config, written, tmp_path, **change):
    """A step of Medusa heads, which share no weights between depths."""
    config = dataclasses.replace(config, dropout=0, hidden_noise=0, softmax_tokens=0, **change)
    backbone = written[1]
    heads = tiny_heads(backbone, "medusa", 3, pack=False)
    texts = random_texts([(2, 9)] * (HELD_OUT + 8))
    trainer = Trainer(config, heads, backbone, texts, hidden_states(backbone, "m", texts, tmp_path), "")
    _, norm = trainer._train_step(next(trainer._batches()))
    return [torch.cat([p.grad.flatten() for p in mlp.parameters()]) for mlp in heads.mlps], norm, heads


def test_prompts_are_learned_from_the_base_alone(config, written, tmp_path):
    """With hard targets alone, tokens that the base did not write still have soft ones."""
    config = dataclasses.replace(config, dropout=0, hidden_noise=0, softmax_tokens=0, hard_weight=1.0)
    backbone = written[1]
    # A draft vocabulary of all tokens: each has a label.
    heads = tiny_heads(backbone, "medusa", 1, draft_vocab=VOCAB, pack=False)
    texts = random_texts([(9, 5)] * (HELD_OUT + 4))
    trainer = Trainer(config, heads, backbone, texts, hidden_states(backbone, "m", texts, tmp_path), "")
    lm_head = backbone.lm_head_weight[heads.vocab_ids]
    expected = []
    with torch.no_grad():
        for text in (texts[i] for i in next(trainer._epochs())[0]):
            hidden = backbone.forward_batch(torch.tensor([text.tokens]))[0].bfloat16().float()
            for root in range(1, len(text.tokens) - 1):
                log_p = torch.log_softmax(heads.output(1, hidden[root - 1]) @ lm_head.T, -1)
                soft = torch.softmax(hidden[root] @ lm_head.T, -1)
                hard = (heads.vocab_ids == text.tokens[root + 1]).float()
                expected.append(-((hard if root + 1 >= len(text.prompt) else soft) * log_p).sum())
    losses, _ = trainer._train_step(next(trainer._batches()))
    assert losses == [pytest.approx(torch.stack(expected).mean().item(), rel=1e-4)]


def test_deeper_losses_count_less(config, written, tmp_path):
    even, decayed = (
        one_step(config, written, tmp_path, depth_decay=decay, clip_norm=1e9)[0] for decay in (1.0, 0.5)
    )
    for depth, (one, two) in enumerate(zip(even, decayed, strict=True)):
        torch.testing.assert_close(two, one * 0.5**depth)


def test_gradients_are_clipped_and_reported_as_they_were(config, written, tmp_path):
    _, norm, _ = one_step(config, written, tmp_path, clip_norm=1e9)
    _, reported, heads = one_step(config, written, tmp_path, clip_norm=norm / 10)
    assert reported == pytest.approx(norm)
    clipped = torch.cat([parameter.grad.flatten() for parameter in heads.parameters()]).norm()
    assert clipped.item() == pytest.approx(norm / 10, rel=1e-3)
