"""
The log files of an attempt: which there are, the ends of them, and what is still being written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from trainctl.adapters.journal import read_journal
from trainctl.base.clock import Clock
from trainctl.base.rundir import RunDir
from trainctl.model.errors import UsageError
from trainctl.model.events import AttemptExited

TAIL_BYTES = 1 << 20
"""No more than this is read of a file for its last lines."""
FOLLOW_S = 0.25
CHUNK_BYTES = 1 << 16

_RANK = re.compile(r"rank-(\d+)\.(out|err)")


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """
    One log file. `rank` is None for the agent's and the launcher's; `at_ms` is its last change.
    """

    attempt: int
    node: str
    name: str
    path: str
    rank: int | None = None
    bytes: int = 0
    at_ms: int = 0


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    """What `trainctl logs` found; `why` says how the files were chosen where nobody named them."""

    run_dir: str
    attempt: int
    files: tuple[LogFile, ...]
    why: str = ""


def logs_of(
    run: RunDir, *, attempt: int | None = None, node: str = "", rank: int | None = None
) -> Logs:
    """
    The files of one attempt (the latest by default) on one node or of one rank.

    Where neither is named: those of the rank that failed first, else of rank 0, else all. Raises
    UsageError, naming what there is, where nothing fits.
    """
    numbers = _attempts(run)
    if not numbers:
        raise UsageError(f"{run.root}: no attempt has been launched yet, so there are no logs")
    number = numbers[-1] if attempt is None else attempt
    if number not in numbers:
        raise UsageError(f"--attempt {number}: no such attempt; there are {_span(numbers)}")
    files = tuple(_files(run, number))
    if node or rank is not None:
        return Logs(run_dir=str(run.root), attempt=number, files=_named(files, node, rank))
    chosen, why = _telling(run, number, files)
    return Logs(run_dir=str(run.root), attempt=number, files=chosen, why=why)


def all_logs_of(run: RunDir, attempt: int | None = None) -> Logs:
    """All log files, of one attempt or of the whole run; `attempt` 0 in the answer: of all."""
    numbers = _attempts(run)
    wanted = numbers if attempt is None else [n for n in numbers if n == attempt]
    files = tuple(one for number in wanted for one in _files(run, number))
    return Logs(run_dir=str(run.root), attempt=attempt or 0, files=files)


def last_lines(path: Path, lines: int) -> tuple[str, ...]:
    """The last lines of a file, of its last megabyte at most; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-lines:]) if lines > 0 else ()


def follow(
    files: Sequence[LogFile], clock: Clock, *, gave_up: Callable[[], bool] = lambda: False
) -> Iterator[tuple[LogFile, str]]:
    """What is appended to the files from now on, until the caller gives up."""
    places = {file.path: _size(Path(file.path)) for file in files}
    while True:
        for file in files:
            text, places[file.path] = _read_from(Path(file.path), places[file.path])
            if text:
                yield file, text
        if gave_up():
            return
        clock.sleep(FOLLOW_S)


def _attempts(run: RunDir) -> list[int]:
    try:
        return sorted(int(entry) for entry in os.listdir(run.attempts) if entry.isdigit())
    except FileNotFoundError:
        return []


def _files(run: RunDir, number: int) -> Iterator[LogFile]:
    try:
        nodes = sorted(os.listdir(run.nodes(number)))
    except (FileNotFoundError, NotADirectoryError):
        return
    for node in nodes:
        folder = run.logs(number, node)
        try:
            names = sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in names:
            path = folder / name
            if not path.is_file():
                continue
            found = path.stat()
            of_rank = _RANK.fullmatch(name)
            yield LogFile(
                attempt=number,
                node=node,
                name=name,
                path=str(path),
                rank=int(of_rank[1]) if of_rank else None,
                bytes=found.st_size,
                at_ms=found.st_mtime_ns // 1_000_000,
            )


def _named(files: tuple[LogFile, ...], node: str, rank: int | None) -> tuple[LogFile, ...]:
    nodes = sorted({file.node for file in files})
    if node and node not in nodes:
        raise UsageError(f"--node {node}: has no logs here; there are {', '.join(nodes) or 'none'}")
    found = tuple(
        file
        for file in files
        if (not node or file.node == node) and (rank is None or file.rank == rank)
    )
    if not found:
        ranks = sorted({file.rank for file in files if file.rank is not None})
        raise UsageError(f"--rank {rank}: has no logs here; there are {_span(ranks) or 'none'}")
    return found


def _telling(
    run: RunDir, number: int, files: tuple[LogFile, ...]
) -> tuple[tuple[LogFile, ...], str]:
    """The files of the rank that failed first, else of rank 0."""
    first: int | None = None
    for event in read_journal(run).events:
        if isinstance(event, AttemptExited) and event.attempt == number and event.first:
            first = event.first[0].rank
    for rank, why in ((first, "the rank that failed first"), (0, "rank 0")):
        found = tuple(file for file in files if rank is not None and file.rank == rank)
        if found:
            return found, f"{why}; --rank and --node name others, --list shows all"
    return files, ""


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    low, high = numbers[0], numbers[-1]
    whole = list(numbers) == list(range(low, high + 1))
    return (
        (f"{low} to {high}" if low < high else f"{low}") if whole else ", ".join(map(str, numbers))
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_from(path: Path, place: int) -> tuple[str, int]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            place = place if place <= size else 0  # it was cut: begin again
            file.seek(place)
            data = file.read(CHUNK_BYTES)
    except OSError:
        return "", place
    return data.decode(errors="replace"), place + len(data)
