"""
Beats and flags: how the ranks of a node and its agent see each other, in node-local memory alone.

    DIR/flags        two words, written by the agent alone, mapped by every rank: stop, dump
    DIR/beat.<N>     local rank N, written by that rank alone, read by the agent

A beat file holds two records. The beat is `seq, step, beat_ns, seq`, written at every step and
therefore short; the state is `seq, pid, phase, phase_ns, committed, seq`, written when one of these
changes. Each record has two slots that are written in turn, so that a rank killed or stopped in the
middle of a write leaves the one before it readable. A slot is whole where both sequence numbers are
equal and not 0: `struct.pack_into` clears what it is going to fill and fills it in order, so an
interrupted slot shows 0 or two different numbers.

Times are CLOCK_MONOTONIC in nanoseconds, the same for all processes of a node. Steps count ended
steps: a rank that beats with 7 has ended its seventh step; -1 means none yet.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import monotonic_ns

_BEAT = struct.Struct("=QqqQ")
_STATE = struct.Struct("=QqqqqQ")
_STATE_AT = 2 * _BEAT.size
_SIZE = _STATE_AT + 2 * _STATE.size
_FLAGS = struct.Struct("=QQ")
_READS = 32

FLAGS_FILE = "flags"


class Phase(StrEnum):
    """What a rank is doing; what it may take is different in each."""

    #: From the start of the process to the first beat: imports, model, process group, first step.
    INIT = "init"
    LOAD = "load"
    STEP = "step"
    EVAL = "eval"
    SAVE = "save"


PHASES = tuple(Phase)
"""The code in a slot is the index here: append only."""


@dataclass(frozen=True, slots=True)
class Beat:
    """
    A rank's last sign of life.

    `beat_ns` is when it was given, `phase_ns` when its phase began (CLOCK_MONOTONIC of the node);
    `step` is the last ended step, `committed` the last step that this rank saw committed; -1 for
    none. `seq` grows by one a beat. A phase code of a newer library reads as "".
    """

    seq: int
    pid: int
    step: int
    phase: str
    beat_ns: int
    phase_ns: int
    committed: int


@dataclass(frozen=True, slots=True)
class Flags:
    """What the agent asks of its ranks; 0 is "nothing". A higher `dump` is a new demand."""

    stop: int = 0
    dump: int = 0


def beat_file(folder: str | os.PathLike[str], local_rank: int) -> Path:
    """The file of one local rank."""
    return Path(folder) / f"beat.{local_rank}"


def create_beats(folder: str | os.PathLike[str], count: int) -> Path:
    """
    Lay out the folder for `count` local ranks, nothing beaten and nothing asked.

    The agent does it before it starts a rank. The bytes are written, not merely reserved: a hole in
    a full memory file system would kill the rank by SIGBUS at its first beat; a failed write is an
    OSError now.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / FLAGS_FILE).write_bytes(bytes(_FLAGS.size))
    for local_rank in range(count):
        beat_file(path, local_rank).write_bytes(bytes(_SIZE))
    return path


def set_flag(
    folder: str | os.PathLike[str], *, stop: int | None = None, dump: int | None = None
) -> None:
    """Set one word or both; None leaves it as it is. Only the agent calls this."""
    fd = os.open(Path(folder) / FLAGS_FILE, os.O_WRONLY)
    try:
        for offset, word in ((0, stop), (8, dump)):
            if word is not None:
                os.pwrite(fd, word.to_bytes(8, sys.byteorder), offset)
    finally:
        os.close(fd)


def read_flags(folder: str | os.PathLike[str]) -> Flags:
    """What is asked now."""
    stop, dump = _FLAGS.unpack((Path(folder) / FLAGS_FILE).read_bytes()[: _FLAGS.size])
    return Flags(stop=stop, dump=dump)


