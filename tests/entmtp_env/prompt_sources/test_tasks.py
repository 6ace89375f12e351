import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.prompt_sources.tasks import TASKS, task_texts
from entmtp_env.prompts import load_prompts
from eval.interleave import draw_prompts

FIXTURES = Path(__file__).parent / "fixtures"
FILES = {name: str(next(FIXTURES.glob(f"{name}.*"))) for name in TASKS}


def by_id(name):
    return dict(task_texts(name, FILES[name]))


def test_gsm8k_is_the_questions_without_the_one_that_only_white_space_tells_apart():
    rows = [json.loads(line) for line in Path(FILES["gsm8k"]).read_text("utf-8").splitlines()]
    assert by_id("gsm8k") == {f"gsm8k-{i}": rows[i - 1]["question"] for i in (1, 2, 4, 5)}


def test_arc_lists_the_choices_and_tells_questions_apart_by_them():
    prompts = by_id("arc")
    assert prompts.keys() == {"arc-1", "arc-2", "arc-3"}
    assert prompts["arc-2"] == (
        "What carries pollen from flower to flower?\n1. worms\n2. bees\n3. snails\n\n"
        "Answer the question and explain why."
    )


def test_litbench_asks_for_each_story_once():
    prompts = by_id("litbench")
    assert prompts.keys() == {"litbench-1", "litbench-3"}
    instruction, text = prompts["litbench-3"].split("\n\n")
    assert instruction.startswith("Write a story")
    assert text == "[WP] Every clock in town stops but one."


def test_sharegpt_is_the_first_turns_of_those_that_the_user_began():
    assert by_id("sharegpt") == {
        "sharegpt-1": 'Write a limerick about a "quiet" printer.\n',
        "sharegpt-6": "What does ∂f/∂x mean? {[}]",
        "sharegpt-8": "Name three rivers.",
    }


@pytest.mark.parametrize(
    ("own_id", "kept"), [("17", True), ("17_0", True), ("a_b", True), ("17_3", False), ("a_b_12", False)]
)
def test_a_later_part_of_a_conversation_has_a_number_behind_an_underscore(tmp_path, own_id, kept):
    row = {"id": own_id, "conversations": [{"from": "human", "value": "Why?"}]}
    (tmp_path / "s.json").write_text(json.dumps([row]))
    assert task_texts("sharegpt", str(tmp_path / "s.json")) == [("sharegpt-1", "Why?")] * kept


WORDS = st.lists(st.sampled_from(["Why", "why", "is", "the", "sky", "blue?"]), min_size=1, max_size=3)
SPACES = st.sampled_from([" ", "  ", "\n", "\u00a0"])
QUESTIONS = st.lists(st.builds(lambda words, space: space.join(words), WORDS, SPACES), min_size=2)


@settings(max_examples=25)
@given(QUESTIONS, st.randoms(use_true_random=False))
def test_the_splits_share_no_text_and_do_not_depend_on_the_order_of_the_rows(questions, shuffle):
    def plain(text):
        return text.lower().split()

    with TemporaryDirectory() as folder:
        file, halves = Path(folder) / "q.json", []
        for rows in (questions, shuffle.sample(questions, len(questions))):
            file.write_text(json.dumps([{"question": q, "answer": ""} for q in rows]))
            texts = [plain(text) for _, text in task_texts("gsm8k", str(file))]
            middle = (len(texts) + 1) // 2
            halves.append((texts[:middle], texts[middle:]))
            assert sorted(texts) == sorted({tuple(plain(q)): plain(q) for q in questions}.values())
            specs = (f"gsm8k@{file}:calibration", f"gsm8k@{file}:evaluation")
            for spec, half in zip(specs, halves[-1], strict=True):
                assert not half or [plain(p.text) for p in load_prompts(spec)] == half
    assert halves[0] == halves[1]


def test_a_hundred_prompts_by_seed_are_the_same_ones_each_time_and_of_one_split(tmp_path):
    file = tmp_path / "many.jsonl"
    rows = [{"question": f"What is {i} + {i}?", "answer": f"#### {2 * i}"} for i in range(500)]
    drawn = {}
    for seed in (123, 4):
        random.Random(seed).shuffle(rows)
        file.write_text("\n".join(map(json.dumps, rows)))
        for split in ("calibration", "evaluation"):
            prompts = load_prompts(f"gsm8k@{file}:{split}")
            texts = {prompt.prompt_id: prompt.text for prompt in prompts}
            for draw in (123, 124):
                drawn[seed, split, draw] = [texts[i] for i in draw_prompts(prompts, 100, draw)]
    assert all(len(set(texts)) == 100 for texts in drawn.values())
    assert drawn[123, "evaluation", 123] == drawn[4, "evaluation", 123]
    assert drawn[123, "evaluation", 123] != drawn[123, "evaluation", 124]
    assert not set(drawn[123, "evaluation", 123]) & set(drawn[123, "calibration", 123])


def test_half_an_emoji_is_no_reason_to_refuse_a_data_set(tmp_path):
    file = tmp_path / "cut.json"
    file.write_text(
        r'[{"question": "Why \ud83d", "answer": ""}, {"question": "How \ud83d\ude00", "answer": ""}]'
    )
    assert dict(task_texts("gsm8k", str(file))) == {"gsm8k-1": "Why ?", "gsm8k-2": "How 😀"}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("row", [{"prompt_text": "?"}, dict.fromkeys(("question", "prompt", "choices"), 3)])
def test_a_row_of_another_schema_is_named_with_what_was_expected(name, row, tmp_path):
    file = tmp_path / "other.jsonl"
    file.write_text(json.dumps(row))
    with pytest.raises(ValueError, match=rf"row 1 is no row of {name}: expected ") as error:
        task_texts(name, str(file))
    assert TASKS[name].schema in str(error.value)
    assert ", ".join(row) in str(error.value)
