"""
What /proc says of processes, and their end: by identity, so that a used-again pid is never trusted.

A process is named by (pid, start time, boot): the pid alone may belong to somebody else by now.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from trainctl.base.clock import boot_id as read_boot_id

_KILL_PAUSE_S = 0.005
_DEAD = frozenset("ZXx")


class Identity(NamedTuple):
    """A process beyond doubt. `start_ticks` counts clock ticks since the boot `boot`."""

    pid: int
    start_ticks: int
    boot: str


class ProcStat(NamedTuple):
    """The few fields of /proc/PID/stat that we use."""

    ppid: int
    state: str
    start_ticks: int

    @property
    def is_dead(self) -> bool:
        """A zombie has ended; only its number is left."""
        return self.state in _DEAD


@functools.cache
def _boot() -> str:
    return read_boot_id()


def stat_of(pid: int) -> ProcStat | None:
    """What /proc says of a process; None when there is none of that number."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # The name stands in brackets and may hold anything, brackets too.
            fields = file.read(4096).rpartition(b")")[2].split()
        return ProcStat(int(fields[1]), fields[0].decode(), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def identity_of(pid: int) -> Identity | None:
    """The identity of a process that lives; None for a zombie or where there is none."""
    stat = stat_of(pid)
    return None if stat is None or stat.is_dead else Identity(pid, stat.start_ticks, _boot())


def is_alive(identity: Identity) -> bool:
    """Whether exactly that process lives; a zombie does not."""
    stat = stat_of(identity.pid)
    return (
        stat is not None
        and not stat.is_dead
        and stat.start_ticks == identity.start_ticks
        and identity.boot == _boot()
    )


def process_table() -> dict[int, ProcStat]:
    """All processes that can be seen, zombies too."""
    found = ((int(name), stat_of(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: stat for pid, stat in found if stat is not None}


def descendants(pid: int) -> tuple[Identity, ...]:
    """All living processes below `pid`, parents before their children."""
    table = process_table()
    children: dict[int, list[int]] = {}
    for child, stat in table.items():
        children.setdefault(stat.ppid, []).append(child)
    order: list[int] = []
    todo = [pid]
    while todo:
        below = children.pop(todo.pop(), [])
        order += below
        todo += below
    boot = _boot()
    return tuple(
        Identity(each, table[each].start_ticks, boot) for each in order if not table[each].is_dead
    )


def ancestors(pid: int) -> frozenset[int]:
    """The pids above `pid`."""
    above: set[int] = set()
    while (stat := stat_of(pid)) is not None and stat.ppid > 0 and stat.ppid not in above:
        pid = stat.ppid
        above.add(pid)
    return frozenset(above)


def environment_of(pid: int) -> dict[str, str] | None:
    """The environment a process was started with; None where it cannot be read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def own_processes_with(wanted: Mapping[str, str]) -> tuple[tuple[Identity, dict[str, str]], ...]:
    """Living processes of our own user whose environment holds all of `wanted`, with it."""
    found: list[tuple[Identity, dict[str, str]]] = []
    uid = os.getuid()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != uid:
                continue
        except OSError:
            continue
        # Identity first: had the number changed hands since, the KILL by identity would miss.
        identity = identity_of(int(name))
        environment = environment_of(int(name))
        if identity is None or environment is None:
            continue
        if all(environment.get(key) == value for key, value in wanted.items()):
            found.append((identity, environment))
    return tuple(found)


# --- ending -----------------------------------------------------------------------------------


def send_signal(identity: Identity, signum: int) -> bool:
    """Signal exactly that process; False when it has gone."""
    try:
        fd = os.pidfd_open(identity.pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.EPERM):
            return False
        fd = -1  # a kernel before 5.3: a race of microseconds is left
    try:
        if not is_alive(identity):
            return False
        if fd >= 0:
            signal.pidfd_send_signal(fd, signum)
        else:
            os.kill(identity.pid, signum)
        return True
    except ProcessLookupError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)


def kill_all(victims: Iterable[Identity], timeout_s: float) -> tuple[Identity, ...]:
    """KILL processes and wait until they are gone; those left when the bound has passed."""
    left = tuple(victims)
    for victim in left:
        send_signal(victim, signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    while (left := tuple(v for v in left if is_alive(v))) and time.monotonic() < deadline:
        time.sleep(_KILL_PAUSE_S)
    return left


def kill_tree(root: Identity, timeout_s: float) -> tuple[Identity, ...]:
    """
    KILL a process and all below it at one instant, as far as that can be had: they are frozen
    first, so that none can fork, react or hand its children on while the others die. Those left.
    """
    if not is_alive(root):
        return ()
    frozen: dict[Identity, None] = {root: None}
    send_signal(root, signal.SIGSTOP)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        new = [each for each in descendants(root.pid) if each not in frozen]
        if not new:
            break
        for each in new:
            send_signal(each, signal.SIGSTOP)
            frozen[each] = None
    return kill_all(frozen, max(0.0, deadline - time.monotonic()))
