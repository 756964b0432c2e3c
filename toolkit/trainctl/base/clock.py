"""
The two clocks, behind one small protocol so that tests and the simulated cluster need not wait.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """UTC for the journal, monotonic for every duration and bound."""

    def utc_ms(self) -> int:
        """UTC in integer milliseconds; may jump."""

    def mono_ms(self) -> int:
        """
        Monotonic milliseconds since boot, counting suspended time of the process, never jumping
        back.
        """

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own clocks."""

    def utc_ms(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        """See `Clock`."""
        return time.monotonic_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(seconds)


def boot_id() -> str:
    """The kernel's id of this boot: monotonic times of two boots are never compared."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
