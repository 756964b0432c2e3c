"""
Simulated time for code that sleeps in several threads: hours in milliseconds, and the same every
time.

Exactly one actor runs at a time; when all of them sleep, time jumps to the next wake-up. Who of
several that wake at the same instant goes first is drawn from the seed, so many seeds are many
interleavings.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable


class _Over(BaseException):
    """The simulation has ended: unwinds an actor out of its sleep."""


class SimulatedTime:
    """A `Clock` for all actors, and what runs them."""

    def __init__(self, seed: int = 0, start_ms: int = 1_000_000) -> None:
        self.now_ms = float(start_ms)
        self.random = random.Random(seed)
        self.errors: list[BaseException] = []
        self._queue: list[tuple[float, float, int, threading.Semaphore]] = []
        self._numbers = itertools.count()
        self._driver = threading.Semaphore(0)
        self._actors: dict[int, threading.Semaphore] = {}
        self._over = False

    def utc_ms(self) -> int:
        return 1_796_000_000_000 + int(self.now_ms)

    def mono_ms(self) -> int:
        return int(self.now_ms)

    def sleep(self, seconds: float) -> None:
        """Let the others run for so long; a thread that is no actor does not wait."""
        mine = self._actors.get(threading.get_ident())
        if mine is None:
            return
        self._wake_at(self.now_ms + seconds * 1000, mine)
        self._driver.release()
        mine.acquire()
        if self._over:
            raise _Over

    def spawn(self, actor: Callable[[], None]) -> None:
        """Start an actor, at this instant."""
        mine = threading.Semaphore(0)

        def live() -> None:
            self._actors[threading.get_ident()] = mine
            mine.acquire()
            try:
                if not self._over:
                    actor()
            except _Over:
                pass
            except BaseException as error:  # noqa: BLE001 — `run` raises it in the test
                self.errors.append(error)
            finally:
                self._actors.pop(threading.get_ident(), None)
                self._driver.release()

        threading.Thread(target=live, daemon=True).start()
        self._wake_at(self.now_ms, mine)

    def run(self, seconds: float) -> None:
        """Let all actors live for so long, then end them; raises what one of them raised."""
        end_ms = self.now_ms + seconds * 1000
        while self._queue and not self.errors:
            at_ms, _, _, actor = heapq.heappop(self._queue)
            self._over = self._over or at_ms > end_ms
            self.now_ms = max(self.now_ms, min(at_ms, end_ms))
            self._let_run(actor)
        self._over = True
        while self._queue:
            self._let_run(heapq.heappop(self._queue)[3])
        if self.errors:
            raise self.errors[0]

    def _wake_at(self, at_ms: float, actor: threading.Semaphore) -> None:
        entry = (at_ms, self.random.random(), next(self._numbers), actor)
        heapq.heappush(self._queue, entry)

    def _let_run(self, actor: threading.Semaphore) -> None:
        actor.release()
        self._driver.acquire()


class ManualClock:
    """A `Clock` that a test moves by hand; sleeping moves it too."""

    def __init__(self, start_ms: int = 1_000_000) -> None:
        self.now_ms = start_ms
        self.utc_offset_ms = 1_796_000_000_000

    def utc_ms(self) -> int:
        return self.utc_offset_ms + self.now_ms

    def mono_ms(self) -> int:
        return self.now_ms

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)
