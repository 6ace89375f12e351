import dataclasses
import json

import pytest

from entmtp_env.decoding.stages import default_stages
from entmtp_env.trees import default_bank
from eval.compare import compare
from eval.interleave import EvaluationError
from eval.results import FILES
from policies import SchedulerPolicy
from tests.eval.decoder_env import DecoderEnv
from tests.eval.tiny_results import staged_results


class MyPolicy(SchedulerPolicy):
    """A user's policy."""

    def __init__(self, env, tree=1):
        super().__init__(env)
        self.tree = tree

    def act(self, observations, memory):
        return [self.tree] * len(observations), memory


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_all_files_are_written_and_agree(config, capsys):
    settings = config()
    (rows,) = compare(settings).values()
    assert [row.policy for row in rows] == ["autoregressive", "hydra-default", "threshold", "random"]
    assert {path.name for path in settings.out.iterdir()} == set(FILES)
    assert (settings.out / "plot.png").stat().st_size > 10_000
    summary = json.loads((settings.out / "summary.json").read_text())
    assert summary["baseline"] == "hydra-default"
    assert summary["sets"] == {settings.prompts[0]: [dataclasses.asdict(row) for row in rows]}
    steps, episodes = (read_lines(settings.out / f"{name}.jsonl") for name in ("steps", "episodes"))
    for row in rows:
        own = [step for step in steps if step["policy"] == row.policy]
        assert sum(s["tokens"] for s in own) == row.tokens == 6 * 24
        assert sum(s["seconds"] + s["policy_seconds"] for s in own) == pytest.approx(row.seconds)
        assert len(own) == row.steps
        assert row.same_texts == row.prompts == 6
    assert len(episodes) == 4 * 6
    out = capsys.readouterr().out
    assert all(row.policy in out for row in rows)
    assert f"results: {settings.out}" in out


def test_throughputs_are_those_of_the_engine(config):
    settings = config(policies=("static:chain-1",))
    plain, hydra, chain = compare(settings)[settings.prompts[0]]
    # A step of the fake takes 10 ms and 1 ms a node; the policies' own time comes on top.
    for row, seconds in ((plain, 0.01), (hydra, 0.01 + 0.063), (chain, 0.011)):
        policy_seconds = row.policy_share * row.seconds
        assert row.seconds - policy_seconds == pytest.approx(row.steps * seconds)
        assert row.prefill_seconds == pytest.approx(6 * DecoderEnv.PREFILL)
    assert plain.tau == 1
    assert chain.rho.value == pytest.approx(chain.tokens_per_second / plain.tokens_per_second)
    assert chain.versus_baseline.value == pytest.approx(chain.tokens_per_second / hydra.tokens_per_second)


def test_the_manifest_says_what_is_needed_to_repeat(config):
    settings = config(num_prompts=4, seed=11)
    compare(settings)
    manifest = json.loads((settings.out / "manifest.json").read_text())
    name = settings.prompts[0]
    assert manifest["settings"] | {"policies": 0, "prompts": 0} == json.loads(
        json.dumps(dataclasses.asdict(settings) | {"out": str(settings.out), "policies": 0, "prompts": 0})
    )
    (environment,) = manifest["environments"][name].values()
    assert environment["bank_fingerprint"]
    assert environment["dtype"] == "float32"
    assert list(manifest["prompt_seeds"][name].values()) == [11, 12, 13, 14]
    assert {"command", "machine", "libraries", "time"} <= manifest.keys()
    seeds = {(e["prompt_id"], e["seed"]) for e in read_lines(settings.out / "episodes.jsonl")}
    assert seeds == set(manifest["prompt_seeds"][name].items())


def test_everything_is_warm_before_the_first_episode(config, prompt_file, decoder):
    compare(config(prompts=(prompt_file(2), prompt_file(3, "more.jsonl"))))
    events = [event for event, _ in decoder.log]
    assert events.count("warm_up") == 2
    assert events[:4] == ["warm_up", "reset", "warm_up", "reset"]
    assert events[4] == "reset"


def test_each_prompt_set_has_its_own_results(config, prompt_file):
    names = (prompt_file(2), prompt_file(3, "more.jsonl"))
    results = compare(config(prompts=names))
    assert {name: [row.prompts for row in rows] for name, rows in results.items()} == {
        names[0]: [2] * 4,
        names[1]: [3] * 4,
    }


def test_a_policy_of_ones_own_is_a_row_like_any_other(config, capsys):
    spec = "tests.eval.test_compare:MyPolicy,tree=2"
    rows = compare(config(policies=(spec,)))
    assert [row.trees for row in next(iter(rows.values())) if row.policy == spec] == [
        {"chain-2": rows[next(iter(rows))][-1].steps}
    ]
    assert "MyPolicy" in capsys.readouterr().out


def test_a_baseline_is_added_once(config):
    (rows,) = compare(config(policies=("random", "random"), baseline="threshold")).values()
    assert [row.policy for row in rows] == ["autoregressive", "threshold", "random"]


