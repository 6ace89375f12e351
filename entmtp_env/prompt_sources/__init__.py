"""Where the prompt sets that do not come with this package are read from."""

from entmtp_env.prompt_sources.human_eval import human_eval_texts
from entmtp_env.prompt_sources.rows import SUFFIXES, json_line_rows
from entmtp_env.prompt_sources.tasks import TASKS, task_texts
from entmtp_env.prompt_sources.unavailable import PromptsUnavailableError

__all__ = ["SUFFIXES", "TASKS", "PromptsUnavailableError", "human_eval_texts", "json_line_rows", "task_texts"]
