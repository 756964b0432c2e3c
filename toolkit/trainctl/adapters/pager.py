"""
Telling whoever is on call: a command that is given the message, or standard error.

A page that fails stops nothing: the adapter raises `PagerError`, and the supervisor journals it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from trainctl.base.proc import run
from trainctl.model.errors import TrainctlError

SHOWN = 200
"""Characters kept of what a pager command said when it failed."""


class PagerError(TrainctlError):
    """The page was not delivered, as far as we know."""


class Pager(Protocol):
    """Whoever is on call."""

    def page(self, message: str) -> None:
        """Deliver the message, its first line being a summary; bounded; raises PagerError."""


@dataclass(frozen=True, slots=True)
class CommandPager:
    """A program of the site's that reads the message from its standard input and exits with 0."""

    argv: Sequence[str]
    timeout_s: float = 20.0

    def page(self, message: str) -> None:
        """See `Pager`."""
        done = run(tuple(self.argv), self.timeout_s, input=f"{message.rstrip()}\n")
        program = self.argv[0]
        if done.timed_out:
            raise PagerError(f"{program}: no end within {self.timeout_s:g} s; it was killed")
        if done.code:
            said = " ".join((done.err.strip() or done.out.strip() or "no message").split())
            raise PagerError(f"{program}: exit code {done.code}: {said[:SHOWN]}")


@dataclass(frozen=True, slots=True)
class StderrPager:
    """Standard error, or another stream: for a terminal, and where no command is configured."""

    stream: TextIO | None = None

    def page(self, message: str) -> None:
        """See `Pager`."""
        stream = self.stream or sys.stderr
        try:
            print(f"trainctl: PAGE: {message.rstrip()}", file=stream, flush=True)
        except (OSError, ValueError) as error:
            raise PagerError(f"standard error: {error}") from error
