import dataclasses

import gymnasium
import numpy as np
import pytest

import entmtp_env  # noqa: F401
from entmtp_env.replay import costs
from entmtp_env.replay.costs import AnalyticCosts, CostTable, load_costs, shipped_costs, warn_of_others
from entmtp_env.trees import DraftTree, TopologyBank, default_bank
from tests.entmtp_env.replay.test_analytic_costs import CONTEXTS, NUMBERS, table_by_hand
from tests.staged import staged_settings


@pytest.fixture
def table(tmp_path):
    table = table_by_hand(default_bank(), CONTEXTS, **NUMBERS)
    table.save(tmp_path / "here.json")
    return table


@pytest.fixture
def shipped(monkeypatch, tmp_path, table):
    folder = tmp_path / "data" / "costs"
    for name in ("smollm2-gpu", "smollm2-cpu", "another"):
        table.save(folder / f"{name}.json")
    monkeypatch.setattr(costs.resources, "files", lambda package: tmp_path)
    return folder


def test_a_path(tmp_path, table):
    loaded = load_costs(str(tmp_path / "here.json"))
    assert isinstance(loaded, CostTable)
    assert loaded.fingerprint == table.fingerprint


def test_shipped_tables_are_discovered(shipped, monkeypatch):
    assert list(shipped_costs()) == ["another", "smollm2-cpu", "smollm2-gpu"]
    opened = []
    monkeypatch.setattr(costs.CostTable, "load", opened.append)
    for spec in ("auto", "smollm2-gpu", "another"):
        load_costs(spec)
    assert opened == [shipped / f"{name}.json" for name in ("smollm2-cpu", "smollm2-gpu", "another")]


def test_every_shipped_table_prices_the_default_bank():
    for name in shipped_costs():
        table = load_costs(name)
        assert isinstance(table, CostTable)
        assert table.name == name
        assert {"machine", "model_fingerprint", "heads_fingerprint", "probe"} <= table.manifest.keys()
        assert table.at(default_bank(), np.arange(2049)).seconds.min() > 0


def test_numbers():
    made = load_costs("analytic:base=0.02,node=1e-3,free=4")
    assert made == AnalyticCosts(base=0.02, node=0.001, free=4)
    assert load_costs(AnalyticCosts(**NUMBERS).name) == AnalyticCosts(**NUMBERS)
    assert made.probe is None


def test_a_fit_remembers_the_probe_of_its_table_but_serves_any(tmp_path, table):
    for probe, probed in [("none", None), ("chain", "chain")]:
        dataclasses.replace(table, manifest={"probe": probe}).save(tmp_path / "here.json")
        fit = load_costs(f"analytic:{tmp_path}/here.json")
        assert (fit.probed, fit.probe) == (probed, None)
        assert ("probed" in fit.manifest["analytic"]) == (probed is not None)
        assert load_costs(fit.name) == fit
    with pytest.raises(ValueError, match="probed must be the name of a probe, got 3"):
        load_costs("analytic:base=1,probed=3")


def test_a_fit_by_name_or_path_with_numbers_replaced(shipped, tmp_path, table):
    fit = AnalyticCosts.fit(table)
    assert load_costs("analytic:smollm2-cpu") == load_costs("analytic:auto") == fit
    other = load_costs(f"analytic:{tmp_path / 'here.json'},depth=0.5")
    assert (other.base, other.depth) == (fit.base, 0.5)


@pytest.mark.parametrize(
    "spec",
    [
        "analytic",
        "analytic:",
        "analytic:node=1",
        "analytic:base=1,nodes=2",
        "analytic:base=-1",
        "analytic:base=x",
    ],
)
def test_numbers_that_are_none(spec):
    with pytest.raises(ValueError, match="base"):
        load_costs(spec)


def test_a_table_stands_behind_the_colon(shipped):
    for spec in ("analytic:base=1@smollm2-cpu", "analytic:smollm2-cpu@here.json"):
        with pytest.raises(ValueError, match="nothing may follow '@'"):
            load_costs(spec)


@pytest.mark.parametrize("spec", ["nothing", "nothing.json", "", ".", "analytic:nothing"])
def test_an_unknown_name_lists_what_there_is(shipped, spec):
    with pytest.raises(
        FileNotFoundError, match=r"auto, another, smollm2-cpu, smollm2-gpu.*train costs.*analytic:"
    ):
        load_costs(spec)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ValueError, match=r"x\.json"):
        load_costs(str(tmp_path / "x.json"))


def test_costs_of_another_model_are_no_secret(table, recwarn):
    measured = dataclasses.replace(table, manifest={"model_fingerprint": "a", "device": "cpu"})
    warn_of_others(measured, {"model_fingerprint": "a", "device": "cuda"})
    warn_of_others(measured, {"device": "cpu"}, ("model_fingerprint", "device"))
    warn_of_others(table, {"model_fingerprint": "b"})
    warn_of_others(AnalyticCosts(base=1), {"model_fingerprint": "b"})
    assert not recwarn
    with pytest.warns(UserWarning, match=r"model_fingerprint 'a' \(here 'b'\); .*python -m train costs"):
        warn_of_others(measured, {"model_fingerprint": "b"})
    with pytest.warns(UserWarning, match=r"device 'cpu' \(here 'cuda'\);"):
        warn_of_others(
            measured, {"model_fingerprint": "a", "device": "cuda"}, ("model_fingerprint", "device")
        )


@pytest.mark.parametrize("name", ["EntMTP/Replay-v0", "EntMTP/StagedReplay-v0"])
def test_a_replay_says_when_its_costs_are_of_another_model(tmp_path, recwarn, name):
    """Random recordings are of a model "m"."""
    settings = staged_settings(tmp_path) | {"costs": "auto"}
    if name == "EntMTP/Replay-v0":
        settings = {"recording": settings["recording"], "costs": "auto", "bank": str(tmp_path / "bank.json")}
        TopologyBank([DraftTree.chain(1)]).save(tmp_path / "bank.json")
    with pytest.warns(UserWarning, match=r"'smollm2-cpu', measured with model_fingerprint .* \(here 'm'\)"):
        gymnasium.make(name, **settings)
    recwarn.clear()
    gymnasium.make("EntMTP/Replay-v0", recording="chat")
    assert not recwarn
