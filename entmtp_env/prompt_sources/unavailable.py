"""The error of a known prompt set that is not on this machine."""

from __future__ import annotations


class PromptsUnavailableError(FileNotFoundError):
    """A known prompt set is neither installed nor to be fetched; the message says how to get it."""
