import dataclasses
import json
import shutil
from types import SimpleNamespace

import gymnasium
import pytest

from entmtp_env.decoding import save_heads
from entmtp_env.prompt_sources import PromptsUnavailableError
from entmtp_env.trees import default_bank
from eval.consistency import inconsistencies
from eval.interleave import EvaluationError
from eval.losslessness import Losslessness, losslessness
from eval.medusa_row import MEDUSA
from eval.paper import Paper, paper
from eval.paper_summary import HYDRA, method, task_name
from eval.results import FILES
from eval.stored import load_results
from eval.validate import Validate, validate
from policies.policy_file import PolicyFile
from tests.eval.decoder_env import DecoderEnv
from tests.tiny import tiny_backbone, tiny_heads

ENV_ID = "tests.eval.test_paper:EntMTP/FakePaper-v0"


class PaperEnv(DecoderEnv):
    """The fake decoder with heads of two kinds; a word is a token."""

    def __init__(self, model, heads, **settings):
        super().__init__(model, heads, **settings)
        self.manifest["heads_arch"] = "medusa" if "medusa" in heads else "hydra-prefix"
        self.engine = SimpleNamespace(encode=lambda prompt: prompt.text.split())


gymnasium.register(id="EntMTP/FakePaper-v0", entry_point="tests.eval.test_paper:PaperEnv")


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"Why {'so ' * i}?", "answer": ""} for i in range(12)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return f"gsm8k@{path}"


CALIBRATED = {"static": {"tree": "tree-6x3"}, "threshold": {}, "ladder": {}}


@pytest.fixture
def calibrated(tmp_path):
    """Specs of policy files for the default bank, in the order of the paper's rows."""
    for name, options in CALIBRATED.items():
        PolicyFile(name, default_bank().fingerprint, options).save(tmp_path / f"{name}.json")
    return tuple(f"{name}@{tmp_path / name}.json" for name in CALIBRATED)


@pytest.fixture
def settings(decoder, questions, calibrated, tmp_path):
    base = Paper(
        prompts=(f"{questions}:evaluation",),
        policies=(*calibrated, "random"),
        max_new_tokens=24,
        num_prompts=4,
        bootstrap_samples=200,
        out=tmp_path / "results",
        env_id=ENV_ID,
    )
    return lambda **changes: dataclasses.replace(base, **changes)


def rows_of(config):
    return ["autoregressive", MEDUSA, HYDRA, *config.policies]


def test_the_defaults_are_the_papers():
    config = Paper()
    assert (config.num_prompts, config.max_prompt_tokens) == (100, 1400)
    assert (config.max_new_tokens, config.seed) == (256, 123)
    assert config.acceptance == "typical:temperature=0.7,epsilon=0.09,alpha=0.3"
    assert [task_name(prompts) for prompts in config.prompts] == [
        "humaneval",
        "gsm8k",
        "sharegpt",
        "litbench",
        "arc",
    ]


def test_the_table_has_the_methods_with_the_papers_numbers_beside(settings, capsys):
    config = settings()
    result = paper(config)
    (rows,) = result.summaries.values()
    assert [row.policy for row in rows] == rows_of(config)
    lines = capsys.readouterr().out.splitlines()
    for name, row, reported in (
        ("Vanilla", rows[0], ("33.7", "1.00", "1.00")),
        ("Medusa", rows[1], ("87.4", "2.59", "2.51")),
        ("Hydra", rows[2], ("102.4", "2.87", "2.86")),
        ("EntMTP*", rows[3], ("109.7", "3.07", "3.08")),
        ("EntMTP^τ", rows[4], ("112.0", "3.13", "3.02")),
        ("EntMTP-l", rows[5], (f"{rows[5].versus_baseline_with_prefill.high:.3f}]",)),
        ("random", rows[6], (f"{rows[6].versus_baseline_with_prefill.high:.3f}]",)),
    ):
        (line,) = [
            line.replace("★", "").split() for line in lines if line.replace("★", " ").split()[:1] == [name]
        ]
        assert line[1] == f"{row.tokens_per_second_with_prefill:.1f}"
        assert f"{row.tau:.2f}" in line
        assert tuple(line[-len(reported) :]) == reported
    assert {path.name for path in config.out.iterdir()} == set(FILES)


