"""
Beats and flags: how the ranks of a node and its agent see each other, in node-local memory alone.

    DIR/flags        two words, written by the agent alone, mapped by every rank: stop, dump
    DIR/beat.<N>     local rank N, written by that rank alone, read by the agent

A beat file holds two slots that are written in turn, so that a rank killed or stopped in the middle
of a beat leaves the one before it readable. A slot is `seq, pid, step, phase, beat_ns, phase_ns,
committed, seq`: it is whole where both sequence numbers are equal and not 0. `struct.pack_into`
clears what it is going to fill and fills it in order, so an interrupted slot shows 0 or two
different numbers.

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

_SLOT = struct.Struct("=QqqqqqqQ")
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
        beat_file(path, local_rank).write_bytes(bytes(2 * _SLOT.size))
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
        newest = _newest(os.pread(fd, 2 * _SLOT.size, 0))
        for _ in range(_READS):
            # A copy made while the rank writes may mix two beats under equal numbers; the numbers
            # only grow, so a copy that is found again was never torn.
            again = _newest(os.pread(fd, 2 * _SLOT.size, 0))
            if newest == again:
                break
            newest = again
        else:
            return None
    finally:
        os.close(fd)
    if newest is None:
        return None
    seq, pid, step, code, beat_ns, phase_ns, committed, _ = newest
    phase = PHASES[code] if 0 <= code < len(PHASES) else ""
    return Beat(seq, pid, step, phase, beat_ns, phase_ns, committed)


def _newest(data: bytes) -> tuple[int, ...] | None:
    if len(data) < 2 * _SLOT.size:
        return None
    slots = [_SLOT.unpack_from(data, offset) for offset in (0, _SLOT.size)]
    whole = [slot for slot in slots if slot[0] == slot[-1] != 0]
    return max(whole, default=None)


class BeatWriter:
    """
    The rank's side: its beat file and the flags, mapped once. OSError where they are not there.

    `beat` and `stop` are on the step path: no file operation, no allocation beyond a few integers.
    """

    def __init__(self, folder: str | os.PathLike[str], local_rank: int) -> None:
        self._slots = _map(beat_file(folder, local_rank), 2 * _SLOT.size, write=True)
        self.flags: Sequence[int] = memoryview(
            _map(Path(folder) / FLAGS_FILE, _FLAGS.size, write=False)
        ).cast("Q")
        self._pack = _SLOT.pack_into
        last = _newest(self._slots[:])
        self._seq = last[0] if last else 0
        self._pid = os.getpid()
        self.step = -1
        """The last ended step."""
        self._committed = -1
        self._phase = 0
        self._phase_ns = monotonic_ns()
        self._write(self._phase_ns)

    @property
    def phase(self) -> Phase:
        """The phase that was set last."""
        return PHASES[self._phase]

    def beat(self, step: int) -> None:
        """The rank has ended `step`. The first beat ends the phase `init`."""
        now = monotonic_ns()
        self.step = step
        if self._phase == 0:
            self._phase, self._phase_ns = 2, now
        self._seq = seq = self._seq + 1
        self._pack(
            self._slots,
            (seq & 1) << 6,  # 64 bytes a slot
            seq,
            self._pid,
            step,
            self._phase,
            now,
            self._phase_ns,
            self._committed,
            seq,
        )

    def enter(self, phase: Phase) -> None:
        """A phase begins: that is a sign of life, too."""
        self._phase = PHASES.index(phase)
        self._phase_ns = monotonic_ns()
        self._write(self._phase_ns)

    def committed(self, step: int) -> None:
        """The rank knows `step` to be committed."""
        self._committed = step
        self._write(monotonic_ns())

    def stop(self) -> bool:
        """Whether the agent asks this node's ranks to end."""
        return self.flags[0] != 0

    def dump(self) -> int:
        """The number of the last demand for a dump."""
        return self.flags[1]

    def _write(self, now: int) -> None:
        self._seq = seq = self._seq + 1
        fields = (self._pid, self.step, self._phase, now, self._phase_ns, self._committed)
        self._pack(self._slots, (seq & 1) << 6, seq, *fields, seq)


def _map(path: Path, size: int, *, write: bool) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR if write else os.O_RDONLY)
    try:
        return mmap.mmap(fd, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if write else 0))
    finally:
        os.close(fd)
