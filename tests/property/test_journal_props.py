"""What holds of every journal: writing changes nothing, damage costs what it damaged."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.every_event import EVENTS, event_of
from support.hostile_files import HostileStore
from support.journals import lay_out
from support.simulated_time import ManualClock
from trainctl.adapters.journal import JournalTail, JournalWriter, read_journal
from trainctl.base.rundir import RunDir
from trainctl.model.errors import StorageError
from trainctl.model.events import EVENT_CLASSES, AnyEvent, Event, Progressed, SupervisorStarted

settings.register_profile("journal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
SETTINGS = settings(settings.get_profile("journal"), max_examples=60)


@contextmanager
def a_run() -> Iterator[RunDir]:
    root = Path(tempfile.mkdtemp())
    try:
        yield lay_out(root)
    finally:
        shutil.rmtree(root)


def write(run: RunDir, events: list[AnyEvent], term: int = 1) -> list[AnyEvent]:
    writer = JournalWriter(run, term, ManualClock(), "boot")
    stamped = [writer.append(event) for event in events]
    writer.close()
    return stamped


@pytest.mark.parametrize("kind", EVENT_CLASSES.values(), ids=lambda kind: kind.__name__)
def test_every_event_reads_as_it_was_written(kind: type[Event]) -> None:
    @settings(SETTINGS, max_examples=15)
    @given(event_of(kind))
    def check(event: AnyEvent) -> None:
        with a_run() as run:
            (stamped,) = write(run, [event])
            journal = read_journal(run)
            assert journal.events == (stamped,)
            assert type(journal.events[0]) is kind
            blank = {"v": 0, "term": 0, "seq": 0, "at_ms": 0, "boot": "", "mono_ms": 0}
            assert msgspec.structs.replace(stamped, **blank) == event

    check()


@SETTINGS
@given(st.lists(EVENTS, min_size=1, max_size=4), st.data())
def test_a_write_torn_at_any_byte_loses_at_most_the_last_event(
    events: list[AnyEvent], data: st.DataObject
) -> None:
    with a_run() as run:
        stamped = write(run, events)
        text = run.journal(1).read_bytes()
        cut = data.draw(st.integers(text[:-1].rfind(b"\n") + 1, len(text)))
        run.journal(1).write_bytes(text[:cut])
        whole = tuple(stamped) if cut == len(text) else tuple(stamped[:-1])
        assert read_journal(run).events == whole


@SETTINGS
@given(EVENTS, EVENTS, st.data())
def test_the_append_after_a_torn_one_is_whole(
    first: AnyEvent, second: AnyEvent, data: st.DataObject
) -> None:
    with a_run() as run:
        files = HostileStore(ManualClock()).observer("a")
        writer = JournalWriter(run, 1, ManualClock(), "boot", files)
        kept = (writer.append(SupervisorStarted()), writer.append(first))
        # append, cut back | cut back, append, cut back | cut back: only the last append comes
        # through
        can_cut = data.draw(st.booleans())
        files.failing = (1 if can_cut else 6, OSError(28, "No space left on device"))
        files.torn_at = data.draw(st.integers(0, 400))
        for _ in range(1 if can_cut else 2):
            with pytest.raises(StorageError, match="No space left on device"):
                writer.append(second)
        again = writer.append(second)
        assert files.failing is None
        writer.close()
        journal = read_journal(run)
        assert journal.events[:2] == kept
        assert journal.events[-1] == again
        if can_cut:
            assert journal.events == (*kept, again)
            assert journal.warnings == ()


@SETTINGS
@given(st.lists(EVENTS, min_size=1, max_size=5), st.data())
def test_damage_anywhere_never_raises_and_spares_the_other_lines(
    events: list[AnyEvent], data: st.DataObject
) -> None:
    with a_run() as run:
        stamped = write(run, [SupervisorStarted(), *events])
        text = bytearray(run.journal(1).read_bytes())
        at = data.draw(st.integers(0, len(text) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "zero"])):
            case "flip":
                text[at] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del text[at : at + data.draw(st.integers(1, 40))]
            case "insert":
                text[at:at] = data.draw(st.binary(min_size=1, max_size=20))
            case "zero":
                text[at : at + 8] = bytes(8)
        run.journal(1).write_bytes(text)
        journal = read_journal(run)
        JournalTail(run).poll()
        lines = {bytes(line) for line in text.split(b"\n")[:-1]}
        found = (*journal.merged, *journal.void)
        for event in stamped:
            if msgspec.json.encode(event) in lines:
                assert event in found, "a line that is whole was lost"


@SETTINGS
@given(st.binary(max_size=300))
def test_any_bytes_at_all_can_be_read(text: bytes) -> None:
    with a_run() as run:
        run.journal(1).write_bytes(text)
        assert read_journal(run).events == ()
        JournalTail(run).poll()


@SETTINGS
@given(st.lists(st.integers(1, 12), max_size=12))
def test_order_is_by_number_and_a_number_counts_once(numbers: list[int]) -> None:
    with a_run() as run:
        lines = [
            msgspec.json.encode(Progressed(v=1, term=1, seq=seq, attempt=1, step=step))
            for step, seq in enumerate(numbers)
        ]
        run.journal(1).write_bytes(b"".join(line + b"\n" for line in lines))
        journal = read_journal(run)
        assert [event.seq for event in journal.events] == sorted(set(numbers))
        for event in journal.events:
            assert event.step == numbers.index(event.seq)  # type: ignore[union-attr]
        assert len(journal.events) + len(journal.void) == len(numbers)


@SETTINGS
@given(st.integers(0, 3), st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=3))
def test_void_and_folded_are_all_there_is(extra: int, said: list[tuple[int, int]]) -> None:
    """Whatever later terms say they had read, each line is folded or void, and order is kept."""
    with a_run() as run:
        terms = [[SupervisorStarted(), *[Progressed(attempt=1, step=i) for i in range(extra)]]]
        for read_term, read_seq in said:
            terms.append([SupervisorStarted(read_term=read_term, read_seq=read_seq)])
        for number, events in enumerate(terms, start=1):
            write(run, events, number)
        journal = read_journal(run)
        places = [(event.term, event.seq) for event in journal.events]
        assert places == sorted(places)
        assert len(journal.events) + len(journal.void) == sum(map(len, terms))
        assert (len(terms), 1) in places, "the newest holder's word always counts"
