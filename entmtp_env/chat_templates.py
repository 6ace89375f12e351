"""Chat templates: of models that were released without one, and the same ones on every day."""

from __future__ import annotations

import re

# A space behind <s> gives the first word the token that it has at the start of a text.
VICUNA = (
    "{{ bos_token }} A chat between a curious user and an artificial intelligence assistant. The assistant "
    "gives helpful, detailed, and polite answers to the user's questions. "
    "{% for message in messages %}"
    "{% if message.role == 'user' %}USER: {{ message.content }} "
    "{% else %}ASSISTANT: {{ message.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
"""Vicuna from version 1.1 on, as its authors' FastChat writes it."""

LLAMA_2 = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}{{ bos_token }} [INST] {{ message.content | trim }} [/INST]"
    "{% else %} {{ message.content | trim }} {{ eos_token }}{% endif %}"
    "{% endfor %}"
)
"""Llama 2 Chat, without a system prompt, as Meta's reference code writes it."""

_TEMPLATES = {r"vicuna": VICUNA, r"llama-?2.*chat": LLAMA_2}


_DATE = {
    **{"-d": "26", "-m": "7", "-H": "0", "-I": "12", "-M": "0", "-S": "0", "e": "26", "F": "2024-07-26"},
    **{"a": "Fri", "A": "Friday", "b": "Jul", "B": "July", "d": "26", "m": "07", "y": "24", "Y": "2024"},
    **{"H": "00", "I": "12", "M": "00", "S": "00", "p": "AM", "j": "208", "D": "07/26/24", "T": "00:00:00"},
    **{"Z": "UTC", "z": "+0000"},
}
"""What Llama 3 writes where it knows no date, 26 July 2024, by the directives of ``strftime``."""

# The new line behind it is cut off, as transformers has Jinja do behind every block.
_SAME_DATE = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join(f" | replace('%{directive}', '{written}')" for directive, written in _DATE.items())
    + " }}{% endmacro %}\n"
)


def dated_alike(template: str) -> str:
    """The template with one date for all days, where it would write today's: prompts stay what they were.

    transformers gives templates the clock as ``strftime_now``; what a template defines itself comes first.

    Args:
        template: A chat template (Jinja).
    """
    return _SAME_DATE + template


def known_chat_template(name: str) -> str | None:
    """The template (Jinja) of a model, by the last part of its path or repository; ``None``: unknown."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1].lower()
    return next((template for pattern, template in _TEMPLATES.items() if re.search(pattern, last)), None)
