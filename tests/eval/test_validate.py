import dataclasses
import json
import math
import shutil
import sys

import pytest
import tyro

from eval.compare import compare
from eval.environment import make_live_env
from eval.interleave import EvaluationError
from eval.validate import Repetition, Validate, validate
from policies.learned import Learned
from tests.eval.tiny_results import staged_results, tiny_results
from tests.policies.test_network import make_network

SPEED_LEFT_OUT = math.inf


@pytest.fixture
def folder(tiny_files, tmp_path):
    return shutil.copytree(tiny_results(tiny_files), tmp_path / "results")


def rewrite(path, change):
    """Apply a change to each line of a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(change(line)) + "\n" for line in lines))


def drafting(line):
    return line["policy"] == "static:tree-4x2"


def test_untouched_results_come_out_again(folder, capsys):
    rows = validate(Validate(folder, tolerance=SPEED_LEFT_OUT))
    assert [(own.episodes, own.differences) for own in rows] == [(3, ())] * 4
    assert {own.policy for own in rows} == {"autoregressive", "hydra-default", "static:tree-4x2", "ladder"}
    for own in rows:
        assert own.tokens == own.live_tokens > 0
    assert "static:tree-4x2" in capsys.readouterr().out


@pytest.fixture
def staged(tiny_files, tmp_path):
    return shutil.copytree(staged_results(tiny_files), tmp_path / "staged")


def test_so_do_staged_ones(staged):
    rows = validate(Validate(staged, tolerance=SPEED_LEFT_OUT))
    assert [(own.episodes, own.differences) for own in rows] == [(3, ())] * 4
    assert sum(own.policy.startswith(("eagle2", "staged")) for own in rows) == 2


def test_a_changed_number_of_depths_is_named(staged):
    rewrite(
        staged / "steps.jsonl",
        once(lambda line: line["policy"] == "eagle2:nodes=12", lambda line: {"deeper": 1}),
    )
    fails(staged, "does not come out again live", "step 0: tree 'verify-12' recorded, 'verify-8' live")


def test_a_depth_that_no_bank_drafts_is_named(folder):
    rewrite(folder / "steps.jsonl", once(drafting, lambda line: {"deeper": 1}))
    fails(folder, "does not come out again live", "step 0: tree 'tree-4x2' recorded, 'autoregressive' live")


def test_another_built_tree_is_named(staged):
    rewrite(
        staged / "steps.jsonl",
        once(lambda line: line["parents"], lambda line: {"parents": [0] * len(line["parents"])}),
    )
    fails(staged, "does not come out again live", "step 0: parents (0, 0, 0")


def test_sampled_texts_come_out_again(tiny_files, config, tmp_path):
    settings = config(
        acceptance="sample:temperature=1.0",
        policies=("random",),
        num_prompts=2,
        env_id="EntMTP/Live-v0",
        **{key: value for key, value in tiny_files.kwargs.items() if key != "prompts"},
    )
    settings = dataclasses.replace(settings, prompts=(tiny_files.prompts,))
    compare(settings)
    rows = validate(Validate(settings.out, tolerance=SPEED_LEFT_OUT))
    assert all(not own.differences for own in rows)


def test_rows_whose_files_ask_for_another_environment_come_out_again(tiny_files, config, tmp_path):
    model = {key: value for key, value in tiny_files.kwargs.items() if key != "prompts"}
    settings = config(num_prompts=2, env_id="EntMTP/Live-v0", **model)
    own = vars(settings) | {"probe": "first", "features": "heads,acceptance"}
    env = make_live_env(own, tiny_files.prompts, "EntMTP/Live-v0")
    network = make_network(sizes=(len(env.unwrapped.feature_names), 4, len(env.unwrapped.bank)))
    Learned(env, network).save(tmp_path / "learned.npz")
    spec = f"learned@{tmp_path}/learned.npz"
    settings = dataclasses.replace(settings, prompts=(tiny_files.prompts,), policies=(spec,))
    compare(settings)
    manifest = json.loads((settings.out / "manifest.json").read_text())
    place = manifest["env_ids"][tiny_files.prompts][spec]
    assert place == "EntMTP/Live-v0 probe=first features=heads,acceptance"
    rows = validate(Validate(settings.out, tolerance=SPEED_LEFT_OUT))
    assert all(not own.differences for own in rows)


def test_some_prompts_only(folder):
    rows = validate(Validate(folder, num_prompts=1, tolerance=SPEED_LEFT_OUT))
    assert [own.episodes for own in rows] == [1] * 4


def fails(folder, *messages, **settings):
    with pytest.raises(EvaluationError) as caught:
        validate(Validate(folder, **({"tolerance": SPEED_LEFT_OUT} | settings)))
    for message in messages:
        assert message in str(caught.value)


def once(test, change):
    """Change the first line that passes a test."""
    done = []

    def apply(line):
        if not done and test(line):
            done.append(line)
            return line | change(line)
        return line

    return apply


def test_a_changed_action_is_named(folder):
    rewrite(
        folder / "steps.jsonl",
        once(lambda line: drafting(line) and line["step"] == 1, lambda line: {"action": 7}),
    )
    fails(folder, "contradicts itself: static:tree-4x2 on", "step 1 has action 7 with the tree 'tree-4x2'")


def test_another_tree_is_named(folder):
    """Consistently, so that only the decoder can tell that plain decoding accepts nothing."""
    (folder / "summary.json").unlink()
    rewrite(
        folder / "steps.jsonl",
        once(
            lambda line: drafting(line) and line["accept_length"] > 0,
            lambda line: {"action": 0, "tree": "autoregressive"},
        ),
    )
    fails(folder, "does not come out again live: static:tree-4x2 on", "accept_length", "recorded, 0 live")


def test_an_action_that_no_tree_has_is_named(folder):
    rewrite(
        folder / "steps.jsonl", lambda line: line | ({"action": 99} if line["tree"] == "tree-4x2" else {})
    )
    fails(folder, "step 0 has action 99, which is no tree of the bank")


def test_a_changed_token_is_named(folder):
    def other(line):
        *rest, last = line["token_ids"]
        return {"token_ids": [*rest, last + 1]}

    rewrite(folder / "steps.jsonl", once(lambda line: line["step"] == 2, other))
    fails(folder, "does not come out again live", "step 2: token_ids")


def test_a_changed_text_is_named(folder):
    path = folder / "episodes.jsonl"
    rewrite(path, once(lambda line: True, lambda line: {"text": line["text"].replace("w", "v", 1)}))
    fails(folder, "contradicts itself", "departs from that of the steps at character")


def test_a_changed_number_is_named(folder):
    rewrite(folder / "episodes.jsonl", once(lambda line: True, lambda line: {"tokens": line["tokens"] + 1}))
    fails(folder, "contradicts itself", "episodes.jsonl says tokens =")


def test_a_changed_score_is_named(folder):
    rewrite(
        folder / "steps.jsonl",
        once(
            drafting, lambda line: {"scores": line["scores"] | {"base_top1": line["scores"]["base_top1"] / 2}}
        ),
    )
    fails(folder, "step 0: base_top1")


def test_a_changed_reason_is_named(folder):
    rewrite(folder / "episodes.jsonl", once(lambda line: True, lambda line: {"finish_reason": "context"}))
    fails(folder, "finish_reason 'context' recorded")


def test_speeds_that_are_off_are_named(folder):
    """All times a hundredth of what they were, consistently: only a clock can tell."""
    (folder / "summary.json").unlink()
    for name in ("steps.jsonl", "episodes.jsonl"):
        rewrite(
            folder / name,
            lambda line: {
                key: value / 100 if key.endswith("seconds") else value for key, value in line.items()
            },
        )
    rewrite(folder / "steps.jsonl", lambda line: line | {"reward": 100 * line["reward"]})
    fails(folder, "speed is off by more than 1", "autoregressive on ", tolerance=1)
    validate(Validate(folder, tolerance=SPEED_LEFT_OUT))


def test_the_ratio_is_of_throughputs():
    assert Repetition("chat", "random", 1, 100, 2.0, 100, 4.0).ratio == pytest.approx(0.5)


def test_other_heads_are_refused(folder):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    ((environment,),) = (own.values() for own in manifest["environments"].values())
    environment["heads_fingerprint"] = "other"
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="heads_fingerprint 'other' recorded"):
        validate(Validate(folder))


def test_results_of_an_earlier_version_are_refused(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"env_ids"', '"ids"'))
    with pytest.raises(ValueError, match="no env_ids"):
        validate(Validate(folder))


@pytest.mark.parametrize("settings", [{"num_prompts": -1}, {"tolerance": -0.1}, {"tolerance": math.nan}])
def test_settings_out_of_range(folder, settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}="):
        validate(Validate(folder, **settings))


def with_less(key, less):
    """Leave some of a detail out of one step only."""
    return once(
        lambda line: drafting(line) and line["step"] == 1,
        lambda line: {key: type(line[key])(less(line[key]))},
    )


@pytest.mark.parametrize("key", ["token_ids", "scores"])
def test_a_detail_that_one_step_lacks_is_named(folder, key):
    rewrite(folder / "steps.jsonl", with_less(key, lambda detail: ()))
    fails(folder, "does not come out again live", "static:tree-4x2 on ", "step 1: ")


def test_a_score_that_one_step_lacks_is_named(folder):
    rewrite(
        folder / "steps.jsonl",
        with_less("scores", lambda scores: [own for own in scores.items() if own[0] != "base_entropy"]),
    )
    fails(folder, "step 1: base_entropy nan recorded")


def test_a_tree_that_one_step_lacks_is_named(staged):
    rewrite(staged / "steps.jsonl", once(lambda line: line["parents"], lambda line: {"parents": []}))
    fails(staged, "step 0: parents () recorded")


def change_manifest(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_an_environment_of_which_less_is_known_is_refused(folder):
    def change(manifest):
        for environments in manifest["environments"].values():
            for environment in environments.values():
                del environment["heads_fingerprint"]

    change_manifest(folder, change)
    with pytest.raises(ValueError, match="heads_fingerprint None recorded"):
        validate(Validate(folder))


@pytest.mark.parametrize("key", ["env_ids", "environments"])
def test_a_row_without_an_environment_is_refused(folder, key):
    def change(manifest):
        for own in manifest[key].values():
            del own["ladder" if key == "env_ids" else "EntMTP/Live-v0"]

    change_manifest(folder, change)
    with pytest.raises(ValueError, match=r"does not say in which environment '.*' ran"):
        validate(Validate(folder))


def test_a_prefill_that_is_off_is_named(folder):
    (folder / "summary.json").unlink()
    rewrite(folder / "episodes.jsonl", lambda line: line | {"prefill_seconds": line["prefill_seconds"] / 100})
    fails(folder, "speed is off by more than 9", "seconds of prefill", tolerance=9)
    validate(Validate(folder, tolerance=SPEED_LEFT_OUT))


def test_the_ratio_of_prefills_is_of_seconds():
    timed = Repetition("chat", "random", prefill_seconds=2.0, live_prefill_seconds=1.0)
    assert timed.prefill_ratio == pytest.approx(0.5)
    assert Repetition("chat", "random").prefill_ratio == 1.0
    assert Repetition("chat", "random", live_prefill_seconds=1.0).prefill_ratio == math.inf


def test_an_edited_summary_is_a_message(folder):
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sets": []}))
    fails(folder, "contradicts itself: summary.json, sets: []")


def test_the_folder_is_positional(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["validate", str(tmp_path), "--tolerance", "inf"])
    assert tyro.cli(Validate) == Validate(tmp_path, 0, math.inf)