def test_a_failed_episode_aborts_and_keeps_what_was_done(config, monkeypatch):
    settings = config(seed=3)
    compare(settings)
    manifest = json.loads((settings.out / "manifest.json").read_text())
    *_, broken = manifest["prompt_seeds"][settings.prompts[0]]
    monkeypatch.setattr(DecoderEnv, "broken_on", broken)
    with pytest.raises(EvaluationError, match=rf"on prompt '{broken}' ended with 'error"):
        compare(dataclasses.replace(settings, overwrite=True))
    assert {path.name for path in settings.out.iterdir()} == {
        "manifest.json",
        "steps.jsonl",
        "episodes.jsonl",
    }
    assert len(read_lines(settings.out / "episodes.jsonl")) == 4 * 5


@pytest.mark.parametrize(
    ("acceptance", "dtype", "raises"),
    [
        ("greedy", "float32", True),
        ("sample:temperature=0.7", "float32", True),
        ("greedy", "bfloat16", False),
        ("typical", "float32", False),
    ],
)
def test_a_lossless_rule_in_float32_must_keep_the_texts(config, monkeypatch, acceptance, dtype, raises):
    monkeypatch.setattr(DecoderEnv, "lossy", True)
    settings = config(acceptance=acceptance, dtype=dtype)
    if raises:
        with pytest.raises(EvaluationError, match=r"hydra-default on .* \(6 of 6\)"):
            compare(settings)
    else:
        assert [row.same_texts for row in next(iter(compare(settings).values()))] == [6, 0, 0, 0]
    assert (settings.out / "summary.json").is_file()


def test_results_are_not_overwritten(config, decoder):
    settings = config()
    compare(settings)
    before = (settings.out / "steps.jsonl").read_text()
    decoder.log.clear()
    with pytest.raises(FileExistsError, match="--overwrite"):
        compare(settings)
    assert decoder.log == []
    assert (settings.out / "steps.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_prompts": -1}, "num_prompts=-1 must be at least 0"),
        ({"bootstrap_samples": 0}, "bootstrap_samples=0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"seed": -1}, "seed=-1"),
        ({"prompts": ()}, "no prompt set"),
        ({"prompts": ("nosuch",)}, "unknown prompt set 'nosuch'"),
        ({"policies": ("nosuch",)}, "policy 'nosuch': no policy 'nosuch'"),
        ({"policies": ("static:nosuch",)}, "policy 'static:nosuch': .* has no tree 'nosuch'"),
        ({"acceptance": "nosuch"}, "acceptance rule 'nosuch'"),
    ],
)
def test_a_mistake_is_found_before_anything_runs(config, decoder, changes, message):
    settings = config(**changes)
    with pytest.raises(ValueError, match=message):
        compare(settings)
    assert decoder.log == []
    assert not settings.out.exists()


def test_staged_policies_are_rows_like_any_other(tiny_files):
    folder = staged_results(tiny_files)
    summary, manifest = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("summary", "manifest")
    )
    (rows,) = summary["sets"].values()
    by_name = {row["policy"]: row for row in rows}
    plain, hydra, eagle, staged = rows
    # In float32 the texts are those of autoregressive decoding, or the comparison would have failed.
    assert {(row["tokens"], row["same_texts"]) for row in rows} == {(plain["tokens"], 3)}
    assert eagle["trees"] == {"verify-12": eagle["steps"]}
    assert all(tree.startswith("verify-") for tree in staged["trees"])
    steps = read_lines(folder / "steps.jsonl")
    drafted = {name: [s["deeper"] for s in steps if s["policy"] == name] for name in by_name}
    assert set(drafted["hydra-default"]) == {0}
    assert set(drafted[eagle["policy"]]) == {4}
    assert len(set(drafted[staged["policy"]])) > 1
    assert {s["policy"] for s in steps if not s["tree"]} == set()
    assert {len(s["parents"]) for s in steps if s["policy"] == eagle["policy"]} == {12}
    (env_ids,) = manifest["env_ids"].values()
    assert env_ids == dict.fromkeys([plain["policy"], hydra["policy"]], "EntMTP/Live-v0") | (
        dict.fromkeys([eagle["policy"], staged["policy"]], "EntMTP/Staged-v0")
    )
    (environments,) = manifest["environments"].values()
    live, other = (environments[env_id] for env_id in ("EntMTP/Live-v0", "EntMTP/Staged-v0"))
    assert live["bank_fingerprint"] == default_bank().fingerprint
    assert other["bank_fingerprint"] == default_stages().fingerprint
    assert live["heads_fingerprint"] == other["heads_fingerprint"]


def test_rows_that_take_turns_after_every_step_write_the_same_texts(tiny_files):
    by_text, by_step = (
        sorted(
            [line[key] for key in ("policy", "prompt_id", "step", "action", "deeper", "token_ids")]
            for line in read_lines(folder / "steps.jsonl")
        )
        for folder in (staged_results(tiny_files), staged_results(tiny_files, turns="step"))
    )
    assert by_step == by_text
