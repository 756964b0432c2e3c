"""
One held term of the lease: renewed by a thread of its own, and checked before every act.

See adapters/lease.py for the protocol. The main loop's side (`tick`, `check`) touches no file, so
that storage which hangs cannot keep a holder from finding out that it is too late.
"""

from __future__ import annotations

import contextlib
import threading

import msgspec

from trainctl.base.cells import CellWriter
from trainctl.base.clock import Clock
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.base.terms import is_ousted
from trainctl.model.errors import CellError, LeaseLost

RENEW_MS = 2_000
LOST_MS = 6_000
TICK_MS = 30_000
"""A main loop that stands still for so long owns nothing: renewing for it would block the run."""

RELEASE_S = 6.0


class LeaseInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who holds a term: for people, and for a gang that must know whose job the run belongs to."""

    host: str = ""
    pid: int = 0
    boot: str = ""
    seat: str = ""
    job_id: str = ""
    #: Given up in order: the next holder need not wait.
    released: bool = False
    reason: str = ""
    #: Events in its journal when it was released: the next holder reads until it has them all.
    events: int = 0


class Lease:
    """
    A term that this process holds. Call `start` within 6 s, `tick` from the main loop, `check`
    before every act. `ousted_term` is the term that was taken from a holder that had gone silent,
    else 0.
    """

    def __init__(
        self,
        run: RunDir,
        term: int,
        info: LeaseInfo,
        clock: Clock,
        files: Files,
        ousted_term: int,
        began_ms: int,
    ) -> None:
        self.run = run
        self.term = term
        self.info = info
        self.ousted_term = ousted_term
        self._clock = clock
        self._files = files
        self._writer = CellWriter(run.lease(term), term, files)
        self._state = threading.Lock()  # never held over I/O
        self._lost = ""
        self._error = ""
        self._tick_ms = self._due_ms = clock.mono_ms()
        self._renewed_ms = began_ms  # when the claim began: nobody can have waited for longer
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._done = False

    # --- the main loop's side: touches no file ---

    def tick(self) -> None:
        """The main loop is alive."""
        self._tick_ms = self._clock.mono_ms()

    def check(self) -> None:
        """Raise LeaseLost unless this process may act now. Once it raises it always does."""
        with self._state:
            age_ms = self._clock.mono_ms() - self._renewed_ms
            if not self._lost and age_ms > LOST_MS:
                why = f" ({self._error})" if self._error else ""
                self._lost = f"it was not renewed for {age_ms / 1000:.1f} s{why}"
            if self._lost:
                raise LeaseLost(
                    f"{self.run.root}: term {self.term} is lost: {self._lost}; nothing more is done"
                )

    @property
    def is_held(self) -> bool:
        """Whether `check` would pass."""
        with contextlib.suppress(LeaseLost):
            self.check()
            return True
        return False

    def start(self) -> None:
        """Renew from a thread of its own until `release`, or until the lease is lost."""
        name = f"lease-{self.term:04d}"
        self._thread = threading.Thread(target=self._renew_for_ever, name=name, daemon=True)
        self._thread.start()

    def release(self, reason: str = "", events: int = 0) -> bool:
        """
        Give the run up in order, so that the next holder need not wait; call it when nothing that
        this process started acts any more. After it `check` raises. False: storage did not take
        the mark within 6 s, and the next holder waits for 12.
        """
        self._lose(f"it was released ({reason})" if reason else "it was released")
        self.info = msgspec.structs.replace(self.info, released=True, reason=reason, events=events)
        self._stop.set()
        if self._thread is not None:
            self._thread.join(RELEASE_S)
        if not self._done and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._write_release, daemon=True)
            self._thread.start()  # storage may hold the write back: not for us to wait
            self._thread.join(RELEASE_S)
        return self._done

    # --- the renewing thread's side ---

    def renew(self) -> bool:
        """One renewal; False when there is nothing more to renew."""
        began_ms = self._clock.mono_ms()
        self._due_ms = began_ms + RENEW_MS
        if began_ms - self._tick_ms > TICK_MS:
            self._lose(f"the main loop has not moved for {(began_ms - self._tick_ms) / 1000:.0f} s")
        if not self.is_held:
            return False
        with contextlib.suppress(OSError):  # cannot read: the renewals decide
            if is_ousted(self.run, self.term, self._files):
                self._lose("another supervisor has taken over")
                return False
        return self._write(began_ms)

    def renew_in_s(self) -> float:
        """Seconds to the next renewal: 2 s from the *beginning* of the last one."""
        return max(0, self._due_ms - self._clock.mono_ms()) / 1000

    def _renew_for_ever(self) -> None:
        while not self._stop.wait(self.renew_in_s()):
            if not self.renew():
                self._writer.close()
                return
        self._write_release()

    def first_renewal(self) -> str:
        """Write the cell for the first time; why the claim must be given up, "" when it holds."""
        self.renew()
        if self.is_held and not self._error:
            return ""
        return self._error or self._lost

    def _write(self, began_ms: int) -> bool:
        try:
            self._writer.write(msgspec.json.encode(self.info))
        except CellError as error:
            self._error = str(error)
            return True  # tried again in 2 s; three in vain and `check` says so
        if not self.is_held:  # it came through too late: somebody may have stopped waiting for it
            return False
        with self._state:
            self._renewed_ms, self._error = began_ms, ""
        return True

    def _write_release(self) -> None:
        # Our own cell, which nobody else writes: harmless even when the term was taken over.
        with contextlib.suppress(CellError):
            self._writer.write(msgspec.json.encode(self.info))
            self._done = self.info.released
        self._writer.close()

    def _lose(self, why: str) -> None:
        with self._state:
            self._lost = self._lost or why
