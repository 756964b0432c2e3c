"""
Starting programs that live on, and reaping them: the half of `base.proc` that node agents need.

It stands alone because `subprocess` would cost an agent a tenth of its start-up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainctl.base.processes import Identity, identity_of


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
    return identity_of(pid) or Identity(pid, 0, "")


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
