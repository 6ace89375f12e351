import json

import pytest

from benchmarks import step_parts
from benchmarks.cpu import Cpu, measure_cpu

SMALL = {
    "dtype": "float32",
    "num_prompts": 2,
    "max_new_tokens": 6,
    "context": 20,
    "rounds": 2,
    "repeats": 1,
    "memory_steps": 10,
    "capacity": 256,
    "contexts": (8, 20),
    "nodes": (0, 5),
    "batches": (1, 3),
    "num_envs": (1, 8),
}


@pytest.fixture
def settings(tiny_files, tmp_path, monkeypatch):
    monkeypatch.setattr(step_parts, "_COPY_BYTES", 1 << 16)
    names = ("model", "heads", "prompts")
    return SMALL | {name: getattr(tiny_files, name) for name in names} | {"out": tmp_path / "here.json"}


def test_all_parts_are_measured_printed_and_written(settings, capsys):
    document = measure_cpu(Cpu(**settings, scaling=True))
    assert json.loads(settings["out"].read_text()) == json.loads(json.dumps(document))
    assert settings["out"].with_suffix(".png").stat().st_size > 10_000
    found = document["findings"]
    parts = list(dict.fromkeys(own["part"] for own in found))
    assert parts == ["memory", "steps", "features", "staged", "switch", "generation", "scaling"]
    values = {own["name"]: own["value"] for own in found}
    assert len(values) == len(found)

    shares = [value for name, value in values.items() if name.startswith("share of")]
    # Medians of shares, over an even number of rounds, add up to 1.
    assert sum(shares) == pytest.approx(1)
    whole, *drafting = (
        values[f"draft 63 nodes (hydra-default){of}"] for of in ("", ": heads", ": prefix layer")
    )
    assert whole == pytest.approx(sum(drafting))
    assert "verify 32 nodes (32 nodes)" in values
    beyond = values["peak of decoding"] - values["weights"] - values["KV"]
    assert values["peak of decoding − weights − KV"] == pytest.approx(beyond)
    assert {len(row) for row in document["texts"]["tokens"]} == {2}
    # In float32 every tree writes what transformers does.
    assert sum("2 of 2 texts the same" in name for name in values) == 10
    assert document["manifest"]["settings"]["memory_steps"] == 10

    printed = capsys.readouterr().out
    assert "float32" in printed.splitlines()[0]
    assert all(f"{own['goal']}" in printed for own in found)


def test_only_what_is_asked_for(settings):
    document = measure_cpu(Cpu(**settings, only=("switch",)))
    assert {own["part"] for own in document["findings"]} == {"switch"}
    assert set(document["samples"]) == {"switch", "look-up"}
    assert not settings["out"].with_suffix(".png").exists()


def test_what_measures_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing to measure: name parts"):
        Cpu(only=())
    with pytest.raises(ValueError, match=r"out must end in \.json"):
        Cpu(out=tmp_path / "x.csv")
    with pytest.raises(ValueError, match="rounds, repeats and max_new_tokens must be at least 1"):
        Cpu(rounds=0)


def test_figures_are_not_replaced_by_chance(settings):
    settings["out"].write_text("{}")
    with pytest.raises(FileExistsError, match="add --overwrite"):
        measure_cpu(Cpu(**settings))
    assert settings["out"].read_text() == "{}"
    measure_cpu(Cpu(**settings, only=("switch",), overwrite=True))
    assert "switch" in settings["out"].read_text()
