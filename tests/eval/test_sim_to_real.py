import dataclasses
import json
import sys

import numpy as np
import pytest

from entmtp_env.replay.cost_table import CostTable
from entmtp_env.replay.recording import Recording
from entmtp_env.trees import DraftTree, TopologyBank
from eval.__main__ import main
from eval.interleave import EvaluationError
from eval.sim_to_real import SimToReal, sim_to_real
from train.record import Record, record

COSTS = "analytic:base=0.02,node=0.0005,depth=0.001"
POLICIES = ("autoregressive", "hydra-default", "threshold", "ladder", "random")


@pytest.fixture(scope="module")
def recorded(tiny_files, tmp_path_factory):
    """Recordings of the tiny model's texts by acceptance rule."""
    folder = tmp_path_factory.mktemp("recordings")

    def build(acceptance="greedy", dtype="float32"):
        path = folder / f"{acceptance.partition(':')[0]}-{dtype}.npz"
        if not path.exists():
            record(
                Record(
                    prompts=(tiny_files.prompts,),
                    out=path,
                    model=tiny_files.model,
                    heads=tiny_files.heads,
                    acceptance=acceptance,
                    approximate=True,
                    max_new_tokens=24,
                    dtype=dtype,
                    device="cpu",
                )
            )
        return path

    return build


@pytest.fixture
def config(tiny_files, recorded, tmp_path):
    base = SimToReal(
        costs=COSTS,
        recording=str(recorded()),
        prompts=tiny_files.prompts,
        policies=("autoregressive", "threshold"),
        model=tiny_files.model,
        heads=tiny_files.heads,
        capacity=256,
        dtype="float32",
        device="cpu",
        bootstrap_samples=50,
        out=tmp_path / "results",
    )
    return lambda **changes: dataclasses.replace(base, **changes)


@pytest.fixture
def changed(recorded, tmp_path):
    """A recording with an array or an entry of the manifest changed."""

    def build(change, dtype="float32"):
        recording = Recording.load(recorded(dtype=dtype))
        path = tmp_path / "changed.npz"
        dataclasses.replace(recording, **change(recording)).save(path)
        return str(path)

    return build


def never_right(recording):
    return {"ranks": np.where(recording.ranks == 0, 99, recording.ranks).astype(np.int32)}


@pytest.mark.parametrize(("probe", "cap"), [("none", None), ("chain", 9)])
def test_in_float32_the_replay_is_exact(config, probe, cap):
    settings = config(probe=probe, max_new_tokens=cap)
    oracle = f"oracle:recording={settings.recording},costs={COSTS.replace(',', '|')}"
    policies = (*POLICIES, oracle)
    gaps = sim_to_real(dataclasses.replace(settings, policies=policies))
    assert tuple(gap.policy for gap in gaps) == policies
    for gap in gaps:
        assert (gap.texts, gap.other_accept, gap.other_text, gap.first) == (6, 0, 0, None)
        # A generator that starts from a hash of what it observes gives no two alike.
        assert gap.other_tree == 0 or gap.policy == "random"
        assert gap.ratio.value == pytest.approx(gap.replayed_tokens_per_second / gap.live_tokens_per_second)
    assert gaps[0].replayed_tokens_per_second == pytest.approx(1 / 0.02)


def test_files_and_table(config, capsys):
    settings = config(num_prompts=4)
    gaps = sim_to_real(settings)
    out = " ".join(capsys.readouterr().out.split())
    assert "replay against live, 4 texts, float32" in out
    assert "order of the policies: " in out
    summary = json.loads((settings.out / "summary.json").read_text())
    assert summary["gaps"] == json.loads(json.dumps([dataclasses.asdict(gap) for gap in gaps]))
    assert summary["approximate"] is False
    assert sorted(summary["live_order"]) == sorted(summary["replayed_order"]) == sorted(settings.policies)
    lines = [json.loads(line) for line in (settings.out / "episodes.jsonl").read_text().splitlines()]
    for gap in gaps:
        for side, rate in (
            ("live", gap.live_tokens_per_second),
            ("replayed", gap.replayed_tokens_per_second),
        ):
            own = [e for e in lines if e["policy"] == gap.policy and e["prompts"].endswith(side)]
            assert len(own) == gap.texts == 4
            assert sum(e["tokens"] for e in own) / sum(e["seconds"] for e in own) == pytest.approx(rate)
    manifest = json.loads((settings.out / "manifest.json").read_text())
    assert manifest["costs"]["analytic"]["base"] == 0.02
    assert manifest["live"]["heads_fingerprint"] == manifest["replay"]["heads_fingerprint"]
    assert len(manifest["prompt_seeds"]) == 4