def test_rows_are_divided_by_entmtp_star_unless_told(settings, capsys):
    config = settings(policies=("random", *settings().policies))
    (rows,) = paper(config).summaries.values()
    by_name = {row.policy: row for row in rows}
    star = by_name[config.policies[1]]
    for row in rows:
        expected = row.tokens_per_second_with_prefill / star.tokens_per_second_with_prefill
        assert row.versus_baseline_with_prefill.value == pytest.approx(expected)
    assert "× EntMTP*" in capsys.readouterr().out
    assert load_results(config.out).settings["baseline"] == star.policy
    assert inconsistencies(load_results(config.out)) == []
    for changes in ({"policies": ("random",)}, {"baseline": HYDRA}):
        paper(settings(overwrite=True, **changes))
        assert "× Hydra" in capsys.readouterr().out


def test_medusa_decodes_with_its_own_heads_and_tree(settings):
    config = settings()
    paper(config)
    results = load_results(config.out)
    (policies,) = results.sets().values()
    assert {step.tree for own in policies[MEDUSA] for step in own.run.episode.steps} == {"medusa-7b-stage1"}
    ((main,),) = (own.values() for own in results.manifest["environments"].values())
    (medusa,) = results.manifest["medusa_environments"].values()
    assert (main["heads_arch"], medusa["heads_arch"]) == ("hydra-prefix", "medusa")
    assert main["bank_fingerprint"] != medusa["bank_fingerprint"]


def test_hydra_heads_are_no_medusa_heads(settings, decoder):
    with pytest.raises(
        ValueError, match=r"'mine\.safetensors' are hydra-prefix heads; .* architecture medusa"
    ):
        paper(settings(medusa_heads="mine.safetensors"))
    assert decoder.log == []


def test_a_model_without_medusa_heads_has_no_such_row(settings, capsys):
    config = settings(model="some/model")
    result = paper(config)
    (rows,) = result.summaries.values()
    assert [row.policy for row in rows] == [row for row in rows_of(config) if row != MEDUSA]
    assert "no Medusa heads ship for 'some/model'" in result.left_out["Medusa"]
    assert "left out: Medusa" in capsys.readouterr().out


def test_prompts_are_the_first_short_ones_of_the_shuffle(settings, questions):
    config = settings(max_prompt_tokens=7)
    paper(config)
    seeds = json.loads((config.out / "manifest.json").read_text())["prompt_seeds"][config.prompts[0]]
    everything = dataclasses.replace(config, num_prompts=0, max_prompt_tokens=99, overwrite=True)
    paper(everything)
    unlimited = json.loads((config.out / "manifest.json").read_text())["prompt_seeds"][config.prompts[0]]
    assert list(unlimited.values()) == list(range(123, 123 + 6))
    # Question i has i + 2 words and is row i + 1.
    short = {name: seed for name, seed in unlimited.items() if int(name.split("-")[1]) + 1 <= 7}
    assert seeds == dict(list(short.items())[:4])
    assert 0 < len(short) < len(unlimited)
    with pytest.raises(ValueError, match="has no prompt of at most 1 tokens"):
        paper(settings(max_prompt_tokens=1, overwrite=True))


