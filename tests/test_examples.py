import ast
import json
import re
import subprocess
import sys
from pathlib import Path

from entmtp_env.prompts import load_prompts

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_code_prompts_ask_for_the_functions_of_a_package(tmp_path):
    out = tmp_path / "code.jsonl"
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
    source, out = tmp_path / "problems.jsonl", tmp_path / "varied.jsonl"
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
