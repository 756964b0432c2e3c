"""
How long a run has had no supervisor, as anybody can see it who only reads: by the lease's renewals.

Two equal readings mean that nobody renewed in between, however far apart they are: a renewal always
changes the cell. So a node may look seldom, thousands of nodes at one storage.
"""

from __future__ import annotations

import time

from trainctl.base.rundir import RunDir
from trainctl.base.terms import LeaseWatch


class LeaseAge:
    """Follows the newest lease cell of a run; all times are this process's monotonic clock."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._watch = LeaseWatch(run)
        self._seen: object = None
        self._changed_s = time.monotonic()
        self._read_s = self._changed_s

    def look(self) -> float:
        """
        Read once; seconds for which every successful reading has shown the same renewal.

        A run directory that was deleted has no supervisor either. Where nothing can be read the
        answer does not grow.
        """
        began_s = time.monotonic()
        if self._watch.poll():
            self._note((self._watch.term, self._watch.cell), began_s)
        elif not self._run.root.exists():
            self._note(None, began_s)
        return self._read_s - self._changed_s

    def unheard_s(self) -> float:
        """Seconds since a renewal was last seen, whether we could not read or there was none."""
        return time.monotonic() - self._changed_s

    def _note(self, now: object, began_s: float) -> None:
        self._read_s = began_s
        if now != self._seen:
            self._seen, self._changed_s = now, began_s
