"""
Runs one command so that nothing of it outlives its end, or the end of whoever started it.

    python -I -S guard.py [--parent PID | --under-guard] [--exit-file F] [--start-file F]
                          [--stdout F] [--stderr F] [--cwd D] [--ignore-term] -- COMMAND…

Stdlib only, and run as a plain file, so that it starts in a few milliseconds and needs no package.

- It is a child subreaper: helpers that daemonise (double fork, setsid) come back to it as children.
- When its parent dies (parent-death signal, caught) it kills every descendant. Its child has
  parent-death signal KILL, so that a KILL of the guard itself reaches the command as well.
- When the command ends it writes the exit file (`swept`: killed for the death of our parent), then
  kills every descendant that is left, then ends the same way: same code, or by the same signal.

`--parent PID` is the parent it expects: one that died before the parent-death signal was armed is
noticed. `--under-guard` is for a guard that something else starts (torchrun): the guard named in
`TRAINCTL_GUARD` must still be an ancestor of its parent. `{rank}` in F is replaced by `$RANK`.
`--ignore-term` starts the command with SIGTERM ignored, which survives exec and fork: a TERM that
is sent to every process of a job is then a matter of the agent alone.

Exit codes of its own: 125 wrong usage or no parent, 126 or 127 the command cannot be executed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False  # typing itself would cost a fifth of the start-up
if TYPE_CHECKING:
    from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61
ANY_PROCESS = ctypes.c_ulong(-1)

PARENT_DIED = signal.SIGUSR2
#: Sent to a whole job by schedulers and terminals; the guard has to outlive its command.
DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
#: Python ignores these for itself; a command must find them as a shell would leave them.
PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
#: What a process in uninterruptible sleep may cost; it is left to the next guard up.
SWEEP_BOUND_S = 10.0
SWEEP_PAUSE_S = 0.005
#: Guards further down lose their commands to the sweep and end by themselves, having written how.
GUARD_GRACE_S = 1.0
USAGE = 125

FLAGS = ("--under-guard", "--ignore-term")
VALUES = ("--parent", "--exit-file", "--start-file", "--stdout", "--stderr", "--cwd")


def main() -> None:
    """Run the command of `sys.argv` and end as it ended."""
    options, command = parse(sys.argv[1:])
    ignored = [signum for signum in DEAF_TO if signal.getsignal(signum) is signal.SIG_IGN]
    for signum in DEAF_TO:
        signal.signal(signum, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, PARENT_DIED})
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, PARENT_DIED)
    parent = os.getppid()
    if not parent_is_there(parent, options):
        refuse(f"its parent died before the guard of {command[0]!r} was ready; nothing was started")
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        become(command, options, guard, mask, ignored)
    if "--start-file" in options:
        write_whole(
            options["--start-file"],
            f'{{"guard": {guard}, "pid": {child}, "at_ms": {time.time_ns() // 1_000_000}}}\n',
        )
    status, swept = watch(child, parent)
    ended_ms, ended_ns = time.time_ns() // 1_000_000, time.monotonic_ns()
    code = os.waitstatus_to_exitcode(status)
    if "--exit-file" in options:
        write_whole(
            options["--exit-file"],
            f'{{"pid": {child}, "code": {code if code >= 0 else "null"}, '
            f'"signal": {-code if code < 0 else "null"}, '
            f'"at_ms": {ended_ms}, "mono_ns": {ended_ns}, "swept": {str(swept).lower()}}}\n',
        )
    sweep()
    end_as(code)


def parse(args: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options by name, and the command; exits with 125 when they make no sense."""
    options: dict[str, str] = {}
    rest = iter(args)
    for arg in rest:
        if arg == "--":
            command = list(rest)
            if command:
                return options, command
            break
        if arg in FLAGS:
            options[arg] = "1"
        elif arg in VALUES and (value := next(rest, None)) is not None:
            options[arg] = value.replace("{rank}", os.environ.get("RANK", "none"))
        else:
            refuse(f"unknown or incomplete option {arg!r}; see the head of {__file__}")
    return refuse("no command after --")


def refuse(why: str) -> NoReturn:
    """Say why nothing is started, and end."""
    os.write(2, f"trainctl guard: {why}\n".encode())
    os._exit(USAGE)


