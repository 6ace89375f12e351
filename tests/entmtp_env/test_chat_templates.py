from datetime import datetime

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from entmtp_env.chat_templates import LLAMA_2, VICUNA, dated_alike, known_chat_template

SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user's questions."
)
TURNS = [("user", "Hi there "), ("assistant", "Hello."), ("user", "Why\n\nnow?")]


@pytest.fixture(scope="module")
def tokenizer():
    words = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def rendered(tokenizer, template, turns):
    tokenizer.chat_template = template
    messages = [{"role": role, "content": content} for role, content in turns]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


def fast_chat(turns):
    """Its separator style of two: a space behind the system and the user, </s> behind the assistant."""
    text, roles, ends = SYSTEM + " ", {"user": "USER", "assistant": "ASSISTANT"}, {"user": " "}
    for role, content in turns:
        text += f"{roles[role]}: {content}{ends.get(role, '</s>')}"
    return text + "ASSISTANT:"


def meta(turns):
    """Meta's reference: each question with its answer between <s> and </s>, but for the last."""
    text = ""
    for role, content in turns:
        text += f"<s> [INST] {content.strip()} [/INST]" if role == "user" else f" {content.strip()} </s>"
    return text


@pytest.mark.parametrize("count", [1, 3])
def test_vicuna_is_as_its_authors_write_it(tokenizer, count):
    assert rendered(tokenizer, VICUNA, TURNS[:count]) == "<s> " + fast_chat(TURNS[:count])


@pytest.mark.parametrize("count", [1, 3])
def test_llama_2_is_as_its_authors_write_it(tokenizer, count):
    assert rendered(tokenizer, LLAMA_2, TURNS[:count]) == meta(TURNS[:count])


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("lmsys/vicuna-7b-v1.3", VICUNA),
        ("/models/Vicuna-33B/", VICUNA),
        (r"C:\models\vicuna-13b", VICUNA),
        ("meta-llama/Llama-2-7b-chat-hf", LLAMA_2),
        ("./llama2-13b-chat", LLAMA_2),
        ("meta-llama/Llama-2-7b-hf", None),
        ("/data/vicuna/mistral-7b", None),
        ("smollm2", None),
    ],
)
def test_names_tell_the_template(name, template):
    assert known_chat_template(name) == template


# As Llama 3.2 has it.
LLAMA_3_DATE = """
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
"""


def test_the_date_is_the_same_on_every_day(tokenizer):
    assert "26 Jul 2024" not in rendered(tokenizer, LLAMA_3_DATE, TURNS)
    assert rendered(tokenizer, dated_alike(LLAMA_3_DATE), TURNS) == "Today Date: 26 Jul 2024\n\n"


@pytest.mark.parametrize(
    "form",
    [
        "%Y-%m-%d",
        "%-d %B %Y",
        "%A, %b %d %y",
        "%H:%M:%S",
        "%I %p %j %a",
        "%e %-m %F %D %T",
        "%-H %-I",
        "today",
    ],
)
def test_dates_are_written_as_the_template_wants_them(tokenizer, form):
    template = dated_alike("{% set today = strftime_now('" + form + "') %}<{{ today }}>")
    assert rendered(tokenizer, template, TURNS) == f"<{datetime(2024, 7, 26).strftime(form)}>"


@pytest.mark.parametrize(
    "template",
    [
        VICUNA,
        "\n\n x",
        "  y",
        "  {% if true %}\n  z\n{% endif %}\n",
        "{%- set a = 1 %}\n\n  {{ a }}",
        "\n{{- 2 }}",
    ],
)
def test_templates_without_a_date_stay_what_they_were(tokenizer, template):
    assert rendered(tokenizer, dated_alike(template), TURNS) == rendered(tokenizer, template, TURNS)
