"""The guard alone: what it lets through, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.node_bench import wait_for
from trainctl.base.processes import (
    Identity,
    descendants,
    identity_of,
    is_alive,
    kill_all,
    own_processes_with,
    send_signal,
)
from trainctl.node.launcher import guard_argv

PYTHON = (sys.executable, "-I", "-S", "-c")
#: A tree as training has it: a plain child, one in a session of its own, one daemonised; all deaf.
TREE = """
import os, signal, sys, time
for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(signum, signal.SIG_IGN)
if os.fork() == 0: time.sleep(600)
if os.fork() == 0: os.setsid(); time.sleep(600)
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    time.sleep(600)
open(sys.argv[1], "w").close()
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def mark() -> Iterator[dict[str, str]]:
    """An environment whose bearers are gone after the test."""
    mark = {"TRAINCTL_TEST": os.urandom(8).hex()}
    yield mark
    kill_all([each for each, _ in own_processes_with(mark)], 5.0)


def guard(
    mark: dict[str, str], *command: str, options: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    argv = [*guard_argv("--parent", str(os.getpid()), *options), *command]
    return subprocess.Popen(argv, env={**os.environ, **mark}, stderr=subprocess.PIPE)


def wait_gone(mark: dict[str, str], bound_s: float = 5.0) -> None:
    wait_for(lambda: not own_processes_with(mark), bound_s)


def test_the_exit_code_comes_through_and_is_written_down(
    tmp_path: Path, mark: dict[str, str]
) -> None:
    file = tmp_path / "exit.json"
    with guard(mark, "sh", "-c", "exit 3", options=("--exit-file", str(file))) as child:
        assert child.wait(5) == 3
    said = json.loads(file.read_text())
    assert (said["code"], said["signal"], said["swept"]) == (3, None, False)
    assert said["at_ms"] > 1_700_000_000_000
    assert said["mono_ns"] > 0
    assert said["pid"] > 0


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1, signal.SIGTERM])
def test_it_ends_by_the_signal_that_ended_its_command(
    tmp_path: Path, mark: dict[str, str], signum: signal.Signals
) -> None:
    file = tmp_path / "exit.json"
    command = f"kill -{signum.value} $$"
    with guard(mark, "sh", "-c", command, options=("--exit-file", str(file))) as child:
        assert child.wait(5) == -signum
    said = json.loads(file.read_text())
    assert (said["code"], said["signal"]) == (None, signum)


def test_a_missing_program_is_127_and_named(mark: dict[str, str]) -> None:
    with guard(mark, "/no/such/program") as child:
        assert child.wait(5) == 127
        assert child.stderr is not None
        assert b"/no/such/program" in child.stderr.read()


def test_nothing_is_started_for_a_parent_that_is_not_there(
    tmp_path: Path, mark: dict[str, str]
) -> None:
    trace = tmp_path / "trace"
    argv = [*guard_argv("--parent", "1"), "touch", str(trace)]
    done = subprocess.run(argv, env={**os.environ, **mark}, capture_output=True, check=False)
    assert done.returncode == 125
    assert not trace.exists()


def test_a_guard_under_no_guard_starts_nothing(tmp_path: Path, mark: dict[str, str]) -> None:
    trace = tmp_path / "trace"
    env = {
        **os.environ,
        **mark,
        "TRAINCTL_GUARD": str(os.getpid()),
    }  # our parent, no ancestor of it
    argv = [*guard_argv("--under-guard"), "touch", str(trace)]
    assert subprocess.run(argv, env=env, capture_output=True, check=False).returncode == 125
    assert not trace.exists()


def test_what_the_command_leaves_behind_dies_with_it(tmp_path: Path, mark: dict[str, str]) -> None:
    with guard(mark, *PYTHON, TREE, str(tmp_path / "ready"), "0.1") as child:
        assert child.wait(5) == 0
    assert own_processes_with(mark) == ()


@pytest.mark.parametrize("stopped", [False, True])
def test_the_death_of_its_parent_is_the_death_of_the_tree(
    tmp_path: Path, mark: dict[str, str], stopped: bool
) -> None:
    ready, file = tmp_path / "ready", tmp_path / "exit.json"
    parent = f"""
import os, subprocess, sys
argv = [*{guard_argv()[:-1]!r}, "--parent", str(os.getpid()), "--exit-file", {str(file)!r}, "--"]
subprocess.Popen([*argv, *{PYTHON!r}, {TREE!r}, {str(ready)!r}, "600"]).wait()
"""
    with subprocess.Popen([*PYTHON, parent], env={**os.environ, **mark}) as top:
        wait_for(ready.exists)
        if stopped:
            for each in descendants(descendants(top.pid)[0].pid):
                send_signal(each, signal.SIGSTOP)
        top.kill()
    wait_gone(mark)
    assert json.loads(file.read_text())["swept"] is True


def test_a_thread_that_ends_is_not_the_parents_death(tmp_path: Path, mark: dict[str, str]) -> None:
    parent = f"""
import os, subprocess, threading, time
argv = [*{guard_argv()[:-1]!r}, "--parent", str(os.getpid()), "--", "sh", "-c", "sleep 0.7; exit 5"]
def start():
    global child
    child = subprocess.Popen(argv)
    time.sleep(0.3)
thread = threading.Thread(target=start); thread.start(); thread.join()
raise SystemExit(child.wait())
"""
    with subprocess.Popen([*PYTHON, parent], env={**os.environ, **mark}) as top:
        assert top.wait(10) == 5


def test_a_killed_guard_takes_its_command_along(tmp_path: Path, mark: dict[str, str]) -> None:
    start = tmp_path / "start.json"
    with guard(mark, "sleep", "600", options=("--start-file", str(start))) as child:
        said = wait_for(lambda: start.exists() and json.loads(start.read_text()))
        assert said["guard"] == child.pid
        command = identity_of(said["pid"])
        assert command is not None
        child.kill()
        wait_for(lambda: not is_alive(command))


def test_term_int_and_hup_to_the_guard_change_nothing(mark: dict[str, str]) -> None:
    with guard(mark, *PYTHON, "import time; time.sleep(0.5); raise SystemExit(7)") as child:
        wait_for(lambda: descendants(child.pid))
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            child.send_signal(signum)
        assert child.wait(5) == 7


@pytest.mark.parametrize("ignored", [False, True])
def test_the_command_ignores_term_only_where_asked_and_the_rest_as_a_shell_leaves_it(
    mark: dict[str, str], ignored: bool
) -> None:
    probe = "grep -E 'SigIgn|SigBlk' /proc/self/status"
    options = ("--ignore-term",) if ignored else ()
    argv = [*guard_argv("--parent", str(os.getpid()), *options), "sh", "-c", probe]
    # Popen restores SIGPIPE and SIGXFSZ, so what is left is the guard's doing.
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    blocked, ignoring = (int(line.split()[1], 16) for line in sorted(out.splitlines()))
    assert blocked == 0
    bits = {number for number in range(1, 32) if ignoring >> (number - 1) & 1}
    assert bits == ({signal.SIGTERM} if ignored else set())


def test_a_number_that_was_used_again_is_not_signalled() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        me = identity_of(child.pid)
        assert me is not None
        other = Identity(me.pid, me.start_ticks - 1, me.boot)
        before_boot = Identity(me.pid, me.start_ticks, "another boot")
        assert not is_alive(other)
        assert not is_alive(before_boot)
        assert not send_signal(other, signal.SIGKILL)
        assert not send_signal(before_boot, signal.SIGKILL)
        assert is_alive(me)
        child.kill()
        wait_for(lambda: not is_alive(me))  # a zombie is dead
