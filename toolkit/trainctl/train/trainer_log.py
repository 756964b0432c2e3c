"""
trainer.jsonl: the rare facts of an attempt, written by global rank 0 alone.

A line is one JSON object with `kind`, `attempt`, `at_ms` and `step`; `trainctl.model.agent` has the
classes that the other side decodes them with. A line that could not be written costs the training
nothing, but for the done marker, without which the run would be started again.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import SupportsFloat

from trainctl.train.messages import say

Value = str | int | float


class TrainerLog:
    """Appends lines to the trainer.jsonl at `path`."""

    def __init__(self, path: Path, attempt: int) -> None:
        self._path = path
        self._attempt = attempt
        self._torn = False

    def write(
        self, kind: str, step: int, fields: dict[str, object], *, durable: bool = True
    ) -> bool:
        """Append a line; False, and a word on standard error, where storage did not take it."""
        try:
            self._append(kind, step, durable, fields)
        except OSError as error:
            say(f"{self._path}: the line {kind!r} of step {step} was lost: {error.strerror}")
            return False
        return True

    def must_write(
        self, kind: str, step: int, fields: dict[str, object], *, patience_s: float = 60.0
    ) -> None:
        """Append a line and make it durable; try again for `patience_s`, then raise OSError."""
        end = time.monotonic() + patience_s
        while not self.write(kind, step, fields):
            if time.monotonic() >= end:
                raise OSError(f"{self._path}: the line {kind!r} could not be written")
            time.sleep(1.0)

    def _append(self, kind: str, step: int, durable: bool, fields: dict[str, object]) -> None:
        at_ms = time.time_ns() // 1_000_000
        line = {"kind": kind, "attempt": self._attempt, "at_ms": at_ms, "step": step, **fields}
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        if self._torn:  # a full disk cut the last line: it must not swallow this one
            data = b"\n" + data
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            written = os.write(fd, data)
            self._torn = written < len(data)
            if self._torn:
                raise OSError(28, "only a part of it was written")
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)


def plain(value: object) -> Value:
    """
    A result as trainer.jsonl may hold it: text, a whole number or a finite float; else its text.

    >>> plain(True), plain(2.5), plain(float("nan")), plain(None)
    (1, 2.5, 'nan', 'None')
    """
    if isinstance(value, (bool, int)):
        return int(value)
    if isinstance(value, str):
        return value
    if isinstance(value, SupportsFloat):
        try:
            detach = getattr(value, "detach", None)  # torch warns where a gradient would be lost
            number = float(detach() if callable(detach) else value)
        except (TypeError, ValueError, RuntimeError):  # an array of several numbers
            return str(value)
        return number if math.isfinite(number) else str(number)
    return str(value)
