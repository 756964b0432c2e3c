"""
The lease: who may act on a run, as numbered terms on a shared file system.

    claim:   create NNNN.ousted (anybody may) → create NNNN (O_EXCL: one wins)
             → mark every earlier term ousted → write NNNN → act
    hold:    rewrite NNNN every 2 s; not renewed for 6 s, or marked ousted → never act again
    stand by: NNNN read, again and again, without a change for 12 s, or marked released
             → claim NNNN+1

Why two cannot act at once. A holder counts its 6 s from the *beginning* of its last renewal that
came through; a standby counts its 12 s from the *end* of the reading that first showed that
renewal to the beginning of the last one, and only time between successful readings. So a holder
has stopped 6 s before anybody may claim, whatever either clock says of the hour: hosts' clocks
are never compared, and a process that was stopped for a minute, or whose storage froze, finds by
its own clock that it is too late. A claim that took longer than 6 s, from creating NNNN to having
written it, is given up for the same reason. A lost lease stays lost: its process may stand by and
win a later term.

What this needs is that a reading is not older than a few seconds. Where a mount caches for longer
(`nocto`), a takeover may be needless; the old holder then sees the mark within that time, and
until then the fences hold: attempt numbers are claimed by mkdir, and agents obey the highest
term.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass

import msgspec

from trainctl.adapters.lease_term import Lease, LeaseInfo
from trainctl.base.cells import create_cell
from trainctl.base.clock import Clock, SystemClock
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.base.terms import LeaseWatch, is_ousted, mark_of
from trainctl.model.errors import CellError, StorageError

__all__ = ["Lease", "LeaseInfo", "LeaseView", "Standby", "read_lease", "try_acquire"]

STALE_MS = 12_000
CELL_SIZE = 1_024
MARK_SIZE = 256

_MAX_TERMS = 10_000
_CLOCK = SystemClock()
_FILES = Files()


@dataclass(frozen=True, slots=True)
class LeaseView:
    """
    The newest term as it can be seen now. `info` is empty while the cell was never written;
    `ousted`: a later term exists that cannot be read yet. Whether the holder is alive takes two
    readings.
    """

    term: int
    info: LeaseInfo
    seq: int
    released: bool
    ousted: bool


class Standby:
    """
    Waits for the run: `poll` about twice a second. Costs two small reads each.

    A holder is given up only after 12 s of *successful* readings without a change.
    """

    def __init__(
        self, run: RunDir, info: LeaseInfo, *, clock: Clock = _CLOCK, files: Files = _FILES
    ) -> None:
        self._run = run
        self._info = info
        self._clock = clock
        self._files = files
        self._watch = LeaseWatch(run, clock, files)
        #: Why the last poll could not tell; "" when it could.
        self.error = ""

    def poll(self) -> Lease | None:
        """The lease if it can be had now. Storage that fails is waited for, see `error`."""
        self.error = ""
        if not self._watch.poll():
            self.error = self._watch.error
            return None
        released = _info_of(self._watch).released
        stale = self._watch.unchanged_ms >= STALE_MS
        if self._watch.term and not released and not stale:
            return None
        ousts = self._watch.term if not released else 0
        try:
            return self._claim(self._watch.term + 1, ousts)
        except (StorageError, CellError) as error:
            self.error = str(error)
            return None

    def _claim(self, term: int, ousts: int) -> Lease | None:
        lease = _claim(self._run, term, self._info, self._clock, self._files, ousts)
        if lease is None:
            self._watch.move_to(term)
        return lease


def try_acquire(
    run: RunDir, info: LeaseInfo, *, clock: Clock = _CLOCK, files: Files = _FILES
) -> Lease | None:
    """
    The lease at once where the run is free: no term yet, or the last one released. None where
    somebody holds it, alive or not. StorageError when the run directory cannot be read or
    written.
    """
    watch = LeaseWatch(run, clock, files)
    for _ in range(_MAX_TERMS):
        if not watch.poll():
            raise StorageError(f"{run.root}: cannot read who owns the run: {watch.error}")
        if watch.term and not _info_of(watch).released:
            return None
        lease = _claim(run, watch.term + 1, info, clock, files, 0)
        if lease is not None:
            return lease
        watch.move_to(watch.term + 1)
    raise StorageError(f"{run.leases}: more than {_MAX_TERMS} terms were released at once")


def read_lease(run: RunDir, *, files: Files = _FILES) -> LeaseView | None:
    """
    The newest term, for reports; None where the run never had one. StorageError when it cannot be
    read.
    """
    watch = LeaseWatch(run, files=files)
    if not watch.poll():
        if _not_there_yet(run, watch, files):
            return LeaseView(watch.term - 1, LeaseInfo(), 0, False, True)
        raise StorageError(f"{run.root}: cannot read who owns the run: {watch.error}")
    if not watch.term:
        return None
    info = _info_of(watch)
    return LeaseView(watch.term, info, watch.cell.seq if watch.cell else 0, info.released, False)


def _not_there_yet(run: RunDir, watch: LeaseWatch, files: Files) -> bool:
    """The last term is ousted, and the next is still hidden from this host by a cached lookup."""
    if watch.term < 2:
        return False
    try:
        files.read(run.lease(watch.term))
    except OSError as error:
        return error.errno == errno.ENOENT
    return False


def _info_of(watch: LeaseWatch) -> LeaseInfo:
    if watch.cell is None:
        return LeaseInfo()
    try:
        return msgspec.json.decode(watch.cell.payload, type=LeaseInfo)
    except msgspec.MsgspecError:
        return LeaseInfo()  # a newer trainctl's: held, by somebody we cannot name


def _claim(
    run: RunDir, term: int, info: LeaseInfo, clock: Clock, files: Files, ousts: int
) -> Lease | None:
    """Claim a term; None when it is somebody else's."""
    began_ms = clock.mono_ms()
    try:
        ours = _create_term(run, term, files)
        _mark_ousted_before(run, term, files)
    except OSError as error:
        name = error.filename or run.leases
        raise StorageError(f"{name}: cannot claim the run: {error.strerror or error}") from error
    if not ours:
        return None
    lease = Lease(run, term, info, clock, files, ousts, began_ms)
    if why := lease.first_renewal():
        lease.release("given up")
        raise StorageError(f"{run.lease(term)}: the claim was given up: {why}; try again")
    return lease


