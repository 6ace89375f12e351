import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from entmtp_env.prompts import load_prompts
from policies import make_policy
from tests.train.told_bit import BANK, COSTS, told_bit_recording
from train.rl_replays import Replays

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def told_bit(tmp_path):
    """Arguments of a replay environment of the recording whose best tree one bit tells."""
    told_bit_recording().save(tmp_path / "texts.npz")
    BANK.save(tmp_path / "bank.json")
    return {
        "recording": str(tmp_path / "texts.npz"),
        "costs": COSTS,
        "bank": str(tmp_path / "bank.json"),
    }


def run(name, *arguments):
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_custom_policy_is_short_and_stands_beside_the_best_static_tree(told_bit, monkeypatch):
    assert len((EXAMPLES / "custom_policy.py").read_text().splitlines()) <= 40
    shown = run("custom_policy.py", *(f"{key}={value}" for key, value in told_bit.items()))
    static, custom = (line.split() for line in shown.splitlines())
    assert static == ["static:tree=autoregressive", "50.00", "tokens/s"]
    assert custom[0].endswith(":Hopeful,floor=0.4")
    # By name, from the folder that it is in.
    monkeypatch.chdir(EXAMPLES.parent)
    env = gymnasium.make("EntMTP/Replay-v0", **told_bit)
    policy = make_policy("examples.custom_policy:Hopeful,floor=0.4", env)
    replays = Replays([told_bit.pop("recording")], told_bit)
    assert float(custom[1]) == pytest.approx(replays.run(policy)["tokens_per_second"], abs=0.005)


def test_ppo_in_one_file_learns_what_one_bit_tells(told_bit, tmp_path):
    recording = told_bit.pop("recording")
    arguments = {
        "--recordings": f"{recording}:calibration",
        "--held-out": f"{recording}:evaluation",
        "--costs": COSTS,
        "--bank": told_bit["bank"],
        "--out": str(tmp_path / "policy.npz"),
        "--steps": "4096",
        "--envs": "32",
        "--rollout": "16",
        "--learning-rate": "5e-3",
    }
    *_, last, bounds = run(
        "train_ppo.py", *(part for pair in arguments.items() for part in pair)
    ).splitlines()
    replays = Replays([f"{recording}:evaluation"], told_bit)
    learned = replays.run(make_policy(f"learned@{tmp_path / 'policy.npz'}", replays.env))
    assert learned["regret"] < 1.05
    assert last == f"step     4,096: held out {learned['tokens_per_second']:.2f} tokens/s"
    best = learned["tokens_per_second"] * learned["regret"]
    assert bounds == f"best static tree (static:tree=autoregressive) 50.00, oracle {best:.2f}"


def test_ppo_with_rllib_learns_what_one_bit_tells(told_bit, tmp_path, monkeypatch):
    pytest.importorskip("ray.rllib")
    # Ray leaves files at home.
    monkeypatch.setenv("HOME", str(tmp_path))
    recording = told_bit.pop("recording")
    arguments = {
        "--recordings": f"{recording}:calibration",
        "--held-out": f"{recording}:evaluation",
        "--costs": COSTS,
        "--bank": told_bit["bank"],
        "--out": str(tmp_path / "policy.npz"),
        "--steps": "4096",
        "--batch": "512",
        "--minibatch": "128",
        "--learning-rate": "5e-3",
    }
    *_, last, bounds = run(
        "train_rllib.py", *(part for pair in arguments.items() for part in pair)
    ).splitlines()
    replays = Replays([f"{recording}:evaluation"], told_bit)
    learned = replays.run(make_policy(f"learned@{tmp_path / 'policy.npz'}", replays.env))
    assert learned["regret"] < 1.05
    assert last.endswith(f": held out {learned['tokens_per_second']:.2f} tokens/s")
    best = learned["tokens_per_second"] * learned["regret"]
    assert bounds == f"best static tree (static:tree=autoregressive) 50.00, oracle {best:.2f}"


def test_code_prompts_ask_for_the_functions_of_a_package(tmp_path):
    out = tmp_path / "not there yet" / "code.jsonl"
    command = [sys.executable, str(EXAMPLES / "code_prompts.py"), str(out), "--packages", "json", "textwrap"]
    subprocess.run(command, check=True, capture_output=True)
    texts = [prompt.text for prompt in load_prompts(str(out))]
    assert len(set(texts)) == len(texts) > 5
    heads = [text.split("```python\n")[1].removesuffix("\n```") for text in texts if "```" in text]
    asked = {node.name for head in heads for node in ast.parse(head).body}
    asked |= {text.split("`")[1] for text in texts if "```" not in text}
    assert {"dumps", "loads", "dedent", "wrap"} <= asked
    assert set(dir(json)) & asked
    assert not any(name[0] == "_" for name in asked)


def test_varied_problems_are_the_same_questions_with_other_numbers(tmp_path):
    source, out = tmp_path / "problems.jsonl", tmp_path / "not there yet" / "varied.jsonl"
    problems = [
        "Ann has 14 apples and eats 3 of them. How many of the 14 are left?",
        "1 pen costs $2.50; it is 10:30 and 40 people buy 100% of 7/8 of them.",
        "Nothing to count here.",
    ]
    source.write_text("\n".join(json.dumps({"prompt": text}) for text in problems))
    command = [sys.executable, str(EXAMPLES / "vary_numbers.py"), str(source), str(out), "--copies", "3"]
    subprocess.run(command, check=True, capture_output=True)
    texts = [prompt.text for prompt in load_prompts(str(out))]
    assert len(set(texts)) == len(texts) > 3
    assert not set(texts) & set(problems)
    apples = [
        re.fullmatch(r"Ann has (\d+) apples and eats (\d+) .* of the (\d+) are left\?", t) for t in texts
    ]
    assert all(found[1] == found[3] for found in apples if found)
    people = [t for t in texts if t.startswith("1 pen costs $2.50; it is 10:30 and ")]
    assert all(re.search(r" (\d+)0 people buy 100% of 7/8 ", t) for t in people)
    assert sum(map(bool, apples)) + len(people) == len(texts)
