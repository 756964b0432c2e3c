"""The one door to other programs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from support.node_bench import wait_for
from trainctl.base.proc import NOT_FOUND, OUTPUT_LIMIT, reap, run, spawn
from trainctl.base.processes import descendants, is_alive, kill_tree, own_processes_with, stat_of


def test_streams_code_and_input_come_through() -> None:
    done = run(["sh", "-c", "cat; echo oops >&2; exit 4"], 5, input="é")
    assert (done.code, done.out, done.err) == (4, "é", "oops\n")
    assert not done.timed_out
    assert not done.truncated


def test_a_missing_program_is_an_answer() -> None:
    done = run(["/no/such/program"], 5)
    assert done.code == NOT_FOUND
    assert "/no/such/program" in done.err


def test_a_command_killed_by_a_signal_is_negative() -> None:
    assert run(["sh", "-c", "kill -9 $$"], 5).code == -9


def test_a_time_out_kills_the_command_and_its_children() -> None:
    mark = {"TRAINCTL_TEST": os.urandom(8).hex()}
    began = time.monotonic()
    done = run(["sh", "-c", "sleep 600 & sleep 600"], 0.3, env={**os.environ, **mark})
    assert done.timed_out
    assert done.code == -9
    assert time.monotonic() - began < 5
    wait_for(lambda: not own_processes_with(mark))


def test_a_child_that_keeps_the_pipe_open_does_not_hold_us() -> None:
    mark = {"TRAINCTL_TEST": os.urandom(8).hex()}
    began = time.monotonic()
    done = run(["sh", "-c", "sleep 600 & echo said"], 30, env={**os.environ, **mark})
    assert (done.code, done.out, done.timed_out) == (0, "said\n", False)
    assert time.monotonic() - began < 10
    for each, _ in own_processes_with(mark):
        kill_tree(each, 5.0)


def test_endless_output_is_cut_and_does_not_block() -> None:
    done = run(["head", "-c", str(3 * OUTPUT_LIMIT), "/dev/zero"], 20)
    assert (done.code, len(done.out), done.truncated) == (0, OUTPUT_LIMIT, True)


def test_input_that_nobody_reads_is_no_error() -> None:
    assert run(["true"], 5, input=b"x" * 1_000_000).code == 0


def test_a_spawned_child_lives_on_with_its_output_in_files(tmp_path: Path) -> None:
    who = spawn(
        ["sh", "-c", "echo out; echo err >&2; ps -o sid= -p $$"],
        stdout=tmp_path / "log",
        new_session=True,
    )
    assert wait_for(lambda: reap().get(who.pid) == 0)
    lines = (tmp_path / "log").read_text().split()
    assert lines == ["out", "err", str(who.pid)]


def test_a_tree_dies_whole_with_helpers_in_sessions_of_their_own() -> None:
    code = "import os,time\nfor _ in range(3):\n  if not os.fork(): os.setsid()\ntime.sleep(600)"
    who = spawn([sys.executable, "-I", "-S", "-c", code])
    below = wait_for(lambda: len(found := descendants(who.pid)) == 7 and found)
    assert kill_tree(who, 5.0) == ()
    assert not any(is_alive(each) for each in (who, *below))
    assert wait_for(lambda: reap().get(who.pid) == -9)


def test_a_name_with_brackets_and_spaces_does_not_confuse_stat(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    who = spawn([str(odd), "600"])
    try:
        stat = wait_for(lambda: (found := stat_of(who.pid)) and found.state == "S" and found)
        assert stat.ppid == os.getpid()
    finally:
        kill_tree(who, 5.0)
        reap()
