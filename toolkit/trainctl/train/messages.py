"""A word from the library to whoever reads the rank's log."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line on standard error."""
    print(f"trainctl: {text}", file=sys.stderr, flush=True)