def test_tasks_that_are_not_here_are_named_and_the_others_run(settings, questions, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    missing = ("arc:evaluation", "litbench:evaluation")
    result = paper(settings(prompts=(*missing, f"{questions}:evaluation")))
    assert list(result.summaries) == [f"{questions}:evaluation"]
    assert set(result.left_out) == set(missing)
    out = capsys.readouterr().out
    assert all(f"left out: {name}: " in out for name in missing)
    with pytest.raises(FileNotFoundError, match=r"none of the tasks .* pip install"):
        paper(settings(prompts=missing, overwrite=True))


def test_a_mistyped_file_is_an_error_and_not_left_out(settings, decoder):
    with pytest.raises(FileNotFoundError, match=r"no prompt file gone\.jsonl") as error:
        paper(settings(prompts=("gsm8k@gone.jsonl", "chat")))
    assert not isinstance(error.value, PromptsUnavailableError)
    assert decoder.log == []


def test_task_stands_for_the_name_of_each(settings, questions, prompt_file, monkeypatch):
    built = []

    def make(spec, env):
        built.append(spec)
        return make_named_policy(spec.replace("gsm8k", "chain-1").replace("prompts", "chain-2"), env)

    from eval.environment import make_named_policy

    monkeypatch.setattr("eval.environment.make_named_policy", make)
    sets = (f"{questions}:evaluation", prompt_file(3))
    result = paper(settings(prompts=sets, policies=("static:{task}",)))
    assert {"static:gsm8k", "static:prompts"} < set(built)
    assert [[*rows[-1].trees] for rows in result.summaries.values()] == [["chain-1"], ["chain-2"]]
    assert {rows[-1].policy for rows in result.summaries.values()} == {"static:{task}"}


def test_the_summary_has_claims_methods_and_the_papers_rows(settings):
    config = settings()
    result = paper(config)
    summary = json.loads((config.out / "summary.json").read_text())
    (claims,) = summary["claims"].values()
    assert [(claim["faster"], claim["slower"]) for claim in claims] == [
        ("Hydra", "Medusa"),
        ("EntMTP*", "Hydra"),
        ("EntMTP^τ", "EntMTP*"),
    ]
    (rows,) = result.summaries.values()
    by_name = {row.policy: row.tokens_per_second_with_prefill for row in rows}
    assert claims[1]["ratio"]["value"] == pytest.approx(by_name[config.policies[0]] / by_name[HYDRA])
    assert summary["methods"][MEDUSA] == "Medusa"
    assert summary["paper"][config.prompts[0]]["EntMTP*"]["tokens_per_second"] == 109.7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda summary, prompts: summary["claims"][prompts][0]["ratio"].update(value=9),
            "Hydra, ratio, value",
        ),
        (lambda summary, prompts: summary["claims"][prompts][1].update(verdict="holds"), "EntMTP*, verdict"),
        (lambda summary, prompts: summary["claims"][prompts].pop(), "claims"),
        (lambda summary, prompts: summary.pop("claims"), "claims"),
        (lambda summary, prompts: summary["methods"].update(random="EntMTP^τ"), "methods, random"),
        (lambda summary, prompts: summary["paper"][prompts]["Hydra"].update(tau=1.0), "Hydra, tau"),
        (lambda summary, prompts: summary.update(baseline="random"), "baseline"),
        (lambda summary, prompts: summary.update(left_out={"arc": "no"}), "left_out, arc"),
    ],
)
def test_whatever_is_changed_in_the_summary_is_found(settings, change, message):
    config = settings()
    paper(config)
    assert inconsistencies(load_results(config.out)) == []
    path = config.out / "summary.json"
    summary = json.loads(path.read_text())
    change(summary, config.prompts[0])
    path.write_text(json.dumps(summary))
    (problem,) = inconsistencies(load_results(config.out))
    assert problem.startswith("summary.json, ")
    assert message in problem


@pytest.mark.parametrize(
    ("prompts", "name"),
    [
        ("gsm8k", "gsm8k"),
        ("gsm8k:evaluation", "gsm8k"),
        ("gsm8k@a:b/test.parquet:evaluation", "gsm8k"),
        ("runs/mine.jsonl:calibration", "mine"),
        (r"C:/x/mine.jsonl", "mine"),
    ],
)
def test_the_task_of_a_prompt_set(prompts, name):
    assert task_name(prompts) == name


def test_methods_are_told_by_the_policy():
    assert method("static@runs/{task}/static.json") == "EntMTP*"
    assert method("threshold:on=0.7@runs/threshold.json") == "EntMTP^τ"
    assert method("threshold:on=0.7") == method("static:tree-4x2") == ""
    assert method("hydra-default") == "Hydra"
    assert method("learned@x.npz") == ""


