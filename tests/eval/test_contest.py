import dataclasses
import json

import pytest

from eval.compare import Compare, compare
from eval.consistency import inconsistencies
from eval.contest import Contest, run_contests
from eval.interleave import Entrant, EvaluationError
from eval.results import FILES, LOSSLESSNESS, ResultFolder
from eval.stored import load_results
from policies import make_policy
from tests.eval.decoder_env import DecoderEnv


@pytest.fixture
def stop_after(monkeypatch):
    """Press Ctrl-C at a step of the decoder; never with ``None``."""
    step = DecoderEnv.step

    def arrange(steps):
        left = steps

        def interrupted(self, action):
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left = left and left - 1
            return step(self, action)

        monkeypatch.setattr(DecoderEnv, "step", interrupted)

    return arrange


@pytest.fixture
def make_env(decoder, prompt_file):
    def make(bank="default"):
        settings = (prompt_file(), "greedy", 12, "none", "all", 2048, "float32", "cpu")
        return decoder("m", "auto", bank, *settings)

    return make


def test_the_fingerprint_of_prompts_is_of_all_that_decides_their_text(make_env):
    def fingerprint(**changes):
        env = make_env()
        env.prompts[0] = dataclasses.replace(env.prompts[0], **changes)
        entrants = {"autoregressive": Entrant(env, make_policy("autoregressive", env))}
        return Contest(entrants, {"q0": 1, "q1": 2}).prompts_fingerprint

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(text="Another"), fingerprint(chat=False)}) == 3


def unlike_times(out):
    """What each episode did, times and rewards apart."""
    return [
        (
            own.prompts,
            own.run.policy,
            own.run.episode.prompt_id,
            [(s.tree, s.tokens) for s in own.run.episode.steps],
        )
        for own in load_results(out).runs
    ]


def test_rows_may_have_environments_of_their_own(make_env, decoder, tmp_path):
    envs = make_env(), make_env()
    entrants = {
        "autoregressive": Entrant(envs[0], make_policy("autoregressive", envs[0])),
        "a": Entrant(envs[0], make_policy("static:chain-1", envs[0])),
        "b": Entrant(envs[1], make_policy("static:chain-2", envs[1])),
    }
    contest = Contest(entrants, {"q1": 5, "q2": 6})
    assert contest.trees == envs[0].bank.names
    contest.warm_up()
    assert [event for event, _ in decoder.log] == ["warm_up", "reset"] * 2
    with ResultFolder(tmp_path) as folder:
        outcome = run_contests({"set": contest}, folder, seed=0)
    assert outcome.complete
    assert {name: {s.tree for e in own for s in e.steps} for name, own in outcome.sets["set"].items()} == {
        "autoregressive": {"autoregressive"},
        "a": {"chain-1"},
        "b": {"chain-2"},
    }
    assert [[e.prompt_id for e in own] for own in outcome.sets["set"].values()] == [["q1", "q2"]] * 3


@pytest.mark.parametrize("steps", [0, 1, 30, 75, 170])
def test_ctrl_c_leaves_whole_episodes_and_a_table_and_resuming_gives_the_same_results(
    config, stop_after, steps, capsys
):
    whole = config()
    compare(whole)
    expected = unlike_times(whole.out)
    capsys.readouterr()

    cut = config(out=whole.out.with_name("cut"))
    stop_after(steps)
    with pytest.raises(KeyboardInterrupt):
        compare(cut)
    done = (cut.out / "episodes.jsonl").read_text().count("\n")
    assert done < len(expected)
    assert not (cut.out / "summary.json").exists()
    out = capsys.readouterr().out
    assert f"--resume --out {cut.out}" in out
    # A title with a long path has more than one line.
    assert (f"{done // 4} prompts" in " ".join(out.split())) == (done >= 4)

    stop_after(None)
    (rows,) = compare(dataclasses.replace(cut, resume=True)).values()
    assert unlike_times(cut.out) == expected
    assert {row.prompts for row in rows} == {6}
    assert {path.name for path in cut.out.iterdir()} == set(FILES)


def test_what_was_finished_is_not_run_again(config, stop_after, decoder):
    settings = config()
    stop_after(100)
    with pytest.raises(KeyboardInterrupt):
        compare(settings)
    before = load_results(settings.out).runs
    stop_after(None)
    decoder.log.clear()
    compare(dataclasses.replace(settings, resume=True))
    assert load_results(settings.out).runs[: len(before)] == before
    resets = [detail for event, detail in decoder.log if event == "reset"]
    # One more is the warm-up's.
    assert len(resets) == 1 + 4 * 6 - len(before)
    manifest = json.loads((settings.out / "manifest.json").read_text())
    assert len(manifest["resumed"]) == 1


