"""
The ranks of one node as the agent sees them: their beats, and the files their guards leave.

    LOCAL/beat.N, flags      see trainctl.train.beats
    LOCAL/guard-R.json       the guard of global rank R and the pid it started
    LOCAL/exit-R.json        how that rank ended
    LOCAL/stop               exists once a stop was asked, for trainers that know no beats
    LOCAL/error-R.json, LOCAL/torchrun/   torchelastic's error files

All of it is node-local memory.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainctl.base.processes import Identity, identity_of, is_alive
from trainctl.model.agent import RankState
from trainctl.model.evidence import RankExit
from trainctl.train.beats import Beat, create_beats, read_beat, set_flag

SAVE = "save"
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """The node-local folder of one attempt; such memory is small, so older ones are removed."""

    path: Path

    @classmethod
    def make(cls, local_dir: Path, run_id: str, attempt: int, ranks: int) -> LocalFolder:
        """Lay it out afresh; folders of this run's lower attempts go."""
        for old in local_dir.glob(f"{run_id}-a[0-9]*"):
            number = old.name.rpartition("-a")[2]
            if number.isdecimal() and int(number) < attempt:
                shutil.rmtree(old, ignore_errors=True)
        path = local_dir / f"{run_id}-a{attempt:04d}"
        path.mkdir(parents=True, exist_ok=True)
        create_beats(path, ranks)
        return cls(path)

    @property
    def stop_file(self) -> Path:
        """For a command with `{stop_file}`."""
        return self.path / "stop"

    @property
    def torchrun_logs(self) -> Path:
        """torchrun's --log-dir: it makes each rank's error file in it."""
        return self.path / "torchrun"

    def guard_file(self, rank: int | str) -> Path:
        """The guard's --start-file."""
        return self.path / f"guard-{rank}.json"

    def exit_file(self, rank: int | str) -> Path:
        """The guard's --exit-file."""
        return self.path / f"exit-{rank}.json"

    def error_file(self, rank: int) -> Path:
        """TORCHELASTIC_ERROR_FILE of a rank that the agent itself starts."""
        return self.path / f"error-{rank}.json"

    def find_error_file(self, rank: int, local_rank: int) -> Path | None:
        """Where the rank's error file is, whoever started the rank."""
        if (own := self.error_file(rank)).exists():
            return own
        return next(self.torchrun_logs.glob(f"*/attempt_*/{local_rank}/error.json"), None)

    def ask_to_stop(self) -> None:
        """Set the flag word and create the stop file."""
        set_flag(self.path, stop=1)
        self.stop_file.touch()

    def remove(self) -> None:
        """All of it was node-local and is of no use to anybody else."""
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass(slots=True)
class _Rank:
    rank: int
    local_rank: int
    guard: Identity | None = None
    pid: int = 0
    beat: Beat | None = None
    end: RankExit | None = None
    #: Monotonic ns of the end, by the guard.
    ended_ns: int = 0


@dataclass(slots=True)
class Ranks:
    """Looks at the ranks of one node; `first` is the global rank of local rank 0."""

    folder: LocalFolder
    node: str
    first: int
    count: int
    #: Monotonic time at which a beat was last seen to move.
    moved_s: float = field(default_factory=time.monotonic)
    #: Monotonic ns at which the agent began to kill; what ends later ended by us.
    killing_since_ns: int | None = None
    _ranks: list[_Rank] = field(init=False)

    def __post_init__(self) -> None:
        self._ranks = [_Rank(self.first + local, local) for local in range(self.count)]

    def look(self) -> None:
        """Read what is new: beats, starts, ends."""
        for each in self._ranks:
            if each.end is not None:
                continue
            beat = read_beat(self.folder.path, each.local_rank)
            if beat is not None and (each.beat is None or beat.seq != each.beat.seq):
                each.beat, self.moved_s = beat, time.monotonic()
            if each.guard is None:
                self._find_guard(each)
            was_alive = each.guard is None or is_alive(each.guard)
            if (said := _read(self.folder.exit_file(each.rank))) is not None:
                # The last beat before the end, which may have come after our look above.
                each.beat = read_beat(self.folder.path, each.local_rank) or each.beat
                self._close(each, said)
            elif not was_alive:
                self._close(each, {"mono_ns": time.monotonic_ns(), "pid": each.pid})

    def close_all(self) -> None:
        """Nothing is left alive: ranks that started and whose end nobody saw are closed, too."""
        self.look()
        for each in self._ranks:
            if each.end is None and each.guard is not None:
                self._close(each, {"mono_ns": time.monotonic_ns(), "pid": each.pid})

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """The ends so far, by rank."""
        return tuple(each.end for each in self._ranks if each.end is not None)

    @property
    def all_ended(self) -> bool:
        """Every rank has started and ended."""
        return len(self.exits) == self.count

    @property
    def have_beaten(self) -> bool:
        """At least one rank beats at all."""
        return any(each.beat is not None for each in self._ranks)

    def states(self) -> tuple[RankState, ...]:
        """What the cell shows of each rank that has started."""
        return tuple(self._states())

    def guard_pids(self) -> frozenset[int]:
        """The guards of the ranks: killed last, so that they can write down the ends."""
        return frozenset(each.guard.pid for each in self._ranks if each.guard is not None)

    def first_failure_ns(self) -> int | None:
        """When the first rank failed on its own; None where none did."""
        return min((each.ended_ns for each in self._ranks if _failed(each.end)), default=None)

    def is_saving(self, limit_s: float) -> bool:
        """
        A save is in flight that may still succeed: begun before any rank failed, and its rank has
        shown a sign of life within `limit_s`.
        """
        failed_ns = self.first_failure_ns()
        oldest_ns = time.monotonic_ns() - int(limit_s * _NS)
        return any(
            each.end is None
            and each.beat is not None
            and each.beat.phase == SAVE
            and each.beat.beat_ns >= oldest_ns
            and (failed_ns is None or each.beat.phase_ns < failed_ns)
            for each in self._ranks
        )

    def _states(self) -> Iterator[RankState]:
        now_ns = time.monotonic_ns()
        for each in self._ranks:
            if each.guard is None and each.beat is None:
                continue
            if (beat := each.beat) is None:
                yield RankState(each.rank)
                continue
            yield RankState(
                rank=each.rank,
                pid=beat.pid,
                step=beat.step,
                phase=beat.phase,
                age_ms=max(0, now_ns - beat.beat_ns) // 1_000_000,
                committed=beat.committed,
            )

    def _find_guard(self, each: _Rank) -> None:
        said = _read(self.folder.guard_file(each.rank))
        if said is not None:
            guard, each.pid = int(said["guard"]), int(said["pid"])
            each.guard = identity_of(guard) or Identity(guard, -1, "")

    def _close(self, each: _Rank, said: dict[str, Any]) -> None:
        each.ended_ns = int(said["mono_ns"])
        beat = each.beat
        killing = self.killing_since_ns
        each.end = RankExit(
            rank=each.rank,
            node=self.node,
            code=said.get("code"),
            signal=said.get("signal"),
            at_ms=int(said.get("at_ms", 0)),
            by_us=bool(said.get("swept")) or (killing is not None and each.ended_ns >= killing),
            pid=int(said["pid"]),
            step=beat.step if beat else -1,
            phase=beat.phase if beat else "",
        )


def _failed(end: RankExit | None) -> bool:
    return end is not None and not end.by_us and end.code != 0


def _read(path: Path) -> dict[str, Any] | None:
    """A file that a guard wrote whole; None while there is none."""
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
