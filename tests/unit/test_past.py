"""A new holder knows the whole past, or waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.hostile_files import HostileStore
from support.simulated_time import ManualClock
from trainctl.adapters.journal import JournalWriter
from trainctl.adapters.lease import LeaseInfo, try_acquire
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model import events as ev
from trainctl.model.errors import StorageError
from trainctl.usecases import past


def a_run(root: Path) -> RunDir:
    run = RunDir(root)
    for folder in (run.leases, run.events, run.requests):
        folder.mkdir(parents=True)
    return run


def write_term(run: RunDir, files: Files, clock: ManualClock, events: int) -> int:
    lease = try_acquire(run, LeaseInfo(host="a", pid=1), clock=clock, files=files)
    assert lease is not None
    journal = JournalWriter(run, lease.term, clock, "boot", files)
    journal.append(ev.SupervisorStarted())
    for _ in range(events - 1):
        journal.append(ev.LeaseReleased())
    lease.release("over", journal.seq)
    return lease.term


def read(run: RunDir, files: Files, clock: ManualClock, said: list[str]) -> past.Journal:
    lease = try_acquire(run, LeaseInfo(host="b", pid=2), clock=clock)
    assert lease is not None

    class Ticking(ManualClock):
        """Each pause also renews the lease, as its thread does."""

        def sleep(self, seconds: float) -> None:
            clock.sleep(seconds)
            lease.tick()
            lease.renew()

        def mono_ms(self) -> int:
            return clock.mono_ms()

    return past.read_past(run, lease, Ticking(), files, said.append)


def test_a_journal_that_is_hidden_from_this_host_is_waited_for(tmp_path: Path) -> None:
    clock = ManualClock()
    store = HostileStore(clock, hide_s=60)
    run = a_run(tmp_path / "run")
    write_term(run, store.observer("a"), clock, events=5)
    said: list[str] = []
    began_ms = clock.mono_ms()
    assert len(read(run, store.observer("b"), clock, said).events) == 5
    assert clock.mono_ms() - began_ms >= 59_000
    assert len(said) == 1
    assert "is there and cannot be read" in said[0]


def test_events_that_a_stale_reading_does_not_show_yet_are_waited_for(tmp_path: Path) -> None:
    clock = ManualClock()
    store = HostileStore(clock, stale_s=5)
    run = a_run(tmp_path / "run")
    mine = store.observer("b")
    lease = try_acquire(run, LeaseInfo(host="a", pid=1), clock=clock, files=Files())
    assert lease is not None
    journal = JournalWriter(run, 1, clock, "boot", Files())
    journal.append(ev.SupervisorStarted())
    mine.read(run.journal(1))  # cached for 5 s
    journal.append(ev.RunResumed(by="somebody"))
    lease.release("over", journal.seq)
    said: list[str] = []
    found = read(run, mine, clock, said)
    assert [e.kind for e in found.events] == ["supervisor_started", "run_resumed"]


def test_a_term_that_wrote_nothing_can_write_nothing_any_more(tmp_path: Path) -> None:
    clock = ManualClock()
    run = a_run(tmp_path / "run")
    dead = try_acquire(run, LeaseInfo(host="a", pid=1), clock=clock)
    assert dead is not None
    dead.release("its holder died before its first event")
    assert read(run, Files(), clock, []).events == ()
    with pytest.raises(StorageError, match="exists already"):
        JournalWriter(run, 1, clock, "boot")


def test_a_journal_that_never_comes_is_an_error_that_names_it(tmp_path: Path) -> None:
    clock = ManualClock()
    run = a_run(tmp_path / "run")
    term = write_term(run, Files(), clock, events=3)
    whole = run.journal(term).read_bytes().splitlines(keepends=True)
    run.journal(term).write_bytes(whole[0])
    with pytest.raises(StorageError, match="holds 3 events, 1 can be read"):
        read(run, Files(), clock, [])
