"""
A new holder reads what all before it wrote: whole, or not yet.

A name that another host created may be hidden from this one for a minute, and a file may be seconds
old. To act on half a past is to launch twice. So every earlier term's file is *sealed* first:
opened by exclusive creation, which the server answers. Where there was none, its owner can no
longer make one; where there is one that cannot be opened yet, it is waited for. And a holder that
released the run in order said how many events it had written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from trainctl.adapters.journal import Journal, read_journal
from trainctl.adapters.lease import Lease, LeaseInfo
from trainctl.base.cells import read_cell
from trainctl.base.clock import Clock
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model.errors import CellError, StorageError

WAIT_S = 180.0
"""Above the minute for which a client may cache that a name is not there."""
PAUSE_S = 0.5
LOOK_BACK = 50
"""Terms whose release is read again; what is older was whole for the holders since."""


def read_past(
    run: RunDir, lease: Lease, clock: Clock, files: Files, warn: Callable[[str], None]
) -> Journal:
    """
    The journal through the term before `lease`; keeps the lease while it waits.

    Raises StorageError where it is not whole within `WAIT_S`, LeaseLost where the run is lost
    meanwhile.
    """
    end_ms = clock.mono_ms() + int(WAIT_S * 1000)
    said = ""
    while True:
        lease.tick()
        lease.check()
        journal = read_journal(run, files, through_term=lease.term - 1)
        missing = next(_missing(run, lease.term - 1, journal, files), "")
        if not missing:
            return journal
        if clock.mono_ms() >= end_ms:
            raise StorageError(f"{missing} for {WAIT_S:.0f} s; what it holds must be known first")
        if missing != said:
            warn(f"{missing}; waiting for it")
            said = missing
        clock.sleep(PAUSE_S)


def _missing(run: RunDir, through: int, journal: Journal, files: Files) -> Iterator[str]:
    """What is known to be there and cannot be read yet."""
    read = Counter[int]()
    for line in (*journal.merged, *journal.void):
        read[line.term] = max(read[line.term], line.seq)
    for term in range(max(1, through - LOOK_BACK), through + 1):
        if not read[term] and not _seal(run, term, files):
            yield f"{run.journal(term)}: is there and cannot be read"
        if (said := _released_at(run, term, files)) > read[term]:
            yield f"{run.journal(term)}: holds {said} events, {read[term]} can be read"


def _seal(run: RunDir, term: int, files: Files) -> bool:
    """
    Whether all of that term's file can be seen; one that was never made can no longer be made.
    """
    try:
        files.close(files.open_append(run.journal(term)))
    except FileExistsError:
        return _is_visible(run, term, files)
    except OSError as error:
        raise StorageError(f"{run.journal(term)}: cannot be sealed: {error.strerror}") from error
    return True


def _is_visible(run: RunDir, term: int, files: Files) -> bool:
    try:
        files.read(run.journal(term))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{run.journal(term)}: cannot be read: {error.strerror}") from error
    return True


def _released_at(run: RunDir, term: int, files: Files) -> int:
    """How many events the holder of `term` had written when it released the run; 0 for not said."""
    try:
        cell = read_cell(run.lease(term), files)
        info = msgspec.json.decode(cell.payload, type=LeaseInfo) if cell else LeaseInfo()
    except (CellError, msgspec.MsgspecError):
        return 0
    return info.events
