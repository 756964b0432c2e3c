"""The journal of a run for people: its events as lines, filtered, followed, and explained."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from trainctl.adapters.journal import JournalTail, read_journal
from trainctl.base.clock import Clock
from trainctl.base.rundir import RunDir
from trainctl.model.errors import UsageError
from trainctl.model.events import EVENT_CLASSES, AnyEvent, AttemptExited, Event, Unknown
from trainctl.policy.evolve import evolve
from trainctl.policy.state import Phase, RunState
from trainctl.usecases.narrate import line_of

FOLLOW_S = 0.5
LONGEST = 160
"""Characters of an event that nobody found words for; --json has all of it."""


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """
    One line of the journal. `why` holds the sentences of a verdict; `data` is the event whole.
    """

    at_ms: int
    term: int
    seq: int
    kind: str
    text: str
    attempt: int | None = None
    why: tuple[str, ...] = ()
    known: bool = True
    data: dict[str, object] = {}


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """What `trainctl events` says: the lines that were asked for, and what the journal suffered."""

    run_dir: str
    events: tuple[EventLine, ...]
    left_out: int
    void_events: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which events are wanted; empty: all. `last` keeps only so many, 0: no limit."""

    kinds: frozenset[str] = frozenset()
    attempt: int | None = None
    last: int = 0
    why: bool = False

    def takes(self, event: Event | Unknown) -> bool:
        """Whether the event is wanted."""
        kind = event.kind
        if self.why and not isinstance(event, AttemptExited) and not self.kinds:
            return kind in ("run_finished", "run_stopped") and self.attempt is None
        if self.kinds and kind not in self.kinds:
            return False
        return self.attempt is None or self.attempt == _attempt(event)


def choose(kinds: Sequence[str], attempt: int | None, last: int, *, why: bool = False) -> Choice:
    """The choice that these options make; UsageError for a kind that nobody could have written."""
    for kind in kinds:
        if kind not in EVENT_CLASSES:
            like = difflib.get_close_matches(kind, EVENT_CLASSES, n=1)
            hint = f"; did you mean {like[0]}?" if like else ""
            raise UsageError(f"--kind {kind}: no such kind of event{hint}")
    return Choice(frozenset(kinds), attempt, last, why)


def events_of(run: RunDir, choice: Choice) -> Events:
    """The events of a run that were asked for, oldest first."""
    journal = read_journal(run)
    whole = sorted((*journal.events, *journal.unknown), key=lambda event: (event.term, event.seq))
    wanted = [event for event in whole if choice.takes(event)]
    shown = wanted[-choice.last :] if choice.last else wanted
    return Events(
        run_dir=str(run.root),
        events=tuple(event_line(event) for event in shown),
        left_out=len(wanted) - len(shown),
        void_events=len(journal.void),
        warnings=tuple(journal.warnings),
    )


def follow(
    run: RunDir, choice: Choice, clock: Clock, *, gave_up: Callable[[], bool] = lambda: False
) -> Iterator[EventLine]:
    """The events so far, then new ones as they are written, until the run has ended."""
    tail = JournalTail(run)
    state = RunState()
    while True:
        for event in tail.poll():
            state = evolve(state, event)
            if choice.takes(event):
                yield event_line(event)
        if state.phase is Phase.ENDED or gave_up():
            return
        clock.sleep(FOLLOW_S)


def event_line(event: AnyEvent | Unknown) -> EventLine:
    """One event as a line."""
    if isinstance(event, Unknown):
        return EventLine(
            at_ms=event.at_ms,
            term=event.term,
            seq=event.seq,
            kind=event.kind,
            text="a kind of event that this version does not know",
            attempt=_attempt(event),
            known=False,
            data=event.data,
        )
    return EventLine(
        at_ms=event.at_ms,
        term=event.term,
        seq=event.seq,
        kind=event.kind,
        text=line_of(event) or _fields(event),
        attempt=_attempt(event),
        why=_why(event),
        data=msgspec.to_builtins(event),
    )


def _attempt(event: Event | Unknown) -> int | None:
    number = event.data.get("attempt") if isinstance(event, Unknown) else None
    number = getattr(event, "attempt", number)
    return number if isinstance(number, int) else None


def _why(event: AnyEvent) -> tuple[str, ...]:
    if not isinstance(event, AttemptExited):
        return ()
    named = tuple(f"suspect: {one.node} ({one.confidence}): {one.reason}" for one in event.suspects)
    print_ = (f"fingerprint: {event.fingerprint}",) if event.fingerprint else ()
    return (*event.sentences, *named, *print_)


_STAMP = frozenset(Event.__struct_fields__)


def _fields(event: AnyEvent) -> str:
    """The event's own fields, for one that nobody found words for."""
    built = msgspec.to_builtins(event)
    own = {key: value for key, value in built.items() if key not in _STAMP and key != "kind"}
    text = ", ".join(f"{key} {value}" for key, value in own.items() if value not in ("", [], {}))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