def read_beat(folder: str | os.PathLike[str], local_rank: int) -> Beat | None:
    """
    The last whole beat of a rank; None where it has not beaten yet, or beats too fast to be read.

    Raises FileNotFoundError where the folder was not laid out for this rank.
    """
    fd = os.open(beat_file(folder, local_rank), os.O_RDONLY)
    try:
        newest = _newest(os.pread(fd, _SIZE, 0))
        for _ in range(_READS):
            # A copy made while the rank writes may mix two beats under equal numbers; the numbers
            # only grow, so a copy that is found again was never torn.
            again = _newest(os.pread(fd, _SIZE, 0))
            if newest == again:
                break
            newest = again
        else:
            return None
    finally:
        os.close(fd)
    if newest is None:
        return None
    seq, step, beat_ns, pid, code, phase_ns, committed = newest
    phase = PHASES[code] if 0 <= code < len(PHASES) else ""
    return Beat(seq, pid, step, phase, beat_ns, phase_ns, committed)


def _newest(data: bytes) -> tuple[int, ...] | None:
    """`seq, step, beat_ns, pid, phase code, phase_ns, committed` of the newest whole slots."""
    if len(data) < _SIZE:
        return None
    beat = _newest_slot(data, _BEAT, 0)
    state = _newest_slot(data, _STATE, _STATE_AT)
    return (*beat[:-1], *state[1:-1]) if beat and state else None


def _newest_slot(data: bytes, record: struct.Struct, at: int) -> tuple[int, ...] | None:
    slots = [record.unpack_from(data, at + offset) for offset in (0, record.size)]
    return max((slot for slot in slots if slot[0] == slot[-1] != 0), default=None)


class BeatWriter:
    """
    The rank's side: its beat file and the flags, mapped once. OSError where they are not there.

    `beat` and `stop` are on the step path: no file operation, no allocation beyond a few integers.
    """

    def __init__(self, folder: str | os.PathLike[str], local_rank: int) -> None:
        self._file = _map(beat_file(folder, local_rank), _SIZE, write=True)
        self.flags: Sequence[int] = memoryview(
            _map(Path(folder) / FLAGS_FILE, _FLAGS.size, write=False)
        ).cast("Q")
        self._pack = _BEAT.pack_into
        last = _newest_slot(self._file[:], _BEAT, 0)
        self._seq = last[0] if last else 0
        last = _newest_slot(self._file[:], _STATE, _STATE_AT)
        self._state_seq = last[0] if last else 0
        self._pid = os.getpid()
        self.step = -1
        """The last ended step."""
        self._committed = -1
        self._phase = 0
        self._phase_ns = monotonic_ns()
        self._write_state()

    @property
    def phase(self) -> Phase:
        """The phase that was set last."""
        return PHASES[self._phase]

    def beat(self, step: int) -> None:
        """The rank has ended `step`. The first beat ends the phase `init`."""
        self.step = step
        if self._phase == 0:
            self.enter(Phase.STEP)
        self._seq = seq = self._seq + 1
        self._pack(self._file, (seq & 1) << 5, seq, step, monotonic_ns(), seq)  # 32 bytes a slot

    def enter(self, phase: Phase) -> None:
        """A phase begins: that is a sign of life, too."""
        self._phase = PHASES.index(phase)
        self._phase_ns = monotonic_ns()
        self._write_state()

    def committed(self, step: int) -> None:
        """The rank knows `step` to be committed."""
        self._committed = step
        self._write_state()

    def stop(self) -> bool:
        """Whether the agent asks this node's ranks to end."""
        return self.flags[0] != 0

    def dump(self) -> int:
        """The number of the last demand for a dump."""
        return self.flags[1]

    def _write_state(self) -> None:
        self._state_seq = seq = self._state_seq + 1
        at = _STATE_AT + (seq & 1) * _STATE.size
        fields = (self._pid, self._phase, self._phase_ns, self._committed)
        _STATE.pack_into(self._file, at, seq, *fields, seq)
        self._seq = seq = self._seq + 1
        self._pack(self._file, (seq & 1) << 5, seq, self.step, monotonic_ns(), seq)


def _map(path: Path, size: int, *, write: bool) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR if write else os.O_RDONLY)
    try:
        return mmap.mmap(fd, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if write else 0))
    finally:
        os.close(fd)
