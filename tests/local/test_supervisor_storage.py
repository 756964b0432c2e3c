"""Supervisors over storage that hides, freezes, is stale, is full, or has lost the checkpoints."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from support.runs import (
    SUPPORT,
    events_of,
    never_two_trainers,
    state_of,
    supervisors,
    toy_lines,
    toy_run,
)
from trainctl.model.outcome import EndKind

pytestmark = pytest.mark.timeout(240)


def exits(root: Path) -> list[str]:
    from trainctl.base.rundir import RunDir

    return [str(e.outcome) for e in events_of(RunDir(root), "attempt_exited")]


@pytest.mark.slow
def test_hidden_names_stale_reads_and_a_freeze_are_no_death_and_make_no_second_owner(
    tmp_path: Path,
) -> None:
    run = toy_run(tmp_path / "run", toy=("--steps", "900", "--pace-s", "0.1"))
    with supervisors(run) as crew:
        script = str(SUPPORT / "hostile_supervisors.py")
        child = crew.start(script, str(run.root), "60", "3", "10", "30")
        assert crew.code(child, 200) == 0, crew.log()
        assert exits(run.root) == ["finished"], crew.log()
        assert events_of(run, "node_quarantined") == []
        assert {line[0] for line in toy_lines(run)} == {1}, "the attempt trained on through it all"
        assert never_two_trainers(run)


def test_a_full_checkpoint_folder_is_an_event_and_training_goes_on(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("mounting a small tmpfs needs root")
    small = tmp_path / "small"
    small.mkdir()
    run = toy_run(
        tmp_path / "run", checkpoint_dir=str(small), toy=("--steps", "40", "--ballast-kb", "300")
    )
    with supervisors(run) as crew:
        inner = f"mount -t tmpfs -o size=1m tmpfs {small} && exec {sys.executable} -m trainctl"
        child = crew.start_argv("unshare", "-m", "sh", "-c", f"{inner} supervise {run.root}")
        assert crew.code(child, 60) in (0, 10, 11, 12, 13), crew.log()
        failed = events_of(run, "checkpoint_failed")
        assert failed, crew.log()
        assert "space" in failed[0].reason.lower()
        assert exits(run.root) == ["finished"], "training went on to its end"
        assert 0 < state_of(run).committed < 40, "the last committed one stays"


def test_a_damaged_newest_checkpoint_is_refused_with_a_reason_and_the_one_before_is_taken(
    tmp_path: Path,
) -> None:
    run = toy_run(tmp_path / "run", toy=("--steps", "200"))
    with supervisors(run) as crew:
        child = crew.start()
        crew.wait_event("checkpoint_committed", step=20)
        child.kill()
        child.wait()
        _kill_ranks(run.root)
        newest = max(
            (p for p in run.checkpoints.iterdir() if not p.name.endswith(".tmp")),
            key=lambda p: int(p.name.split(".")[0].split("-")[1]),
        )
        (newest / "state.txt").write_text("short")
        assert crew.code(crew.start(), 90) == 0, crew.log()
        launched = events_of(run, "attempt_launched")[-1]
        assert newest.name in launched.refused[0]
        assert launched.resume_step < int(newest.name.split(".")[0].split("-")[1])


def test_checkpoints_that_are_gone_need_a_human_and_are_not_a_start_from_scratch(
    tmp_path: Path,
) -> None:
    run = toy_run(tmp_path / "run", toy=("--steps", "400"))
    with supervisors(run) as crew:
        child = crew.start()
        crew.wait_event("checkpoint_committed", step=20)
        child.kill()
        child.wait()
        _kill_ranks(run.root)
        shutil.rmtree(run.checkpoints)
        assert crew.code(crew.start(), 90) == 13, crew.log()
        state = state_of(run)
        assert state.end is EndKind.NEEDS_HUMAN
        assert "was committed" in state.end_reason
        assert {line[0] for line in toy_lines(run)} == {1}
        assert crew.left_running() == []


def _kill_ranks(root: Path) -> None:
    from trainctl.base.rundir import RunDir

    for pid in {line[3] for line in toy_lines(RunDir(root))}:
        os.kill(pid, signal.SIGKILL)
