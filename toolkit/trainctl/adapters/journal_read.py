"""
The run journal, read as far as facts go: warned about once, never lost, never raising on damage.

What counts is the order of (term, seq), never the time. The first event of a term,
`supervisor_started`, says how far its writer had read: what earlier terms hold beyond that point
was appended by a holder that had been ousted, and is void: kept, not folded, its intents looked
up (`Journal.void_intents`). A statement that is void itself voids nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from trainctl.adapters.journal_lines import Line, Warnings, decode
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model import events as ev
from trainctl.model.errors import StorageError
from trainctl.model.events import EVENT_CLASSES, JOURNAL_VERSION, AnyEvent, Unknown

INTENTS = (
    ev.GangRequested,
    ev.QuarantineIntended,
    ev.ReleaseIntended,
    ev.ReplacementIntended,
    ev.LaunchIntended,
    ev.TeardownIntended,
)
"""Events that are written before their effect: what an ousted holder may have done."""

CHUNK = 1 << 22
CLOCK_JUMP_MS = 1_000
"""A clock that goes back by less is being slewed, or is another host's."""

_NAME = re.compile(r"([0-9]{4}|[1-9][0-9]{4,})\.jsonl")
_FILES = Files()
_ALL = 1 << 63


@dataclass(frozen=True, slots=True)
class Journal:
    """
    What stands in the journal of a run.

    - `events`: what is folded, in order.
    - `unknown`: whole lines that this version cannot read, in order; counted, never acted on.
    - `void`: appended by ousted holders after the takeover, or under a number that was taken.
    - `warnings`: each once; nothing in them stops anybody.
    - `last`: (term, seq) of the last whole line, (0, 0) without one: for `supervisor_started`.
    """

    events: tuple[AnyEvent, ...] = ()
    void: tuple[Line, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    warnings: tuple[str, ...] = ()
    last: tuple[int, int] = (0, 0)

    @property
    def merged(self) -> tuple[Line, ...]:
        """Events and unknown lines together, in order."""
        return tuple(sorted((*self.events, *self.unknown), key=lambda line: (line.term, line.seq)))

    @property
    def void_intents(self) -> tuple[AnyEvent, ...]:
        """What ousted holders may have done: to be adopted, voided or cancelled."""
        return tuple(line for line in self.void if isinstance(line, INTENTS))


def read_journal(run: RunDir, files: Files = _FILES, *, through_term: int = 0) -> Journal:
    """
    Read the whole journal of a run. StorageError when a file of it cannot be read.

    A new holder passes its own term less one as `through_term`: those files are then opened by
    name, since a listing may be a minute old on NFS.
    """
    warnings = Warnings()
    numbers = _numbers(run, files, through_term)
    terms = [_read_term(run, number, files, warnings) for number in numbers]
    _check_missing(terms, warnings)
    limits = _limits(terms)
    events: list[AnyEvent] = []
    unknown: list[Unknown] = []
    void: list[Line] = []
    for term in terms:
        limit = limits[term.number]
        _check_start(term, limit, is_last=term is terms[-1], warnings=warnings)
        void += term.refused
        for line in term.lines:
            if line.seq > limit:
                void.append(line)
            elif isinstance(line, Unknown):
                unknown.append(line)
            else:
                events.append(line)
    _check_clock(events, run, warnings)
    last = next(((t.number, t.lines[-1].seq) for t in reversed(terms) if t.lines), (0, 0))
    return Journal(tuple(events), tuple(void), tuple(unknown), warnings.texts(), last)


# --- one term's file ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Term:
    number: int
    #: As a path for people.
    name: str
    #: In the order of their numbers.
    lines: list[Line] = field(default_factory=list)
    #: Another line stood first under their number, or they carry another term's.
    refused: list[Line] = field(default_factory=list)
    is_missing: bool = False

    @property
    def started(self) -> ev.SupervisorStarted | None:
        first = self.lines[0] if self.lines else None
        return first if isinstance(first, ev.SupervisorStarted) else None


def _numbers(run: RunDir, files: Files, through_term: int) -> list[int]:
    try:
        names = files.listdir(run.events)
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise cannot_read(str(run.events), error) from error
    return sorted({*terms_among(names), *range(1, through_term + 1)})


def terms_among(names: Iterable[str]) -> Iterator[int]:
    """The terms whose journal has its proper name among these."""
    for name in names:
        if match := _NAME.fullmatch(name):
            yield int(match[1])


def _read_term(run: RunDir, number: int, files: Files, warnings: Warnings) -> _Term:
    path = run.journal(number)
    term = _Term(number, f"events/{path.name}")
    lines: list[Line] = []
    try:
        for text, first_line in _whole_lines(run, number, files, warnings):
            decoded = decode(text)
            lines += decoded.lines
            for at, _ in decoded.unreadable:
                where = f"{term.name}: line {first_line + at - 1}"
                warnings.add("unreadable", number, f"{where} cannot be read and is left out")
    except FileNotFoundError:
        term.is_missing = True
    except OSError as error:
        raise cannot_read(str(path), error) from error
    _order(term, lines, warnings)
    _note_what_is_new(term, warnings)
    return term


def _whole_lines(
    run: RunDir, number: int, files: Files, warnings: Warnings
) -> Iterator[tuple[bytes, int]]:
    """Pieces of a file that end with a newline, each with the number of its first line."""
    path = run.journal(number)
    offset, rest, line = 0, b"", 1
    while chunk := files.read_from(path, offset, CHUNK):
        offset += len(chunk)
        end = chunk.rfind(b"\n") + 1
        if not end:
            rest += chunk
            continue
        text = rest + chunk[:end]
        yield text, line
        line += text.count(b"\n")
        rest = chunk[end:]
    if rest:
        torn = f"events/{path.name}: the last line is torn ({len(rest)} bytes): it was never a fact"
        warnings.add("torn", number, torn)


def _order(term: _Term, lines: list[Line], warnings: Warnings) -> None:
    """Sort by number; the usual case, 1 to n without a break, is only looked at."""
    if _is_regular(term.number, lines):
        term.lines = lines
        return
    by_seq: dict[int, Line] = {}
    for line in lines:
        if line.term != term.number or line.seq < 1:
            _refuse(term, line, warnings, "foreign", f"is stamped term {line.term} seq {line.seq}")
        elif (first := by_seq.setdefault(line.seq, line)) is line:
            continue
        elif first == line:
            warnings.add("twice", term.number, f"{term.name}: seq {line.seq} stands there twice")
        else:
            _refuse(term, line, warnings, "other", f"uses seq {line.seq} again: the first counts")
    term.lines = [by_seq[seq] for seq in sorted(by_seq)]
    expected = 1
    for seq in sorted(by_seq):
        if seq != expected:
            gap = f"{term.name}: seq {expected} to {seq - 1} are missing"
            warnings.add("gap", term.number, gap)
        expected = seq + 1


def _is_regular(term: int, lines: list[Line]) -> bool:
    numbers_are = [line.seq for line in lines] == list(range(1, len(lines) + 1))
    return numbers_are and all(line.term == term for line in lines)


def _refuse(term: _Term, line: Line, warnings: Warnings, what: str, why: str) -> None:
    term.refused.append(line)
    warnings.add(what, term.number, f"{term.name}: a {line.kind} line {why}; kept, not counted")


# --- the terms together ---------------------------------------------------------------------------


def _limits(terms: list[_Term]) -> dict[int, int]:
    """
    The last number of each term that counts.

    From the newest down: only a statement that counts itself says what was read of those before it.
    """
    limits: dict[int, int] = {}
    read_term, read_seq = _ALL, _ALL
    for term in reversed(terms):
        limit = _ALL if term.number < read_term else 0
        if term.number == read_term:
            limit = read_seq
        limits[term.number] = limit
        said = term.started
        if said is not None and said.seq <= limit and said.read_term < term.number:
            read_term, read_seq = said.read_term, said.read_seq
    return limits


def _check_missing(terms: list[_Term], warnings: Warnings) -> None:
    expected = 1
    for term in terms:
        if term.is_missing:
            continue
        if term.number > expected:
            which = f"term {expected}" + (
                f" to {term.number - 1}" if term.number - 1 > expected else ""
            )
            text = f"{which} left no file under events/: the holder wrote nothing, or it is lost"
            warnings.add("missing", expected, text)
        expected = term.number + 1


def _check_start(term: _Term, limit: int, *, is_last: bool, warnings: Warnings) -> None:
    if term.is_missing:
        return
    if not term.lines:
        if not is_last:  # else its holder may be about to write
            warnings.add("empty", term.number, f"{term.name} holds no event")
    elif term.started is None and limit and not _is_first_of_all(term):
        text = f"{term.name} does not begin with supervisor_started: nothing says what it had read"
        warnings.add("start", term.number, text)


def _is_first_of_all(term: _Term) -> bool:
    return term.number == 1 and isinstance(term.lines[0], ev.RunCreated)


def _check_clock(events: list[AnyEvent], run: RunDir, warnings: Warnings) -> None:
    before = 0
    for event in events:
        at_ms = event.at_ms
        if at_ms < before - CLOCK_JUMP_MS:
            back = f"the clock went back by {(before - at_ms) / 1000:.0f} s at seq {event.seq}"
            name = f"events/{run.journal(event.term).name}"
            text = f"{name}: {back}; order is by seq, durations by the monotonic clock"
            warnings.add("clock", event.term, text)
        before = at_ms


def _note_what_is_new(term: _Term, warnings: Warnings) -> None:
    newest = max((line.v for line in term.lines), default=0)
    if newest > JOURNAL_VERSION:
        text = f"{term.name} was written by a newer trainctl (v {newest}): what it added is ignored"
        warnings.add("newer", term.number, text)
    for line in term.lines:
        if isinstance(line, Unknown):
            known = "has a value that" if line.kind in EVENT_CLASSES else "is of a kind that"
            text = f"{term.name}: {line.kind} at seq {line.seq} {known} this version does not know"
            warnings.add("unknown", term.number, f"{text}; kept, not counted")


def cannot_read(name: str, error: OSError) -> StorageError:
    """What to raise when a file of the journal cannot be read."""
    return StorageError(f"{name}: cannot read the journal: {error.strerror or error}")
