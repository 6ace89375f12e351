"""What to do about a repository that is not to be had from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator

from huggingface_hub import constants

# Without a login, the hub answers alike for what is gated, private and absent.
_REFUSALS = (401, 403, 404)


def hub_remedy(repository: str, error: BaseException | None = None) -> str:
    """What to do, as the end of a sentence.

    Args:
        repository: ``owner/name``.
        error: Why it is not to be had, as the hub's client or transformers raised it.
    """
    if any(_status(cause) in _REFUSALS for cause in _causes(error)):
        return (
            f"see {constants.ENDPOINT}/{repository}: if access must be requested, do so there; if that is "
            "done, or it is private, log in with: hf auth login"
        )
    return f"fetch with: hf download {repository}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)