def test_stopped_and_resumed_it_has_the_same_rows_and_prompts(settings, monkeypatch, capsys):
    config = settings()
    steps = PaperEnv.step
    left = 60

    def interrupted(self, action):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return steps(self, action)

    monkeypatch.setattr(PaperEnv, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        paper(config)
    assert f"--resume --out {config.out}" in capsys.readouterr().out
    before = load_results(config.out)
    assert 0 < len(before.runs) < 4 * len(rows_of(config))
    monkeypatch.setattr(PaperEnv, "step", steps)
    result = paper(dataclasses.replace(config, resume=True))
    after = load_results(config.out)
    assert [(own.totals, own.run) for own in after.runs[: len(before.runs)]] == [
        (own.totals, own.run) for own in before.runs
    ]
    (rows,) = result.summaries.values()
    assert [row.policy for row in rows] == rows_of(config)
    assert {row.prompts for row in rows} == {4}


def check_medusa_is_repeated(folder, tmp_path):
    """A changed token of its row is found, and neither other heads nor a missing place are let through."""
    config = Validate(shutil.copytree(folder, tmp_path / "changed"), tolerance=float("inf"))
    steps, manifest = config.results / "steps.jsonl", config.results / "manifest.json"
    lines = steps.read_text().splitlines(keepends=True)
    place, line = next((i, own) for i, own in enumerate(map(json.loads, lines)) if own["policy"] == MEDUSA)
    line["token_ids"][0] += 1
    steps.write_text("".join([*lines[:place], json.dumps(line) + "\n", *lines[place + 1 :]]))
    with pytest.raises(EvaluationError, match=f"{MEDUSA} on .*: step 0: token_ids"):
        validate(config)
    recorded = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(recorded | {"medusa_environments": {}}))
    with pytest.raises(ValueError, match=f"does not say in which environment '{MEDUSA}' ran"):
        validate(config)
    for environment in recorded["medusa_environments"].values():
        environment["heads_fingerprint"] = "other"
    manifest.write_text(json.dumps(recorded))
    with pytest.raises(ValueError, match="heads_fingerprint 'other' recorded"):
        validate(config)


def test_on_real_engines_all_rows_run_and_perplexity_is_claimed(tiny_files, calibrated, tmp_path, capsys):
    staged = ("staged-threshold", "eagle2", "eagle2-cost-aware", "prompt-lookup")
    assert set(staged) < set(Paper().policies)
    medusa = tmp_path / "medusa.safetensors"
    save_heads(tiny_heads(tiny_backbone(), arch="medusa", pack=False), medusa)
    config = Paper(
        policies=(calibrated[0], *staged),
        prompts=(tiny_files.prompts,),
        num_prompts=2,
        bootstrap_samples=50,
        medusa_heads=str(medusa),
        out=tmp_path / "results",
        acceptance="greedy",
        **{key: value for key, value in tiny_files.kwargs.items() if key != "prompts"},
    )
    (rows,) = paper(config).summaries.values()
    assert [row.policy for row in rows] == rows_of(config)
    # Greedy texts in float32 are those of autoregressive decoding, whichever heads draft.
    assert [row.same_texts for row in rows] == [2] * len(rows)
    assert not any(MEDUSA in rows for rows in load_results(config.out).manifest["env_ids"].values())
    assert "nats per token of Vanilla" not in capsys.readouterr().out
    repeated = validate(Validate(config.out, tolerance=float("inf")))
    assert {own.policy for own in repeated if not own.differences} == set(rows_of(config))
    check_medusa_is_repeated(config.out, tmp_path)
    losslessness(Losslessness(config.out))
    capsys.readouterr()
    paper(dataclasses.replace(config, resume=True))
    lines = [line for line in capsys.readouterr().out.splitlines() if "nats per token of Vanilla" in line]
    # Greedy texts are all the same.
    for line, name in zip(lines, ("EntMTP*", "Medusa", "Hydra"), strict=True):
        assert line.startswith(f"prompts: {name} within 0.02 nats per token of Vanilla: holds (+0.0000 [")