def prctl(option: int, value: int | ctypes.c_ulong, *, needed: bool = True) -> None:
    """Call prctl(2); a refusal of what the guard stands on is fatal."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0 and needed:
        refuse(f"prctl({option}): {os.strerror(ctypes.get_errno())}")


def parent_is_there(parent: int, options: dict[str, str]) -> bool:
    """False when the parent-death signal was armed too late: somebody else is the parent now."""
    if "--parent" in options:
        return parent == int(options["--parent"])
    if "--under-guard" not in options:
        return True
    guard = os.environ.get("TRAINCTL_GUARD", "")
    above = parents()
    pid = parent
    while pid > 1 and str(pid) != guard:
        pid = above.get(pid, (0, 0))[0]
    return str(pid) == guard and str(parent) != guard


def become(
    command: list[str],
    options: dict[str, str],
    guard: int,
    mask: set[int | signal.Signals],
    ignored: list[signal.Signals],
) -> NoReturn:
    """In the child: set up signals, output and environment, then exec the command."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(USAGE)
    prctl(PR_SET_PTRACER, ANY_PROCESS, needed=False)  # py-spy, where Yama is; else refused
    for signum in (*DEAF_TO, *PYTHONS_OWN):
        signal.signal(signum, signal.SIG_IGN if signum in ignored else signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "--ignore-term" in options else signal.SIG_DFL)
    os.environ["TRAINCTL_GUARD"] = str(guard)
    try:
        for option, fd in (("--stdout", 1), ("--stderr", 2)):
            if option in options:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                os.dup2(os.open(options[option], flags, 0o640), fd)
        if "--cwd" in options:
            os.chdir(options["--cwd"])
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"trainctl guard: error: cannot start {command[0]!r}: {error}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def watch(child: int, parent: int) -> tuple[int, bool]:
    """
    Wait for the child, or for the parent's death, which is made the child's.

    Its wait status, and whether it was we who killed it.
    """
    swept = False
    while True:
        signum = signal.sigwait({signal.SIGCHLD, PARENT_DIED})
        # The signal follows the parent's *thread*: while the parent is the same nothing happened,
        # and the kernel sends it again when the process goes.
        if signum == PARENT_DIED and os.getppid() != parent:
            kill_descendants(spare_guards=True)
            swept = True
        if (status := reap().get(child)) is not None:
            return status, swept


def reap() -> dict[int, int]:
    """Wait statuses of all children that have ended; helpers that came back to us included."""
    ended: dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return ended
            ended[pid] = status
    except ChildProcessError:
        return ended


def sweep() -> None:
    """Kill descendants until none is left: a subreaper without children has none at all."""
    began = time.monotonic()
    while time.monotonic() < began + SWEEP_BOUND_S:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            kill_descendants(spare_guards=time.monotonic() < began + GUARD_GRACE_S)
            time.sleep(SWEEP_PAUSE_S)


def kill_descendants(*, spare_guards: bool) -> None:
    """One KILL to every descendant that can be seen now, but perhaps for guards like this one."""
    table = parents()
    below = {os.getpid()}
    grew = True
    while grew:
        more = {pid for pid, (ppid, _) in table.items() if ppid in below} - below
        below |= more
        grew = bool(more)
    for pid in below - {os.getpid()}:
        if not (spare_guards and is_guard(pid)):
            kill(pid, table[pid][1])


def is_guard(pid: int) -> bool:
    """Whether that process runs this file, by its command line: who pretends gains a second."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            return os.fsencode(__file__) in file.read(4096).split(b"\0")[:5]
    except OSError:
        return False


def kill(pid: int, start_ticks: int) -> None:
    """KILL the process `pid` that started at `start_ticks`, never one that took its number."""
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:  # gone, or a kernel before 5.3
        if isinstance(error, ProcessLookupError) or stat_of(pid)[1] != start_ticks:
            return
        os.kill(pid, signal.SIGKILL)
        return
    try:
        if stat_of(pid)[1] == start_ticks:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def parents() -> dict[int, tuple[int, int]]:
    """Parent and start time (clock ticks since boot) of every process."""
    return {int(name): stat_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}


def stat_of(pid: int) -> tuple[int, int]:
    """Parent and start time of a process; zeros when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        return int(fields[1]), int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0, 0


def write_whole(path: str, text: str) -> None:
    """Write a file that is seen whole or not at all; a failure is said, and stops nothing."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError as error:
        os.write(2, f"trainctl guard: cannot write {path}: {error}\n".encode())


def end_as(code: int) -> None:
    """End with the code, or by the signal, that the command ended with."""
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file of one crash is enough
    signum = -code
    if signum not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
    os.kill(os.getpid(), signum)
    os._exit(128 + signum)


if __name__ == "__main__":
    main()
