"""
The one door to other programs: run one to its end within a bound, or start one that lives on; and
what /proc says of processes, by identity, so that a number that was used again is never trusted.

A process is named by (pid, start time, boot): the pid alone may belong to somebody else by now.
"""

from __future__ import annotations

import errno
import functools
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainctl.base.clock import boot_id as read_boot_id

OUTPUT_LIMIT = 4 << 20
"""Bytes kept of each stream of a finished command; what comes after is read and dropped."""

NOT_FOUND = 127
"""Code of a program that is not there, as a shell says it."""

_CHUNK = 1 << 16
#: After a command's end, for what still comes through pipes that its own children hold open.
_DRAIN_S = 0.5
_KILL_PAUSE_S = 0.005
_DEAD = frozenset("ZXx")


class Completed(NamedTuple):
    """
    How a command ended.

    `code` is its exit code, or the negative signal that killed it. With `timed_out` it is -9: the
    command and all it had started were killed. `truncated`: a stream was longer than OUTPUT_LIMIT.
    """

    code: int
    out: str
    err: str
    timed_out: bool = False
    truncated: bool = False


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


# --- running ----------------------------------------------------------------------------------


def run(
    argv: Sequence[str],
    timeout_s: float,
    input: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Completed:
    """
    Run a command to its end, in a session of its own, for `timeout_s` seconds at most.

    It never raises for what the command does: a missing program is code 127 with the reason in
    `err`, one that takes too long is killed with its descendants and says `timed_out`.
    """
    given = input.encode() if isinstance(input, str) else input
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        return Completed(NOT_FOUND, "", f"cannot run {argv[0]}: {error.strerror or error}")
    with child:
        return _communicate(child, given or b"", time.monotonic() + timeout_s)


def _communicate(child: subprocess.Popen[bytes], given: bytes, deadline: float) -> Completed:
    """Feed and drain the command's streams until it has ended or the deadline has passed."""
    identity = identity_of(child.pid)
    streams = {id(pipe): bytearray() for pipe in (child.stdout, child.stderr)}
    truncated = False
    with selectors.DefaultSelector() as waiting:
        for pipe in (child.stdout, child.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            waiting.register(pipe, selectors.EVENT_READ)
        if child.stdin is not None:
            os.set_blocking(child.stdin.fileno(), False)
            waiting.register(child.stdin, selectors.EVENT_WRITE)
        ended = False
        while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(min(left, 0.05)):
                if key.fileobj is child.stdin:
                    given = _feed(child, waiting, given)
                    continue
                chunk = os.read(key.fd, _CHUNK)
                kept = streams[id(key.fileobj)]
                kept += chunk[: OUTPUT_LIMIT - len(kept)]
                truncated = truncated or len(kept) == OUTPUT_LIMIT
                if not chunk:
                    waiting.unregister(key.fileobj)
            if not ended and child.poll() is not None:
                ended = True
                deadline = min(deadline, time.monotonic() + _DRAIN_S)
    timed_out = _wait_or_kill(child, identity, deadline)
    out, err = (
        bytes(streams[id(pipe)]).decode(errors="replace") for pipe in (child.stdout, child.stderr)
    )
    return Completed(child.returncode, out, err, timed_out, truncated)


def _feed(child: subprocess.Popen[bytes], waiting: selectors.BaseSelector, given: bytes) -> bytes:
    """Write what the pipe takes; a command that does not want its input is no error of ours."""
    assert child.stdin is not None
    try:
        given = given[os.write(child.stdin.fileno(), given[:_CHUNK]) :] if given else b""
    except BrokenPipeError:
        given = b""
    if not given:
        waiting.unregister(child.stdin)
        child.stdin.close()
    return given


def _wait_or_kill(
    child: subprocess.Popen[bytes], identity: Identity | None, deadline: float
) -> bool:
    """True when the command had to be killed."""
    try:
        child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        if identity is not None:
            kill_tree(identity, timeout_s=1.0)
        child.kill()
        child.wait()
        return True
    return False


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdout: Path | None = None,
    stderr: Path | None = None,
    new_session: bool = False,
) -> Identity:
    """
    Start a program that lives on, and say who it is; the caller reaps it with `reap`.

    Its standard input is /dev/null; its output is appended to the files, stderr to that of stdout
    where only this is given, else to our own. Call it from the main thread: a parent-death signal
    fires when the parent *thread* ends. Raises OSError where the program cannot be started.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    ]
    if stdout is not None:
        actions.append((os.POSIX_SPAWN_OPEN, 1, str(stdout), append, 0o640))
    if stderr is not None:
        actions.append((os.POSIX_SPAWN_OPEN, 2, str(stderr), append, 0o640))
    elif stdout is not None:
        actions.append((os.POSIX_SPAWN_DUP2, 1, 2))
    pid = os.posix_spawnp(
        argv[0],
        list(argv),
        dict(os.environ if env is None else env),
        file_actions=actions,
        setsid=new_session,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )
    # Ours until we reap it, so the number cannot have been used again.
    return identity_of(pid) or Identity(pid, 0, _boot())


def reap() -> dict[int, int]:
    """Exit codes (negative: signal) of all children that have ended, by pid; never waits."""
    ended: dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return ended
            ended[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return ended


@functools.cache
def _boot() -> str:
    return read_boot_id()


# --- who is who -------------------------------------------------------------------------------


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
