"""The lease: who may act, when, and that it is never two; storage and clocks as bad as they get."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.hostile_files import HostileFiles, HostileStore
from support.simulated_time import ManualClock, SimulatedTime
from trainctl.adapters.lease import (
    Lease,
    LeaseInfo,
    Standby,
    read_lease,
    try_acquire,
)
from trainctl.base.cells import CellWriter, create_cell, encode_cell
from trainctl.base.rundir import RunDir
from trainctl.base.terms import LeaseWatch, is_ousted, mark_of
from trainctl.model.errors import LeaseLost, StorageError

ME = LeaseInfo(host="a", pid=1)
OTHER = LeaseInfo(host="b", pid=2)


class Bench:
    """One run, one clock moved by hand, and as many observers as a test wants."""

    def __init__(self, root: Path, **hostile: float) -> None:
        self.run = RunDir(root)
        self.clock = ManualClock()
        self.store = HostileStore(self.clock, **hostile)  # type: ignore[arg-type]

    def acquire(self, info: LeaseInfo = ME, files: HostileFiles | None = None) -> Lease | None:
        files = files or self.store.observer(info.host)
        return try_acquire(self.run, info, clock=self.clock, files=files)

    def own(self, files: HostileFiles | None = None) -> Lease:
        lease = self.acquire(files=files)
        assert lease is not None
        return lease

    def standby(self, files: HostileFiles | None = None) -> Standby:
        files = files or self.store.observer("b")
        return Standby(self.run, OTHER, clock=self.clock, files=files)

    def wait(self, standby: Standby, seconds: float, lease: Lease | None = None) -> Lease | None:
        """Poll twice a second for so long; `lease` is renewed every 2 s meanwhile."""
        for half in range(int(seconds * 2)):
            if lease is not None and half % 4 == 0:
                lease.tick()
                lease.renew()
            if (won := standby.poll()) is not None:
                return won
            self.clock.advance(0.5)
        return None

    def is_ousted(self, term: int) -> bool:
        return is_ousted(self.run, term, self.store.observer("fresh"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# --- taking and giving up --------------------------------------------------------------------


def test_a_run_without_a_term_is_free_at_once(bench: Bench) -> None:
    lease = bench.own()
    assert (lease.term, lease.ousted_term) == (1, 0)
    lease.check()


def test_a_held_run_is_not_to_be_had(bench: Bench) -> None:
    bench.own()
    assert bench.acquire(OTHER) is None


def test_a_released_lease_need_not_be_waited_for(bench: Bench) -> None:
    assert bench.own().release("submitted")
    lease = bench.own()
    assert (lease.term, lease.ousted_term) == (2, 0)
    assert bench.is_ousted(1)


def test_a_standby_takes_a_released_lease_at_its_next_look(bench: Bench) -> None:
    first = bench.own()
    standby = bench.standby()
    assert standby.poll() is None
    first.release("done")
    lease = standby.poll()
    assert lease is not None
    assert (lease.term, lease.ousted_term) == (2, 0)


def test_a_released_lease_allows_nothing_more(bench: Bench) -> None:
    lease = bench.own()
    lease.release("upgrade")
    assert not lease.is_held
    with pytest.raises(LeaseLost, match=r"released \(upgrade\)"):
        lease.check()
    assert not lease.renew()


def test_a_dead_holder_is_replaced_after_12_s_and_within_15(bench: Bench) -> None:
    bench.own()
    standby = bench.standby()
    assert bench.wait(standby, 11.5) is None
    lease = bench.wait(standby, 3)
    assert lease is not None
    assert (lease.term, lease.ousted_term) == (2, 1)
    assert bench.is_ousted(1)


def test_a_holder_that_renews_is_never_replaced(bench: Bench) -> None:
    lease = bench.own()
    assert bench.wait(bench.standby(), 3600, lease) is None
    lease.check()


def test_status_says_who_holds_the_run(bench: Bench) -> None:
    assert read_lease(bench.run) is None
    lease = bench.own()
    lease.renew()
    view = read_lease(bench.run)
    assert view is not None
    assert (view.term, view.info, view.seq, view.released) == (1, ME, 2, False)
    lease.release("done")
    view = read_lease(bench.run)
    assert view is not None
    assert (view.released, view.info.reason) == (True, "done")


def test_terms_above_9999_are_counted_as_numbers(bench: Bench) -> None:
    bench.run.leases.mkdir()
    for term in (9_999, 10_000):
        create_cell(bench.run.lease(term))
        create_cell(bench.run.ousted(term))
    view = read_lease(bench.run)
    assert view is not None
    assert view.term == 10_000


# --- the holder loses it ---------------------------------------------------------------------


def test_a_holder_that_was_stopped_finds_out_by_its_own_clock_before_it_acts(bench: Bench) -> None:
    lease = bench.own()
    bench.clock.advance(60)
    with pytest.raises(LeaseLost, match=r"term 1 is lost: it was not renewed for 60\.0 s"):
        lease.check()


def test_a_lease_that_was_lost_stays_lost(bench: Bench) -> None:
    lease = bench.own()
    bench.clock.advance(6.1)
    with pytest.raises(LeaseLost):
        lease.check()
    assert not lease.renew(), "a renewal after the fact must not revive it"
    with pytest.raises(LeaseLost):
        lease.check()


def test_the_renewing_thread_of_a_continued_holder_writes_nothing(bench: Bench) -> None:
    lease = bench.own()
    bench.clock.advance(60)
    before = bench.run.lease(1).read_bytes()
    assert not lease.renew()
    assert bench.run.lease(1).read_bytes() == before


def test_a_renewal_that_came_through_too_late_does_not_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    files = bench.store.observer("a")
    lease = bench.own(files)
    bench.clock.advance(2)
    files.freeze(30)
    assert not lease.renew(), "it was on disk 30 s after it had begun"
    assert not lease.is_held


def test_a_renewal_counts_from_its_beginning(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    files = bench.store.observer("a")
    lease = bench.own(files)
    bench.clock.advance(1)
    files.freeze(4)
    assert lease.renew()
    bench.clock.advance(1.9)
    lease.check()
    bench.clock.advance(0.2)
    with pytest.raises(LeaseLost):
        lease.check()


def test_a_holder_whose_thread_is_stuck_in_storage_is_not_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    stuck = threading.Event()

    class Stuck(HostileFiles):
        def write_in_place(self, fd: int, data: bytes) -> None:
            if stuck.is_set():
                threading.Event().wait(20)
            super().write_in_place(fd, data)

    lease = bench.own(Stuck(bench.store, "a"))
    stuck.set()
    began = time.monotonic()
    assert not lease.release("storage is away")
    assert time.monotonic() - began < 10


def test_an_ousted_holder_stops_although_it_renews(bench: Bench) -> None:
    lease = bench.own()
    create_cell(bench.run.lease(2))
    CellWriter(bench.run.ousted(1), 1).write(b"ousted")
    bench.clock.advance(2)
    assert not lease.renew()
    with pytest.raises(LeaseLost, match="another supervisor has taken over"):
        lease.check()


def test_a_main_loop_that_stands_still_for_30_s_owns_nothing(bench: Bench) -> None:
    lease = bench.own()
    for _ in range(15):
        bench.clock.advance(2)
        assert lease.renew()
    lease.check()
    bench.clock.advance(2)
    assert not lease.renew()
    with pytest.raises(LeaseLost, match="the main loop has not moved for 32 s"):
        lease.check()


def test_a_renewal_that_fails_is_tried_again_and_three_in_vain_end_it(bench: Bench) -> None:
    files = bench.store.observer("a")
    lease = bench.own(files)
    for _ in range(2):
        files.failing = (1, OSError(errno.EIO, "Input/output error"))
        bench.clock.advance(2)
        assert lease.renew()
        lease.check()
    bench.clock.advance(2.1)
    with pytest.raises(LeaseLost, match=r"not renewed for 6\.1 s .*Input/output error"):
        lease.check()


def test_a_holder_that_cannot_read_its_mark_goes_on_by_its_renewals(bench: Bench) -> None:
    lease = bench.own()
    bench.run.ousted(1).unlink()
    for _ in range(10):
        bench.clock.advance(2)
        assert lease.renew()
        lease.tick()
    lease.check()


# --- who died where ---------------------------------------------------------------------------


def test_a_term_that_was_created_and_never_written_is_taken_over(bench: Bench) -> None:
    bench.run.leases.mkdir()
    bench.run.ousted(1).touch()
    create_cell(bench.run.lease(1))
    standby = bench.standby()
    assert bench.wait(standby, 11.5) is None
    lease = bench.wait(standby, 3)
    assert lease is not None
    assert lease.term == 2


def test_a_term_that_was_created_empty_is_taken_over(bench: Bench) -> None:
    bench.run.leases.mkdir()
    bench.run.ousted(1).touch()
    bench.run.lease(1).touch()
    assert bench.wait(bench.standby(), 15) is not None


def test_a_cell_left_torn_for_good_is_taken_over(bench: Bench) -> None:
    bench.own()
    torn = encode_cell(1, 2, b'{"host":"elsewhere"}')[:-4]
    bench.run.lease(1).write_bytes(torn.ljust(1024, b"\xff"))
    lease = bench.wait(bench.standby(), 15)
    assert lease is not None
    assert lease.term == 2


def test_a_claimer_that_died_before_it_marked_its_predecessor_is_found(bench: Bench) -> None:
    bench.own()
    standby = bench.standby()
    standby.poll()
    create_cell(
        bench.run.lease(2)
    )  # and died: neither lease/0001.ousted nor lease/0002 was written
    bench.run.ousted(2).touch()
    assert bench.wait(standby, 13) is None, "term 1 is stale, but 2 is somebody's: it gets its 12 s"
    assert bench.is_ousted(1), "whoever finds term 2 marks term 1"
    lease = bench.wait(standby, 13)
    assert lease is not None
    assert lease.term == 3
    assert bench.is_ousted(2)


def test_marks_are_a_row_without_a_hole(bench: Bench) -> None:
    bench.run.leases.mkdir()
    for term in (1, 2, 3):
        create_cell(bench.run.lease(term))  # two claimers died before they marked anything
        bench.run.ousted(term).touch()
    lease = bench.wait(bench.standby(), 15)
    assert lease is not None
    assert lease.term == 4
    assert [bench.is_ousted(term) for term in (1, 2, 3)] == [True] * 3
    assert not any(bench.run.ousted(4).read_bytes())


def test_a_missing_mark_is_made_by_whoever_takes_over(bench: Bench) -> None:
    bench.own()
    bench.run.ousted(1).unlink()
    standby = bench.standby()
    assert bench.wait(standby, 20) is None, "not read is not stale"
    bench.run.ousted(1).touch()
    assert bench.wait(standby, 15) is not None
    assert bench.is_ousted(1)


def test_the_slow_creator_of_a_mark_cannot_wipe_it_out(bench: Bench) -> None:
    class Overtaken(HostileFiles):
        def create_exclusive(
            self, path: Path, data: bytes = b"", *, size: int = 0, durable: bool = True
        ) -> None:
            super().create_exclusive(path, b"", size=0, durable=durable)
            if path.suffix == ".ousted":  # stopped here; others went on, and marked it
                path.write_bytes(mark_of(1))
            with path.open("r+b") as file:  # then it does the rest of its work
                file.write(data)
                file.truncate(max(size, len(data)))

    with pytest.raises(StorageError, match="given up: another supervisor has taken over"):
        bench.acquire(files=Overtaken(bench.store, "a"))
    assert bench.is_ousted(1)


def test_of_two_standbys_one_wins_and_the_other_follows_it(bench: Bench) -> None:
    bench.own()
    standbys = [bench.standby(bench.store.observer(name)) for name in "bc"]
    won: list[Lease] = []
    for _ in range(30):
        won += [lease for standby in standbys if (lease := standby.poll())]
        bench.clock.advance(0.5)
    assert [lease.term for lease in won] == [2]


def test_a_claim_that_took_too_long_is_given_up(bench: Bench) -> None:
    class Stopped(HostileFiles):
        def open_in_place(self, path: Path, *, create: bool = False) -> int:
            if path.name == "0001":
                bench.clock.advance(60)  # SIGSTOP after creating lease/0001, before its first write
            return super().open_in_place(path, create=create)

    with pytest.raises(StorageError, match=r"lease/0001: the claim was given up: .* 60\.0 s"):
        bench.own(Stopped(bench.store, "a"))
    lease = bench.own()
    assert lease.term == 2, "the term that was given up is marked so, and nobody waits for it"


def test_a_full_disk_is_named(bench: Bench) -> None:
    files = bench.store.observer("a")
    files.failing = (9, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(StorageError, match="cannot claim the run: No space left on device"):
        bench.acquire(files=files)


def test_a_run_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot claim the run: No such file"):
        try_acquire(RunDir(tmp_path / "typo"), ME)
    assert not (tmp_path / "typo").exists()


# --- storage at its worst ---------------------------------------------------------------------


def test_a_standby_does_not_take_over_because_its_readings_hung(bench: Bench) -> None:
    bench.own()
    files = bench.store.observer("b")
    standby = bench.standby(files)
    bench.wait(standby, 2)
    files.freeze(600)
    assert standby.poll() is None, "ten minutes went by, of which two seconds count"
    assert bench.wait(standby, 7) is None
    assert read_lease(bench.run).term == 1  # type: ignore[union-attr]


def test_a_standby_that_was_stopped_does_not_count_the_time(bench: Bench) -> None:
    lease = bench.own()
    standby = bench.standby()
    bench.wait(standby, 2, lease)
    bench.clock.advance(600)
    assert standby.poll() is None


def test_a_standby_that_cannot_read_waits_and_says_why(bench: Bench) -> None:
    bench.own()
    standby = bench.standby()
    standby.poll()
    bench.run.lease(1).rename(bench.run.root / "gone")
    assert bench.wait(standby, 60) is None
    assert "lease/0001: No such file" in standby.error
    (bench.run.root / "gone").rename(bench.run.lease(1))
    assert bench.wait(standby, 9) is None
    assert bench.wait(standby, 5) is not None


def test_a_frozen_storage_stops_the_holder_after_6_s(bench: Bench) -> None:
    files = bench.store.observer("a")
    lease = bench.own(files)
    bench.store.freeze(30)
    bench.clock.advance(5.9)
    lease.check()
    bench.clock.advance(0.2)
    with pytest.raises(LeaseLost):
        lease.check()


def test_a_new_term_that_is_hidden_from_us_is_not_stale_and_not_ours(tmp_path: Path) -> None:
    bench = Bench(tmp_path, hide_s=60)
    lease = bench.own()
    standby = bench.standby()
    assert bench.wait(standby, 50, lease) is None
    assert standby.error or not standby.poll()
    assert read_lease(bench.run).term == 1  # type: ignore[union-attr]


def test_a_name_that_exists_and_cannot_be_opened_is_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, hide_s=60)
    lease = bench.own()
    blind = bench.standby(bench.store.observer("b"))
    assert blind.poll() is None, "the folder looks empty, but creating term 1 says that it is taken"
    assert blind.poll() is None
    assert "0001" in blind.error
    assert bench.wait(blind, 55, lease) is None
    assert bench.wait(blind, 11, lease) is None
    assert bench.wait(blind, 30, lease) is None
    assert bench.wait(blind, 15) is not None


def test_stale_readings_of_up_to_8_s_cause_no_false_takeover(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stale_s=8)
    lease = bench.own()
    assert bench.wait(bench.standby(), 1800, lease) is None


def test_a_watch_follows_the_chain_and_counts_readings_alone(bench: Bench) -> None:
    first = bench.own()
    files = bench.store.observer("node")
    watch = LeaseWatch(bench.run, bench.clock, files)
    for _ in range(10):
        assert watch.poll()
        bench.clock.advance(1)
    assert (watch.term, watch.unchanged_ms) == (1, 9_000)
    files.freeze(300)
    watch.poll()
    assert watch.unchanged_ms <= 11_000
    first.release("x")
    assert bench.own().term == 2
    watch.poll()
    assert (watch.term, watch.unchanged_ms) == (2, 0)


# --- many supervisors, everything at once -----------------------------------------------------


class Supervisor:
    """A process with its two threads: it stands by, acts while it holds the lease, and loses it."""

    def __init__(self, name: str, run: RunDir, store: HostileStore, world: SimulatedTime) -> None:
        self.files = store.observer(name)
        self.name, self.run, self.world = name, run, world
        self.dead = False

    def live(self, acted: Callable[[Lease, str], None]) -> None:
        standby = Standby(self.run, LeaseInfo(host=self.name), clock=self.world, files=self.files)
        while not self.dead:
            self._pause(0.5)
            lease = standby.poll()
            if lease is not None and not self.dead:
                self.world.spawn(partial(self._renew, lease))
                self._hold(lease, acted)
                standby = Standby(
                    self.run, LeaseInfo(host=self.name), clock=self.world, files=self.files
                )

    def _hold(self, lease: Lease, acted: Callable[[Lease, str], None]) -> None:
        while not self.dead:
            self._pause(0.3)
            lease.tick()
            try:
                lease.check()
            except LeaseLost:
                return
            acted(lease, self.name)

    def _renew(self, lease: Lease) -> None:
        while not self.dead:
            self._pause(lease.renew_in_s())
            if self.dead or not lease.renew():
                return

    def _pause(self, seconds: float) -> None:
        self.world.sleep(seconds)
        self.files.thaw_stop()


@pytest.mark.parametrize("seed", range(20))
def test_never_two_owners_whatever_storage_and_signals_do(tmp_path: Path, seed: int) -> None:
    """
    Three supervisors for 20 minutes under stops, kills, freezes, hidden names and stale readings:
    in the order of time, the terms that act never go back.
    """
    world = SimulatedTime(seed)
    store = HostileStore(world, hide_s=60, stale_s=3, latency_s=0.2, seed=seed)
    run = RunDir(tmp_path)
    acts: list[tuple[int, str, float]] = []

    def acted(lease: Lease, name: str) -> None:
        acts.append((lease.term, name, world.now_ms))

    people = [Supervisor(f"s{i}", run, store, world) for i in range(3)]

    def chaos() -> None:
        dice = world.random
        while True:
            world.sleep(dice.uniform(1, 40))
            one = dice.choice(people)
            match dice.choice(("stop", "freeze", "freeze one", "kill")):
                case "stop":
                    one.files.stop(dice.uniform(1, 90))
                case "freeze":
                    store.freeze(dice.uniform(1, 30))
                case "freeze one":
                    one.files.freeze(dice.uniform(1, 30))
                case "kill":
                    one.dead = True
                    fresh = Supervisor(f"s{dice.random()}", run, store, world)
                    people[people.index(one)] = fresh
                    world.spawn(partial(fresh.live, acted))

    for one in people:
        world.spawn(partial(one.live, acted))
    world.spawn(chaos)
    world.run(1200)

    terms = [term for term, _, _ in acts]
    assert terms == sorted(terms), "an older term acted after a newer one"
    owners = {term: {name for t, name, _ in acts if t == term} for term in set(terms)}
    assert all(len(names) == 1 for names in owners.values())
    assert len(owners) >= 3, "the run changed hands: the test has tested something"


@pytest.mark.parametrize("seed", range(10))
def test_no_false_takeover_while_the_holder_can_renew(tmp_path: Path, seed: int) -> None:
    world = SimulatedTime(seed)
    store = HostileStore(world, hide_s=60, stale_s=5, latency_s=0.2, seed=seed)
    run = RunDir(tmp_path)
    acts: set[int] = set()
    people = [Supervisor(f"s{i}", run, store, world) for i in range(3)]

    def hiccups() -> None:
        while True:
            world.sleep(world.random.uniform(5, 20))
            world.random.choice((store, *[one.files for one in people])).freeze(
                world.random.uniform(0.1, 2)
            )

    for one in people:
        world.spawn(partial(one.live, lambda lease, _: acts.add(lease.term)))
    world.spawn(hiccups)
    world.run(900)
    assert acts == {1}
