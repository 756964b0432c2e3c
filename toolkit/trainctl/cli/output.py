"""Printing: one JSON object, a line, a table that is readable at 80 columns and without colour."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: msgspec.Struct) -> None:
    """One JSON object, indented, on standard output."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(text.decode() + "\n")


def print_line(text: str) -> None:
    """One line on standard output, at once: somebody may be watching."""
    print(text, flush=True)


def console() -> Console:
    """A console on standard output; rich obeys NO_COLOR and COLUMNS, and a pipe gets no colour."""
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=False)


def print_table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> None:
    """
    A table. A column is its title and its side, `left` or `right`; the last one takes what room is
    left and is wrapped.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, (title, side) in enumerate(columns):
        is_last = place == len(columns) - 1
        table.add_column(
            title,
            justify="right" if side == "right" else "left",
            no_wrap=not is_last,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)


def counted(number: int, noun: str) -> str:
    """`1 failure`, `3 failures`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def utc(at_ms: int) -> str:
    """`2026-12-01 04:37:22Z`, or `-` for no time."""
    if at_ms <= 0:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at_ms / 1000))


def duration(took_ms: int) -> str:
    """`850 ms`, `12.3 s`, `4 m 05 s`, `2 h 03 m`."""
    if took_ms < 1_000:
        return f"{took_ms} ms"
    if took_ms < 60_000:
        return f"{took_ms / 1000:.1f} s"
    seconds = took_ms // 1000
    if seconds < 3_600:
        return f"{seconds // 60} m {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} m"