def test_costs_of_the_run_itself(config, tmp_path):
    bank = tmp_path / "bank.json"
    TopologyBank([DraftTree("none"), DraftTree.chain(1)], "small").save(bank)
    settings = config(costs="run", bank=str(bank))
    gaps = sim_to_real(dataclasses.replace(settings, policies=("autoregressive", "static:chain-1")))
    assert [gap.policy for gap in gaps] == ["autoregressive", "static:chain-1"]
    table = CostTable.load(settings.out / "costs.json")
    lines = [json.loads(line) for line in (settings.out / "episodes.jsonl").read_text().splitlines()]
    assert len([e for e in lines if e["policy"].startswith("run ")]) == 2 * gaps[0].texts
    manifest = json.loads((settings.out / "manifest.json").read_text())
    assert manifest["costs"]["statistic"] == table.manifest["statistic"] == "mean"
    # Every step of the plain row costs what the table says at its context.
    plain = [e for e in lines if e["policy"] == "autoregressive" and e["prompts"].endswith("replayed")]
    assert sum(e["seconds"] for e in plain) / sum(e["tokens"] for e in plain) == pytest.approx(
        table.seconds[0].mean(), rel=0.5
    )


def test_a_step_that_differs_in_float32_is_an_error(config, changed):
    settings = config(recording=changed(never_right), policies=("autoregressive", "static:chain-1"))
    with pytest.raises(
        EvaluationError, match=r"static:chain-1 \(\d+ of \d+ steps, 0 of 6 texts; first at"
    ) as e:
        sim_to_real(settings)
    assert "autoregressive (" not in str(e.value)
    plain, chain = json.loads((settings.out / "summary.json").read_text())["gaps"]
    assert plain["other_accept"] == 0 < chain["other_accept"]
    prompt_id, step = chain["first"]
    live = next(
        line
        for line in map(json.loads, (settings.out / "steps.jsonl").read_text().splitlines())
        if (line["prompt_id"], line["step"], line["policy"]) == (prompt_id, step, "static:chain-1")
    )
    assert live["accept_length"] == 1


def test_in_a_shorter_type_differences_are_counted(config, changed):
    path = changed(never_right, "bfloat16")
    (gap,) = sim_to_real(config(recording=path, dtype="bfloat16", policies=("static:chain-1",)))
    assert gap.other_accept > 0
    assert gap.first is not None


def test_a_text_that_differs_in_float32_is_an_error(config, changed):
    def another_token(recording):
        tokens = recording.tokens.copy()
        tokens[recording.offsets[2]] += 1
        return {"tokens": tokens}

    with pytest.raises(EvaluationError, match=r"autoregressive \(0 of \d+ steps, 1 of 6 texts\)"):
        sim_to_real(config(recording=changed(another_token), policies=("autoregressive",)))


def test_an_approximate_recording_says_so(config, recorded, capsys):
    settings = config(recording=str(recorded("typical:temperature=1.0,epsilon=0.3,alpha=0.6")))
    sim_to_real(settings)
    assert "approximate replay against live" in " ".join(capsys.readouterr().out.split())
    assert json.loads((settings.out / "summary.json").read_text())["approximate"] is True


def test_sampled_texts_are_refused(config, recorded):
    with pytest.raises(ValueError, match="noise that a live episode draws anew"):
        sim_to_real(config(recording=str(recorded("sample:temperature=0.8"))))


def test_a_recording_of_another_model_is_refused(config, changed):
    path = changed(lambda recording: {"manifest": recording.manifest | {"model_fingerprint": "other"}})
    with pytest.raises(ValueError, match="has the model_fingerprint 'other', the live decoder"):
        sim_to_real(config(recording=path))


def test_a_recording_of_another_element_type_is_refused(config):
    settings = config(dtype="bfloat16")
    with pytest.raises(ValueError, match="has the dtype 'float32', the live decoder 'bfloat16'"):
        sim_to_real(settings)
    assert not settings.out.exists()


def test_prompts_that_are_not_recorded_are_left_out(config, recorded, tmp_path):
    part = Recording.load(recorded()).select([4, 1])
    part.save(tmp_path / "part.npz")
    assert {gap.texts for gap in sim_to_real(config(recording=str(tmp_path / "part.npz")))} == {2}
    with pytest.raises(ValueError, match="has no text of 'chat'"):
        sim_to_real(config(prompts="chat", overwrite=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_prompts": -1}, "num_prompts=-1"),
        ({"bootstrap_samples": 0}, "bootstrap_samples=0"),
        ({"policies": ()}, "no policy"),
        ({"policies": ("static:nosuch",)}, "policy 'static:nosuch'"),
        ({"max_new_tokens": 25}, "max_new_tokens=25 must be 1 to 24"),
        ({"prompts": "nosuch"}, "unknown prompt set 'nosuch'"),
    ],
)
def test_a_mistake_leaves_nothing_behind(config, changes, message):
    settings = config(**changes)
    with pytest.raises(ValueError, match=message):
        sim_to_real(settings)
    assert not settings.out.exists()


def test_the_exit_code(config, changed, monkeypatch, capsys):
    def call(recording):
        arguments = ["gap", "--overwrite", "--policies", "static:chain-1", "--recording", recording]
        for name in ("costs", "prompts", "model", "heads", "dtype", "device", "capacity", "out"):
            arguments += [f"--{name}", str(getattr(config(), name))]
        monkeypatch.setattr(sys, "argv", ["eval", *arguments])
        main()

    call(config().recording)
    assert "static:chain-1" in capsys.readouterr().out
    with pytest.raises(SystemExit) as exit_:
        call(changed(never_right))
    assert exit_.value.code == 2
    assert "must accept what its replay accepts" in capsys.readouterr().err
