"""
A real supervisor over real local nodes and the toy trainer: how runs end, and what survives what.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from support.runs import (
    SUPPORT,
    Supervisors,
    events_of,
    never_two_trainers,
    state_of,
    supervisors,
    toy_lines,
    toy_run,
)
from trainctl.adapters.requests import Request, write_request
from trainctl.base.rundir import RunDir
from trainctl.model.outcome import EndKind, Outcome
from trainctl.policy.state import Phase

pytestmark = pytest.mark.timeout(120)


def rank_pid(run: RunDir, rank: int) -> int:
    return [pid for _, r, _, pid, _ in toy_lines(run) if r == rank][-1]


def exits(run: RunDir) -> list[str]:
    return [str(e.outcome) for e in events_of(run, "attempt_exited")]


def test_an_undisturbed_run_finishes_and_leaves_nothing_running(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", toy=("--steps", "30"))
    with supervisors(run) as crew:
        assert crew.code(crew.start()) == 0, crew.log()
        assert crew.left_running() == []
        assert exits(run) == ["finished"]
        state = state_of(run)
        assert (state.end, state.done_step, state.committed) == (EndKind.FINISHED, 30, 30)
        released = events_of(run, "node_released")
        assert {e.node for e in released} == {"node-1", "node-2", "node-3"}
        assert all(0 < e.start_ms < e.end_ms for e in released)


def test_a_killed_rank_is_killed_unknown_and_the_run_goes_on_from_the_commit(
    tmp_path: Path,
) -> None:
    run = toy_run(tmp_path / "run", toy=("--steps", "60"))
    with supervisors(run) as crew:
        child = crew.start()
        crew.wait_event("checkpoint_committed", step=20)
        os.kill(rank_pid(run, 1), signal.SIGKILL)
        assert crew.code(child) == 0, crew.log()
        assert exits(run) == ["killed_unknown", "finished"]
        first = events_of(run, "attempt_exited")[0]
        assert [seat.rank for seat in first.first] == [1]
        assert state_of(run).quarantined == frozenset()
        second = [line for line in toy_lines(run) if line[0] == 2 and line[1] == 0]
        assert second[0][2] == max(
            e.step for e in events_of(run, "checkpoint_committed") if e.attempt == 1
        )
        assert never_two_trainers(run)


def test_a_program_that_never_works_is_a_crash_loop_in_three_attempts(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", toy=("--fail-at-start",))
    with supervisors(run) as crew:
        assert crew.code(crew.start()) == 11, crew.log()
        assert exits(run) == ["app_error"] * 3
        assert state_of(run).quarantined == frozenset()
        assert crew.left_running() == []


def test_a_command_that_is_not_there_ends_with_a_page_and_not_in_a_storm(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run")
    text = run.config.read_text().replace("toy_trainer.py", "no-such-file.py")
    run.config.write_text(text)
    with supervisors(run) as crew:
        assert crew.code(crew.start(), 60) in (11, 13), crew.log()
        assert len(exits(run)) <= 5
        assert events_of(run, "paged", "page_failed")


def test_a_stop_request_ends_in_a_commit_and_resume_goes_on_from_it(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", toy=("--steps", "100", "--save-every", "1000"))
    with supervisors(run) as crew:
        child = crew.start()
        crew.wait_event("first_step")
        write_request(run, Request(name="r1", kind="stop", by="test", at_ms=1, attempt=1))
        assert crew.code(child) == 10, crew.log()
        assert exits(run) == ["stop_operator"]
        stopped_at = state_of(run).committed
        assert stopped_at > 0
        from trainctl.usecases.submit import reopen

        reopen(run, by="test")
        assert crew.code(crew.start()) == 0, crew.log()
        assert exits(run) == ["stop_operator", "finished"]
        assert next(line[2] for line in toy_lines(run) if line[:2] == (2, 0)) == stopped_at


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_stops_in_order_and_a_second_one_stops_now(tmp_path: Path, presses: int) -> None:
    run = toy_run(
        tmp_path / "run", toy=("--steps", "2000", "--save-every", "1000", "--pace-s", "0.5")
    )
    with supervisors(run) as crew:
        child = crew.start()
        crew.wait_event("first_step")
        for _ in range(presses):
            child.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert crew.code(child) == 10, crew.log()
        assert crew.left_running() == []
        assert (state_of(run).committed > 0) == (presses == 1)


def test_a_dead_node_is_lost_named_and_replaced_by_the_spare(tmp_path: Path) -> None:
    from trainctl.adapters.local import LocalCluster

    run = toy_run(tmp_path / "run", toy=("--steps", "80"))
    with supervisors(run) as crew:
        child = crew.start()
        crew.wait_event("checkpoint_committed", step=10)
        state = state_of(run)
        assert state.created is not None
        node = state.seats[1]
        LocalCluster(run, state.created.run_id).kill_node(state.nodes[node].grant)
        assert crew.code(child) == 0, crew.log()
        first = events_of(run, "attempt_exited")[0]
        assert first.outcome is Outcome.NODE_LOST
        assert [s.node for s in first.suspects] == [node]
        assert state_of(run).quarantined <= {node}
        assert node not in events_of(run, "launch_intended")[-1].seats
        assert never_two_trainers(run)


def test_the_holder_killed_another_adopts_within_15_s_and_training_is_undisturbed(
    tmp_path: Path,
) -> None:
    run = toy_run(tmp_path / "run", toy=("--steps", "600", "--pace-s", "0.05"))
    with supervisors(run) as crew:
        holder = crew.start()
        crew.wait_event("first_step")
        standby = crew.start()
        crew.wait("standby", lambda: "standing by" in crew.log())
        holder.kill()
        killed = time.monotonic()
        crew.wait_event("attempt_adopted", 20.0, attempt=1)
        assert time.monotonic() - killed <= 15.0
        assert crew.code(standby, 60) == 0, crew.log()
        assert exits(run) == ["finished"]
        times = [line[4] for line in toy_lines(run) if line[1] == 0]
        assert max(b - a for a, b in itertools.pairwise(times)) < 3e9


def test_a_stopped_holder_sees_that_it_lost_the_run_and_changes_nothing(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", toy=("--steps", "500", "--pace-s", "0.05"))
    with supervisors(run) as crew:
        holder = crew.start()
        crew.wait_event("first_step")
        standby = crew.start()
        crew.wait("standby", lambda: "standing by" in crew.log())
        holder.send_signal(signal.SIGSTOP)
        crew.wait_event("attempt_adopted", 20.0, attempt=1)
        before = len(events_of(run))
        holder.send_signal(signal.SIGCONT)
        assert crew.code(standby, 60) == 0, crew.log()
        assert crew.code(holder, 20) == 0, crew.log()
        assert exits(run) == ["finished"]
        assert len(events_of(run)) >= before
        terms = {e.term for e in events_of(run) if e.kind != "supervisor_lost"}
        assert len(terms) == 3  # submit, holder, standby: nobody else ever acted


POINTS = [
    ("Launch", "before"),
    ("Launch", "after"),
    ("cluster.launch", "before"),
    ("cluster.launch", "after"),
    ("Gather", "before"),
    ("TearDown", "before"),
    ("TearDown", "after"),
    ("RequestGang", "after"),
    ("Quarantine", "before"),
    ("Quarantine", "after"),
    ("Release", "after"),
]


@pytest.mark.parametrize(("at", "when"), POINTS)
def test_killed_at_an_effect_the_next_supervisor_finishes_and_never_two_trainers(
    tmp_path: Path, at: str, when: str
) -> None:
    run = toy_run(tmp_path / "run", toy=("--steps", "40"))
    with supervisors(run) as crew:
        child = crew.start(
            str(SUPPORT / "crashing_supervisor.py"), str(run.root), at, when, "SIGKILL"
        )
        _provoke(crew, at)
        assert crew.code(child, 60) == -signal.SIGKILL, crew.log()
        assert crew.code(crew.start(), 60) == 0, crew.log()
        assert never_two_trainers(run)
        assert exits(run)[-1] == "finished"
        assert crew.left_running() == []
        numbers = [e.attempt for e in events_of(run, "launch_intended")]
        assert numbers == sorted(set(numbers))


def _provoke(crew: Supervisors, at: str) -> None:
    """A fault, where the effect comes only after one."""
    from trainctl.adapters.local import LocalCluster

    if at in ("TearDown", "Gather"):
        crew.wait_event("checkpoint_committed", step=10)
        os.kill(rank_pid(crew.run, 1), signal.SIGKILL)
    if at == "Quarantine":
        crew.wait_event("checkpoint_committed", step=10)
        state = state_of(crew.run)
        assert state.created is not None
        cluster = LocalCluster(crew.run, state.created.run_id)
        cluster.kill_node(state.nodes[state.seats[1]].grant)


def test_stopped_just_before_the_launch_and_continued_after_the_takeover(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", toy=("--steps", "150"))
    with supervisors(run) as crew:
        stopped = crew.start(
            str(SUPPORT / "crashing_supervisor.py"),
            str(run.root),
            "cluster.launch",
            "before",
            "SIGSTOP",
        )
        crew.wait_event("launch_intended", attempt=1)
        time.sleep(0.5)
        second = crew.start()
        crew.wait_event("attempt_launched", 40.0, attempt=2)
        stopped.send_signal(signal.SIGCONT)
        assert crew.code(second, 60) == 0, crew.log()
        assert crew.code(stopped, 20) == 0, crew.log()
        assert {line[0] for line in toy_lines(run)} == {2}, "attempt 1 was void for ever"
        assert crew.left_running() == []


def test_observe_only_decides_and_does_nothing(tmp_path: Path) -> None:
    run = toy_run(tmp_path / "run", act=False)
    with supervisors(run) as crew:
        assert crew.code(crew.start()) == 0, crew.log()
        assert all(e.would for e in events_of(run, "gang_requested", "launch_intended"))
        assert events_of(run, "gang_requested")
        assert events_of(run, "gang_granted", "attempt_launched") == []
        assert state_of(run).phase is Phase.NEW