def test_complete_results_are_summarised_anew(config, decoder):
    settings = config()
    first = compare(settings)
    decoder.log.clear()
    again = compare(dataclasses.replace(settings, resume=True))
    assert again == first
    assert not [event for event, _ in decoder.log if event == "step"]


def seeds_of(out):
    return {(own.run.policy, own.run.episode.prompt_id): own.run.seed for own in load_results(out).runs}


@pytest.mark.parametrize("raises", [False, True])
def test_a_prompt_that_fails_can_be_left_out(config, monkeypatch, capsys, raises):
    whole = config()
    compare(whole)
    fourth = list(dict.fromkeys(prompt_id for _, prompt_id in seeds_of(whole.out)))[3]
    settings = config(out=whole.out.with_name("cut"))
    monkeypatch.setattr(DecoderEnv, "broken_on", fourth)
    if raises:
        finish = DecoderEnv._info

        def burst(self, *arguments):
            if finish(self, *arguments)["finish_reason"].startswith("error"):
                raise ValueError("burst")
            return finish(self, *arguments)

        monkeypatch.setattr(DecoderEnv, "_info", burst)
    capsys.readouterr()
    with pytest.raises(RuntimeError, match=f"on prompt '{fourth}'") as caught:
        compare(settings)
    assert isinstance(caught.value, EvaluationError) != raises
    out = capsys.readouterr().out
    assert ": 3 prompts" in " ".join(out.split())
    assert f"--resume --out {settings.out}" in out
    assert out.rstrip().endswith(f"--exclude {fourth}")

    (rows,) = compare(dataclasses.replace(settings, resume=True, exclude=(fourth,))).values()
    assert {row.prompts for row in rows} == {5}
    expected = {key: seed for key, seed in seeds_of(whole.out).items() if key[1] != fourth}
    assert seeds_of(settings.out) == expected
    results = load_results(settings.out)
    assert results.settings["exclude"] == [fourth]
    assert inconsistencies(results) == []

    # What was excluded may run after all, and what was stored may be excluded.
    monkeypatch.undo()
    (rows,) = compare(dataclasses.replace(settings, resume=True)).values()
    assert {row.prompts for row in rows} == {6}
    assert seeds_of(settings.out) == seeds_of(whole.out)
    # The prompt that was left out comes last in the files, and counts where it was drawn.
    assert inconsistencies(load_results(settings.out)) == []
    (settings.out / LOSSLESSNESS).write_text("of six texts")
    (rows,) = compare(dataclasses.replace(settings, resume=True, exclude=("q0", "q1"))).values()
    assert {row.prompts for row in rows} == {4}
    results = load_results(settings.out)
    (policies,) = results.sets().values()
    assert not {"q0", "q1"} & {own.run.episode.prompt_id for runs in policies.values() for own in runs}
    assert inconsistencies(results) == []
    assert not (settings.out / LOSSLESSNESS).exists()


def test_the_advice_keeps_what_is_excluded_already(config, monkeypatch, capsys):
    monkeypatch.setattr(DecoderEnv, "broken_on", "q3")
    with pytest.raises(EvaluationError):
        compare(config(exclude=("q1",)))
    assert capsys.readouterr().out.rstrip().endswith("--exclude q1 q3")


def test_what_is_excluded_must_be_there_and_leave_something(config, decoder):
    with pytest.raises(ValueError, match="exclude='q9' is no prompt"):
        compare(config(exclude=("q1", "q9")))
    with pytest.raises(ValueError, match="exclude leaves no prompt"):
        compare(config(exclude=tuple(f"q{i}" for i in range(6))))
    assert decoder.log == []


def test_prompts_that_may_fill_the_cache_are_named(tiny_files, tmp_path):
    """Prompt i has i + 1 tokens, a text 24 and the largest tree 63 nodes."""
    settings = {
        "policies": ("staged-threshold", "prompt-lookup"),
        "prompts": (tiny_files.prompts,),
        "bootstrap_samples": 50,
        "out": tmp_path / "results",
        **{key: value for key, value in tiny_files.kwargs.items() if key != "prompts"},
        "capacity": 24 + 63 + 3,
    }
    with pytest.raises(
        ValueError, match=r"more than 3 tokens: '.*63 nodes they do not fit into 90 KV"
    ) as error:
        compare(Compare(**settings))
    assert [name in str(error.value) for name in ("t2", "t3", "t4", "t5")] == [False, True, True, True]
    (rows,) = compare(Compare(**settings, max_prompt_tokens=3)).values()
    # In float32 a text that the cache had cut would have been an error.
    assert {row.prompts for row in rows} == {3}
    (rows,) = compare(Compare(**settings, exclude=("t2", "t3", "t4", "t5"), overwrite=True)).values()
    assert {row.prompts for row in rows} == {2}
