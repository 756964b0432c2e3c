"""What the terminal asks of a supervisor: Ctrl-C is a stop request, a second one means now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Interrupts:
    """What the terminal asked: the first Ctrl-C (or TERM) stops in order, the second at once."""

    count: int = 0
    obeyed: int = 0

    def __call__(self, _signum: int, _frame: FrameType | None) -> None:
        self.count += 1

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take INT and TERM for the time of the block; only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
