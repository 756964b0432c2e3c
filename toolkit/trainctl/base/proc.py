"""
The one door to other programs: run one to its end within a bound, or start one that lives on.

No shell, ever; a missing program or a time-out is an answer, not an exception.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainctl.base.processes import Identity as Identity
from trainctl.base.processes import ancestors as ancestors
from trainctl.base.processes import descendants as descendants
from trainctl.base.processes import environment_of as environment_of
from trainctl.base.processes import identity_of as identity_of
from trainctl.base.processes import is_alive as is_alive
from trainctl.base.processes import kill_all as kill_all
from trainctl.base.processes import kill_tree as kill_tree
from trainctl.base.processes import own_processes_with as own_processes_with
from trainctl.base.processes import send_signal as send_signal
from trainctl.base.spawning import reap as reap
from trainctl.base.spawning import spawn as spawn

OUTPUT_LIMIT = 4 << 20
"""Bytes kept of each stream of a finished command; what comes after is read and dropped."""

NOT_FOUND = 127
"""Code of a program that is not there, as a shell says it."""

_CHUNK = 1 << 16
#: After a command's end, for what still comes through pipes that its own children hold open.
_DRAIN_S = 0.5


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
