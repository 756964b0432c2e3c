"""
How long a run has had no supervisor, as anybody can see it who only reads: by the lease's renewals.

Only what was *read* counts. Storage that does not answer says nothing about the supervisor.
"""

from __future__ import annotations

import os
import time

from trainctl.base.cells import read_cell
from trainctl.base.rundir import RunDir
from trainctl.model.errors import CellError


class LeaseAge:
    """Follows the newest lease cell of a run; all times are this process's monotonic clock."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._seen: tuple[int, int] | None = None
        self._changed_s = time.monotonic()
        self._read_s = self._changed_s

    def look(self) -> float:
        """
        Read once; seconds for which every successful reading has shown the same renewal.

        A run directory that was deleted has no supervisor either. Where nothing can be read the
        answer does not grow.
        """
        try:
            now = self._newest()
        except (OSError, CellError):
            return self._read_s - self._changed_s
        self._read_s = time.monotonic()
        if now != self._seen:
            self._seen, self._changed_s = now, self._read_s
        return self._read_s - self._changed_s

    def unheard_s(self) -> float:
        """Seconds since a renewal was last seen, whether we could not read or there was none."""
        return time.monotonic() - self._changed_s

    def _newest(self) -> tuple[int, int] | None:
        try:
            names = os.listdir(self._run.leases)
        except FileNotFoundError:
            return None
        term = max((int(name) for name in names if name.isdecimal()), default=0)
        if not term:
            return None
        cell = read_cell(self._run.lease(term))
        return (term, cell.seq) if cell is not None else (term, 0)
