"""Classes and functions of the user's own, by import path."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any


class NoSuchModuleError(ValueError):
    """A path does not begin with a module that can be imported from here."""


def import_object(path: str) -> Any:
    """Import what a path names.

    Args:
        path: ``package.module:name``; modules in the current directory are found.

    Raises:
        NoSuchModuleError: When there is no such module.
        ValueError: When the module has no such name; the message lists its classes and functions.
    """
    module_name, _, attribute = path.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise NoSuchModuleError(f"{path!r} is no import path; write package.module:name")
    with _current_directory_importable():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # A module that exists but lacks one of its own imports is the author's to see as it is.
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise NoSuchModuleError(
                f"no module {module_name!r} can be imported from here; check the name, or go to its folder"
            ) from error
    if not hasattr(module, attribute):
        names = [key for key, own in vars(module).items() if inspect.isclass(own) or inspect.isfunction(own)]
        raise ValueError(
            f"module {module_name!r} has no {attribute!r}; its classes and functions are: "
            f"{', '.join(names) or 'none'}"
        )
    return getattr(module, attribute)


@contextlib.contextmanager
def _current_directory_importable() -> Iterator[None]:
    here = os.getcwd()
    if "" in sys.path or here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
