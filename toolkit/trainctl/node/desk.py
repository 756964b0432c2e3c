"""
The agent's dealings with shared storage, in a thread of their own: when storage hangs, the agent
still obeys signals and its own bounds, and its ranks go on.

The main loop puts its newest state on the desk and finds the newest control word there. The thread
writes the cell at once when something changed, else every period, and reads the control cells every
second. Errors are remembered and tried again; they never reach the main loop as exceptions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trainctl.base.cells import CellWriter
from trainctl.base.rundir import RunDir
from trainctl.model.agent import AgentState
from trainctl.model.errors import CellError
from trainctl.model.evidence import RankError, RankExit
from trainctl.node.control import ControlCells, Word
from trainctl.node.lease_age import LeaseAge

LEASE_PERIOD_S = 10.0
RETRY_S = 0.2

Explain = Callable[[RankExit], RankError | None]

MESSAGE_LIMITS = (2_000, 300, 60, 0)

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Periods:
    """Seconds between writes of an unchanged cell, and between looks at the control cells."""

    cell_s: float = 10.0
    control_s: float = 1.0


class Desk(threading.Thread):
    """The one thread of an agent that touches the run directory while ranks run."""

    def __init__(
        self,
        run: RunDir,
        attempt: int,
        node: str,
        periods: Periods,
    ) -> None:
        super().__init__(name="desk", daemon=True)  # a write that hangs must not keep us alive
        self._path = run.state(attempt, node)
        self._periods = periods
        self._control = ControlCells(run, attempt)
        self._lease = LeaseAge(run)
        self._cell: CellWriter | None = None
        self._wake = threading.Event()
        self._errors: dict[int, RankError | None] = {}
        #: How a failed rank's last words are found, and where its output goes; known later.
        self.explain: Explain = lambda _: None
        self.logs: Path | None = None
        self._output = 0
        #: Monotonic time at which the ranks' output was last seen to grow.
        self.output_moved_s = time.monotonic()
        #: The newest word of a supervisor; replaced whole, so it is read without a lock.
        self.word: Word | None = None
        #: Why the last reading of the control cells failed, "" where it did not.
        self.deaf = "the control cells were not read yet"
        #: Monotonic time at which the last complete reading of all control cells began.
        self.all_read_s = 0.0
        #: Seconds since a supervisor was last seen to renew its lease.
        self.alone_s = 0.0
        self._state: AgentState | None = None
        self._urgent = False
        #: All cells are to be read by a reading that begins after this.
        self._all_wanted_s = time.monotonic()
        self._closing = False
        self._close_by = 0.0
        #: The state that was written last, whole and durable.
        self.written: AgentState | None = None

    def put(self, state: AgentState, *, urgent: bool) -> None:
        """The newest state; `urgent` has it written now, else at the end of the period."""
        self._state = state
        if urgent:
            self._urgent = True
            self._wake.set()

    def read_all_again(self) -> float:
        """Have all control cells read anew: done once `all_read_s` is not below the answer."""
        self._all_wanted_s = time.monotonic()
        self._wake.set()
        return self._all_wanted_s

    @property
    def _must_read_all(self) -> bool:
        return self.all_read_s < self._all_wanted_s

    def close(self, timeout_s: float) -> bool:
        """Write what is on the desk and end; False where storage did not let us in time."""
        self._close_by = time.monotonic() + timeout_s
        self._closing = self._urgent = True
        self._wake.set()
        self.join(timeout_s)
        return self._all_said()

    def _all_said(self) -> bool:
        return self._state is None or self.written is self._state

    def run(self) -> None:
        """Serve until closed. Bounded by the agent's life: the thread is a daemon."""
        next_write = next_control = next_lease = 0.0
        while True:
            closing, now = self._closing, time.monotonic()
            if now >= next_control or self._must_read_all:
                self._listen()
                next_control = now + self._periods.control_s
            if self._urgent or now >= next_write:
                self._urgent = False
                next_write = now + (self._periods.cell_s if self._write() else RETRY_S)
            if closing and (self._all_said() or now > self._close_by):
                return
            if now >= next_lease:
                self._lease.look()
                self._look_at_output()
                next_lease = now + LEASE_PERIOD_S
            self.alone_s = self._lease.unheard_s()
            pause_s = min(next_control, next_write) - time.monotonic()
            self._wake.wait(max(0.0, min(pause_s, RETRY_S if self._must_read_all else pause_s)))
            self._wake.clear()

    def _listen(self) -> None:
        began, everything = time.monotonic(), self._must_read_all
        try:
            word = self._control.read_all() if everything else self._control.read_some()
        except CellError as error:
            self.deaf = str(error)
            return
        self.word, self.deaf = word, ""
        if everything:
            self.all_read_s = began

    def _write(self) -> bool:
        state = self._state
        if state is None:
            return True
        try:
            if self._cell is None:
                self._cell = CellWriter(self._path, state.ack_term)
            self._cell.write(_fit(self._with_errors(state), self._cell.capacity))
        except CellError:
            self._urgent = False  # what cannot be written now is written in a moment
            return False
        self.written = state
        return True

    def _look_at_output(self) -> None:
        """The only sign of life of a trainer that does not beat."""
        if self.logs is None:
            return
        try:
            size = sum(path.stat().st_size for path in self.logs.glob("rank-*"))
        except OSError:
            return
        if size != self._output:
            self._output, self.output_moved_s = size, time.monotonic()

    def _with_errors(self, state: AgentState) -> AgentState:
        """Add each failed rank's last words: they are read here, where waiting does no harm."""
        exits = []
        for end in state.exits:
            if end.rank not in self._errors:
                self._errors[end.rank] = self.explain(end)
            error = self._errors[end.rank]
            exits.append(msgspec.structs.replace(end, error=error) if error else end)
        return msgspec.structs.replace(state, exits=tuple(exits))


def _fit(state: AgentState, capacity: int) -> bytes:
    """The state as JSON; many ranks' words that would burst the cell are cut, never the exits."""
    for limit in MESSAGE_LIMITS:
        exits = tuple(_cut(end, limit) for end in state.exits)
        payload = _encode(msgspec.structs.replace(state, exits=exits))
        if len(payload) <= capacity:
            break
    return payload


def _cut(end: RankExit, limit: int) -> RankExit:
    if end.error is None or len(end.error.message) <= limit:
        return end
    error = msgspec.structs.replace(end.error, message=end.error.message[:limit])
    return msgspec.structs.replace(end, error=error)