def _create_term(run: RunDir, term: int, files: Files) -> bool:
    """Create the two files of a term; False when the term is somebody else's."""
    with contextlib.suppress(FileExistsError):
        files.mkdir_exclusive(run.leases)
    with contextlib.suppress(FileExistsError):
        # Before the term, so that whoever sees a term can read both. Sized without being written,
        # so that a creator who was stopped half-way cannot wipe out a mark.
        files.create_exclusive(run.ousted(term), size=MARK_SIZE)
    try:
        create_cell(run.lease(term), CELL_SIZE, files)
    except FileExistsError:
        return False
    except CellError as error:
        raise StorageError(str(error)) from error
    return True


def _mark_ousted_before(run: RunDir, term: int, files: Files) -> None:
    """
    Mark all earlier terms, the lowest first, so that the marked ones are always a row without a
    hole: an earlier claimer may have died before it had marked its own predecessor.
    """
    unmarked = []
    for earlier in range(term - 1, 0, -1):
        with contextlib.suppress(
            FileNotFoundError
        ):  # or hidden by a cached lookup: create reaches it
            if is_ousted(run, earlier, files):
                break
        unmarked.append(earlier)
    for earlier in reversed(unmarked):
        fd = files.open_in_place(run.ousted(earlier), create=True)
        try:
            files.write_in_place(fd, mark_of(earlier))
        finally:
            files.close(fd)
