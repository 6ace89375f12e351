import warnings
from types import SimpleNamespace

import gymnasium
import pytest

import entmtp_env  # noqa: F401
from entmtp_env.replay.costs import load_costs
from entmtp_env.trees import load_bank
from policies.prices import load_prices
from policies.staged import Eagle2, StagedThreshold
from policies.value import Value
from tests.policies.test_network import make_network
from tests.recordings import COSTS

HERE = {"model_fingerprint": load_costs("auto").manifest["model_fingerprint"], "device": "cpu"}


@pytest.fixture
def live(bare_env):
    """A live environment by its manifest alone."""

    def build(**manifest):
        env = bare_env(load_bank("default"), ("context_fraction", "base_top1"))
        env.manifest, env.capacity, env.feature_set = HERE | manifest, 64, SimpleNamespace(probe="none")
        return env

    return build


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"device": "cuda:0"}, r"with device 'cpu' \(here 'cuda:0'\); .*python -m train costs.* costs="),
        (
            {"model_fingerprint": "f" * 16},
            rf"model_fingerprint '{HERE['model_fingerprint']}' \(here 'f{{16}}'\)",
        ),
    ],
)
def test_shipped_costs_of_another_model_or_device_are_no_secret(live, other, message):
    with pytest.warns(UserWarning, match=message):
        assert load_prices(live(**other), "").name == load_costs("auto").name


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_where_the_costs_fit_or_were_named(live, bare_env):
    load_prices(live(), "")
    load_prices(bare_env(load_bank("default")), "")
    assert load_prices(live(device="cuda:0"), COSTS) == load_costs(COSTS)
    assert load_prices(live(device="cuda:0"), "auto").name == load_costs("auto").name


def test_the_policies_that_weigh_tokens_against_seconds_say_so(tiny_files, live):
    env = live(device="cuda:0")
    with pytest.warns(UserWarning, match="measured with device"):
        Value(env, make_network(sizes=(2, 4, len(env.bank))))
    env = gymnasium.make(
        "EntMTP/Staged-v0",
        model=tiny_files.model,
        heads=tiny_files.heads,
        prompts=tiny_files.prompts,
        device="cpu",
        dtype="float32",
    )
    with pytest.warns(UserWarning, match="measured with model_fingerprint"):
        StagedThreshold(env)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Eagle2(env, 2)
        StagedThreshold(env, costs=COSTS)
