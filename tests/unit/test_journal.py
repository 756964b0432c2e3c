"""The journal: what is a fact, what is void, what is kept and only warned of."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from support.hostile_files import HostileStore
from support.journals import lay_out
from support.simulated_time import ManualClock
from trainctl.adapters.journal import JournalTail, JournalWriter, read_journal
from trainctl.adapters.requests import Request, read_requests, write_request
from trainctl.base.rundir import RunDir
from trainctl.model import events as ev
from trainctl.model.errors import StorageError, UsageError
from trainctl.model.events import AnyEvent, Unknown


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return lay_out(tmp_path)


def started(read_term: int = 0, read_seq: int = 0) -> ev.SupervisorStarted:
    return ev.SupervisorStarted(host="h", pid=1, read_term=read_term, read_seq=read_seq)


def steps(*numbers: int) -> list[AnyEvent]:
    return [ev.Progressed(attempt=1, step=number) for number in numbers]


def intended(attempt: int) -> ev.LaunchIntended:
    return ev.LaunchIntended(attempt=attempt, step_name=f"r-a{attempt:04d}", seats=("n1",))


def write(run: RunDir, term: int, *events: AnyEvent, clock: ManualClock | None = None) -> None:
    writer = JournalWriter(run, term, clock or ManualClock(), "boot")
    for event in events:
        writer.append(event)
    writer.close()


def places(lines: tuple[AnyEvent | Unknown, ...]) -> list[tuple[int, int]]:
    return [(line.term, line.seq) for line in lines]


def append_raw(run: RunDir, term: int, *lines: bytes) -> None:
    with run.journal(term).open("ab") as file:
        file.write(b"".join(lines))


def raw(**fields: object) -> bytes:
    return msgspec.json.encode({"v": 1, "term": 1, "at_ms": 1_796_001_000_000, **fields}) + b"\n"


# --- writing ----------------------------------------------------------------------------------


def test_an_event_is_stamped_and_on_one_line(run: RunDir) -> None:
    clock = ManualClock()
    writer = JournalWriter(run, 3, clock, "boot-id")
    first = writer.append(started())
    clock.advance(1.5)
    second = writer.append(ev.Progressed(attempt=1, step=7))
    assert (first.v, first.term, first.seq, first.boot) == (1, 3, 1, "boot-id")
    assert (second.seq, second.at_ms - first.at_ms, second.mono_ms - first.mono_ms) == (
        2,
        1500,
        1500,
    )
    lines = run.journal(3).read_bytes().splitlines()
    assert msgspec.json.decode(lines[1])["kind"] == "progressed"
    assert len(lines) == 2


def test_two_writers_of_one_term_are_impossible(run: RunDir) -> None:
    write(run, 1, started())
    with pytest.raises(StorageError, match=r"events/0001\.jsonl: exists already"):
        JournalWriter(run, 1, ManualClock(), "boot")


def test_a_full_disk_says_what_was_not_written_and_can_be_waited_for(run: RunDir) -> None:
    files = HostileStore(ManualClock()).observer("a")
    writer = JournalWriter(run, 1, ManualClock(), "boot", files)
    writer.append(started())
    files.failing, files.torn_at = (1, OSError(errno.ENOSPC, "No space left on device")), 30
    with pytest.raises(StorageError, match=r"0001\.jsonl: cannot write progressed: No space left"):
        writer.append(*steps(5))
    writer.append(*steps(6))
    journal = read_journal(run)
    assert [event.kind for event in journal.events] == ["supervisor_started", "progressed"]
    assert places(journal.events) == [(1, 1), (1, 2)]
    assert journal.warnings == ()


def test_a_torn_line_that_cannot_be_cut_off_is_closed_by_a_newline(run: RunDir) -> None:
    files = HostileStore(ManualClock()).observer("a")
    writer = JournalWriter(run, 1, ManualClock(), "boot", files)
    writer.append(started())
    files.failing, files.torn_at = (3, OSError(errno.EIO, "Input/output error")), 30
    with pytest.raises(StorageError):
        writer.append(*steps(5))
    kept = writer.append(*steps(6))
    journal = read_journal(run)
    assert journal.events[1:] == (kept,)
    assert "line 2 cannot be read" in journal.warnings[0]


# --- damage -----------------------------------------------------------------------------------


def test_a_torn_tail_was_never_a_fact(run: RunDir) -> None:
    write(run, 1, started(), *steps(1, 2))
    text = run.journal(1).read_bytes()
    run.journal(1).write_bytes(text[:-1])
    journal = read_journal(run)
    assert places(journal.events) == [(1, 1), (1, 2)]
    assert journal.last == (1, 2)
    (warning,) = journal.warnings
    assert warning.startswith("events/0001.jsonl: the last line is torn (")


def test_a_damaged_line_in_the_middle_costs_itself_alone(run: RunDir) -> None:
    write(run, 1, started(), *steps(1, 2, 3))
    lines = run.journal(1).read_bytes().split(b"\n")
    lines[2] = b"\xff\x00" + lines[2][5:]
    run.journal(1).write_bytes(b"\n".join(lines))
    journal = read_journal(run)
    assert places(journal.events) == [(1, 1), (1, 2), (1, 4)]
    assert journal.warnings == (
        "events/0001.jsonl: line 3 cannot be read and is left out",
        "events/0001.jsonl: seq 3 to 3 are missing",
    )


def test_zeros_that_a_crashed_server_left_cost_no_line(run: RunDir) -> None:
    write(run, 1, started(), *steps(1))
    text = run.journal(1).read_bytes()
    first, second = text.splitlines(keepends=True)
    run.journal(1).write_bytes(first + bytes(512) + second + bytes(100))
    assert places(read_journal(run).events) == [(1, 1), (1, 2)]


def test_many_warnings_of_one_kind_are_one(run: RunDir) -> None:
    write(run, 1, started())
    append_raw(run, 1, b"x\n" * 500)
    (warning,) = read_journal(run).warnings
    assert "(and 499 more like it)" in warning


def test_a_number_that_stands_there_twice_counts_once(run: RunDir) -> None:
    write(run, 1, started(), *steps(1))
    append_raw(run, 1, run.journal(1).read_bytes().splitlines(keepends=True)[1])
    journal = read_journal(run)
    assert places(journal.events) == [(1, 1), (1, 2)]
    assert journal.void == ()
    assert journal.warnings == ("events/0001.jsonl: seq 2 stands there twice",)


def test_of_two_lines_under_one_number_the_first_counts_and_the_other_is_kept(run: RunDir) -> None:
    write(run, 1, started(), *steps(1))
    append_raw(run, 1, msgspec.json.encode(ev.Progressed(v=1, term=1, seq=2, attempt=1, step=9)))
    append_raw(run, 1, b"\n")
    journal = read_journal(run)
    assert [event.step for event in journal.events[1:]] == [1]  # type: ignore[union-attr]
    assert [line.step for line in journal.void] == [9]  # type: ignore[union-attr]
    assert "uses seq 2 again: the first counts" in journal.warnings[0]


def test_a_clock_that_jumped_back_changes_no_order_and_is_said_once(run: RunDir) -> None:
    clock = ManualClock()
    writer = JournalWriter(run, 1, clock, "boot")
    writer.append(started())
    clock.utc_offset_ms -= 90_000
    for event in steps(1, 2):
        writer.append(event)
    journal = read_journal(run)
    assert places(journal.events) == [(1, 1), (1, 2), (1, 3)]
    (warning,) = journal.warnings
    assert "the clock went back by 90 s at seq 2" in warning


def test_another_hosts_clock_behind_ours_changes_no_order(run: RunDir) -> None:
    write(run, 1, started(), *steps(1))
    behind = ManualClock()
    behind.utc_offset_ms -= 3_600_000
    write(run, 2, started(1, 2), *steps(2), clock=behind)
    assert places(read_journal(run).events) == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_journal_that_cannot_be_read_is_an_error_with_its_path(run: RunDir) -> None:
    write(run, 1, started())
    run.journal(2).mkdir()
    with pytest.raises(StorageError, match=r"events/0002\.jsonl: cannot read the journal"):
        read_journal(run)


def test_a_hole_between_terms_is_said_and_costs_nothing(run: RunDir) -> None:
    write(run, 1, started())
    write(run, 4, started(1, 1))
    journal = read_journal(run)
    assert places(journal.events) == [(1, 1), (4, 1)]
    assert journal.warnings == (
        "term 2 to 3 left no file under events/: the holder wrote nothing, or it is lost",
    )


def test_a_stray_file_with_a_huge_number_takes_no_time(run: RunDir) -> None:
    write(run, 1, started())
    run.journal(10**12).write_bytes(b"")
    (run.events / "0001.jsonl.bak").write_bytes(b"x")
    assert places(read_journal(run).events) == [(1, 1)]


def test_a_term_that_does_not_say_what_it_had_read_is_folded_and_said(run: RunDir) -> None:
    write(run, 1, started())
    write(run, 2, *steps(1))
    journal = read_journal(run)
    assert places(journal.events) == [(1, 1), (2, 1)]
    assert "events/0002.jsonl does not begin with supervisor_started" in journal.warnings[0]


# --- what we do not know ----------------------------------------------------------------------


def test_an_unknown_kind_is_kept_in_its_place(run: RunDir) -> None:
    write(run, 1, started())
    append_raw(run, 1, raw(seq=2, kind="moon_rose", phase="full"))
    append_raw(run, 1, raw(seq=3, kind="progressed", attempt=1, step=4))
    journal = read_journal(run)
    assert [event.kind for event in journal.events] == ["supervisor_started", "progressed"]
    (unknown,) = journal.unknown
    assert (unknown.kind, unknown.seq, unknown.data["phase"]) == ("moon_rose", 2, "full")
    assert [line.kind for line in journal.merged][1] == "moon_rose"
    assert journal.last == (1, 3)
    assert "moon_rose at seq 2 is of a kind that this version does not know" in journal.warnings[0]


def test_an_unknown_value_of_a_known_kind_loses_no_line(run: RunDir) -> None:
    write(run, 1, started())
    append_raw(
        run, 1, raw(seq=2, kind="attempt_exited", attempt=1, outcome="eclipse", domain="sky")
    )
    journal = read_journal(run)
    (unknown,) = journal.unknown
    assert unknown.data["outcome"] == "eclipse"
    assert "attempt_exited at seq 2 has a value that this version" in journal.warnings[0]


def test_fields_that_a_newer_version_added_are_ignored_and_its_number_is_said(run: RunDir) -> None:
    write(run, 1, started())
    append_raw(run, 1, raw(v=2, seq=2, kind="progressed", attempt=1, step=4, tide="high"))
    journal = read_journal(run)
    assert journal.events[1].step == 4  # type: ignore[union-attr]
    assert journal.warnings == (
        "events/0001.jsonl was written by a newer trainctl (v 2): what it added is ignored",
    )


# --- ousted holders ---------------------------------------------------------------------------


def test_what_an_ousted_holder_appended_after_the_takeover_is_void(run: RunDir) -> None:
    write(run, 1, started(), intended(1), intended(2))
    write(run, 2, started(1, 2), *steps(5))
    journal = read_journal(run)
    assert places(journal.events) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert places(journal.void) == [(1, 3)]
    (intent,) = journal.void_intents
    assert isinstance(intent, ev.LaunchIntended)
    assert intent.attempt == 2
    assert journal.last == (2, 2)


def test_a_term_of_which_its_successor_had_read_nothing_is_void(run: RunDir) -> None:
    write(run, 1, started(), *steps(1))
    write(run, 2, started(1, 2), intended(3))
    write(run, 3, started(1, 2))
    journal = read_journal(run)
    assert places(journal.events) == [(1, 1), (1, 2), (3, 1)]
    assert places(journal.void) == [(2, 1), (2, 2)]


def test_a_statement_that_is_void_itself_voids_nothing(run: RunDir) -> None:
    write(run, 1, started(), *steps(1, 2, 3))
    write(run, 2, started(1, 2))  # had read less of term 1, and was overtaken
    write(run, 3, started(1, 4))
    journal = read_journal(run)
    assert places(journal.events) == [(1, 1), (1, 2), (1, 3), (1, 4), (3, 1)]
    assert places(journal.void) == [(2, 1)]


def test_what_a_holder_folded_is_what_is_folded_ever_after(run: RunDir) -> None:
    write(run, 1, started(), *steps(1, 2))
    seen = read_journal(run)
    write(run, 2, started(*seen.last))
    append_raw(run, 1, raw(seq=4, kind="progressed", attempt=1, step=9))
    later = read_journal(run)
    assert later.events[:-1] == seen.events
    assert places(later.void) == [(1, 4)]


def test_a_new_holder_reads_terms_that_a_stale_listing_hides(run: RunDir) -> None:
    files = HostileStore(ManualClock(), hide_s=60).observer("b")
    write(run, 1, started())
    assert places(read_journal(run, files).events) == [(1, 1)]
    write(run, 2, started(1, 1))
    assert places(read_journal(run, files).events) == [(1, 1)]
    assert places(read_journal(run, files, through_term=2).events) == [(1, 1), (2, 1)]


# --- following --------------------------------------------------------------------------------


def test_a_tail_gives_each_event_once_and_waits_for_whole_lines(run: RunDir) -> None:
    tail = JournalTail(run)
    assert tail.poll() == []
    writer = JournalWriter(run, 1, ManualClock(), "boot")
    first = writer.append(started())
    assert tail.poll() == [first]
    assert tail.poll() == []
    line = raw(seq=2, kind="progressed", attempt=1, step=4)
    append_raw(run, 1, line[:20])
    assert tail.poll() == []
    append_raw(run, 1, line[20:])
    assert [event.seq for event in tail.poll()] == [2]
    write(run, 2, started(1, 2))
    assert places(tuple(tail.poll())) == [(2, 1)]


def test_a_tail_leaves_out_what_an_ousted_holder_goes_on_writing(run: RunDir) -> None:
    write(run, 1, started())
    write(run, 2, started(1, 1))
    watch, holder = JournalTail(run), JournalTail(run, after=(1, 1), void=True)
    watch.poll()
    holder.poll()
    append_raw(run, 1, msgspec.json.encode(msgspec.structs.replace(intended(9), term=1, seq=2)))
    append_raw(run, 1, b"\n")
    assert watch.poll() == []
    (intent,) = holder.poll()
    assert isinstance(intent, ev.LaunchIntended)


# --- requests ---------------------------------------------------------------------------------


def test_a_request_is_read_as_it_was_asked(run: RunDir) -> None:
    late = Request(name="stop-2", by="me", at_ms=2, now=True, attempt=3)
    path = write_request(run, late)
    early = Request(name="stop-9", by="you", at_ms=1)
    write_request(run, early)
    assert path == run.requests / "stop-2.json"
    assert read_requests(run) == (early, late)


def test_a_request_that_cannot_be_read_is_told_and_the_others_count(run: RunDir) -> None:
    write_request(run, Request(name="good", at_ms=1))
    (run.requests / "bad.json").write_bytes(b'{"kind": ')
    (run.requests / "folder.json").mkdir()
    (run.requests / ".half.json.1234.tmp").write_bytes(b"{")
    told: list[str] = []
    found = read_requests(run, unreadable=lambda path, why: told.append(path.name))
    assert [request.name for request in found] == ["good"]
    assert told == ["bad.json", "folder.json"]


def test_the_files_name_is_the_requests_name(run: RunDir) -> None:
    (run.requests / "mine.json").write_bytes(b'{"name": "yours", "by": "x"}')
    assert read_requests(run)[0].name == "mine"
    with pytest.raises(UsageError, match=r"cannot be named '\.\./x'"):
        write_request(run, Request(name="../x"))
