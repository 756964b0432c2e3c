"""
The chain of lease terms, as anybody can follow it who only reads.

    lease/0001  lease/0001.ousted   lease/0002  lease/0002.ousted   …

A term's cell is rewritten by its holder every 2 s. Its `.ousted` cell exists before it does, and
is written, always with the same bytes, by whoever takes term n+1 or finds it taken. So an
observer goes from n to n+1 because a file that it already reads has changed, not because a name
appeared.

Standard library only: node daemons use this. adapters/lease.py has the writing side.
"""

from __future__ import annotations

import re
from pathlib import Path

from trainctl.base.cells import Cell, decode_cell, encode_cell
from trainctl.base.clock import Clock, SystemClock
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model.errors import CellError

MAX_GAP_MS = 2_000
"""Between two readings so much time counts as observed at most; poll more often than that."""

_MAX_TERMS_A_POLL = 10_000
_TERM_NAME = re.compile(r"[0-9]{4,}")


def highest_listed(run: RunDir, files: Files) -> int:
    """The highest term that the folder lists (0: none): a hint that may be a minute old."""
    try:
        names = files.listdir(run.leases)
    except FileNotFoundError:  # or hidden by a cached lookup; claiming term 1 finds out
        return 0
    return max((int(name) for name in names if _TERM_NAME.fullmatch(name)), default=0)


def mark_of(term: int) -> bytes:
    """What stands in `.ousted` of a term that was taken over, whoever writes it."""
    return encode_cell(term, 1, b"ousted")


def is_ousted(run: RunDir, term: int, files: Files) -> bool:
    """Whether a later term exists. Any byte says so: a mark is written only after that term was."""
    return any(files.read(run.ousted(term), fresh=True))


class LeaseWatch:
    """
    Follows the newest term that can be seen, by reading alone.

    `unchanged_ms` is for how long the holder was *observed* to write nothing: only the time between
    successful readings counts, at most 2 s for each, by this host's monotonic clock. Storage that
    hangs, or an observer that was stopped, adds nothing. Poll about twice a second.
    """

    def __init__(self, run: RunDir, clock: Clock | None = None, files: Files | None = None) -> None:
        self._run = run
        self._clock = clock or SystemClock()
        self._files = files or Files()
        self.term = 0
        #: What the last successful reading showed; None: never written, or torn for good.
        self.cell: Cell | None = None
        self.unchanged_ms = 0
        #: Why the last poll read nothing; "" when it did.
        self.error = ""
        self._raw: bytes | None = None
        self._read_ms = 0

    def poll(self) -> bool:
        """Read once; False when nothing could be read, which says nothing about the holder."""
        self.error = ""
        try:
            self._follow()
            if not self.term:
                return True
            path = self._run.lease(self.term)
            began_ms = self._clock.mono_ms()
            raw = self._files.read(path, fresh=True)
        except OSError as error:
            self.error = f"{error.filename or self._run.leases}: {error.strerror or error}"
            return False
        self._note(raw, path, began_ms)
        return True

    def move_to(self, term: int) -> None:
        """Go on with a term that is known to exist."""
        self.term = term
        self.cell, self._raw, self.unchanged_ms = None, None, 0

    def _follow(self) -> None:
        if not self.term:
            self.term = highest_listed(self._run, self._files)
        for _ in range(_MAX_TERMS_A_POLL):
            if not self.term or not is_ousted(self._run, self.term, self._files):
                return
            self.move_to(self.term + 1)

    def _note(self, raw: bytes, path: Path, began_ms: int) -> None:
        # The bytes are compared, not the number in them: a cell that its holder left torn is as
        # dead as one it left whole.
        if raw != self._raw:
            self._raw, self.unchanged_ms = raw, 0
            try:
                self.cell = decode_cell(raw, path)
            except CellError:
                self.cell = None
        else:
            # Up to the beginning of this reading: what was written while it ran it need not show.
            self.unchanged_ms += min(max(0, began_ms - self._read_ms), MAX_GAP_MS)
        self._read_ms = self._clock.mono_ms()
