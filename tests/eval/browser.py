"""A headless browser, for tests of pages; skipped where there is none."""

import shutil
import subprocess

import pytest

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)

needs_browser = pytest.mark.skipif(_BROWSER is None, reason=f"none of {', '.join(_NAMES)} is installed")


def run_page(path, *options):
    """Load a page, run its scripts, and return its document; messages of the console are errors."""
    command = [_BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", *options]
    done = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    messages = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert not messages, messages
    return done.stdout


def print_page(path, out):
    """Print a page to a PDF file."""
    command = [
        _BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--print-to-pdf={out}",
        path.as_uri(),
    ]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
