"""
Lines of a journal, decoded: what is whole and known becomes an event, what is whole and not known
is kept as `Unknown`, what is neither is handed back as it is. Damage never raises.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import msgspec

from trainctl.model.events import AnyEvent, Unknown

Line = AnyEvent | Unknown


@dataclass(slots=True)
class Decoded:
    """Some lines of one term, in the order of the file."""

    lines: list[Line] = field(default_factory=list)
    #: What is no JSON object with a kind and a number: (line number from 1 within the text, bytes).
    unreadable: list[tuple[int, bytes]] = field(default_factory=list)


def decode(text: bytes) -> Decoded:
    """Decode whole lines, each with its newline."""
    try:
        lines: list[Line] = [*_decoder().decode_lines(text)]
        return Decoded(lines)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _one_by_one(text)


def _one_by_one(text: bytes) -> Decoded:
    """At least one line is damaged, or written by a newer version: find it, keep the others."""
    decoded = Decoded()
    for number, line in enumerate(text.split(b"\n"), start=1):
        # A storage server that crashed may leave zeros where bytes were lost, before a line or
        # alone.
        stripped = line.strip(b"\0 \t\r")
        if not stripped:
            continue
        found = _decode_line(stripped)
        if found is None:
            decoded.unreadable.append((number, line))
        else:
            decoded.lines.append(found)
    return decoded


def _decode_line(line: bytes) -> Line | None:
    try:
        return _decoder().decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return _unknown(data) if isinstance(data, dict) else None


def _unknown(data: dict[str, Any]) -> Unknown | None:
    kind = data.get("kind")
    if not isinstance(kind, str) or not kind or not _number(data, "seq"):
        return None
    return Unknown(
        kind=kind,
        data=data,
        v=_number(data, "v"),
        term=_number(data, "term"),
        seq=_number(data, "seq"),
        at_ms=_number(data, "at_ms"),
    )


def _number(data: dict[str, Any], key: str) -> int:
    value = data.get(key)
    return value if type(value) is int and value > 0 else 0


@functools.cache
def _decoder() -> msgspec.json.Decoder[AnyEvent]:
    return msgspec.json.Decoder(AnyEvent)


class Warnings:
    """What to say, once a kind and term, with how often it was seen."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], str] = {}
        self._count: dict[tuple[str, int], int] = {}

    def add(self, what: str, term: int, text: str) -> None:
        """Warn of a kind of damage; of the next of its kind in this term only the number counts."""
        key = (what, term)
        self._first.setdefault(key, text)
        self._count[key] = self._count.get(key, 0) + 1

    def texts(self) -> tuple[str, ...]:
        """All warnings, in the order of their first occasion."""
        return tuple(
            text if (more := self._count[key] - 1) == 0 else f"{text} (and {more} more like it)"
            for key, text in self._first.items()
        )
