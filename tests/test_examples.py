import ast
import json
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
