"""The agent with real ranks: ends as they are told, stops, kills, and what it refuses."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from support.node_bench import RANK, Bench, bench, wait_for
from trainctl.base.processes import identity_of, kill_all, send_signal
from trainctl.model.agent import AgentPhase, Launcher
from trainctl.model.evidence import RankExit

TWO_TICKS_S = 1.0  # the bar is 50 ms; other tests run beside this one


def script(*deeds: str) -> tuple[str, ...]:
    return (sys.executable, str(RANK), *deeds)


def end_of(state_exits: tuple[RankExit, ...], rank: int) -> RankExit:
    return next(end for end in state_exits if end.rank == rank)


# --- ends -----------------------------------------------------------------------------------------


def test_ranks_that_end_by_themselves_end_the_attempt(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("steps=5")) as one:
        state = one.launch().wait_over()
        assert [(end.code, end.step, end.by_us) for end in state.exits] == [(0, 5, False)] * 2
        assert (state.phase, state.launcher_code) == (AgentPhase.ENDED, 0)
        assert one.agents["n0"].returncode == 0
        one.wait_nothing_alive()
        assert list((one.local / "n0").iterdir()) == []


def test_a_rank_that_raises_is_named_with_its_exception_and_place(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("1:raise=7")) as one:
        state = one.launch().wait_state(lambda state: state.exits)
        (end,) = state.exits
        assert (end.rank, end.node, end.code, end.step, end.by_us) == (1, "n0", 1, 7, False)
        assert end.error is not None
        assert end.error.exception == "ValueError"
        assert end.error.place == "rank_script.py:explode"
        assert end.error.message == "ValueError: a bug at step 7"
        one.say(kill=True)
        state = one.wait_over()
        assert (end_of(state.exits, 0).signal, end_of(state.exits, 0).by_us) == (9, True)
        assert end_of(state.exits, 1).by_us is False
        assert one.agents["n0"].returncode == 1


def test_an_exit_code_comes_through(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("0:exit=3")) as one:
        state = one.launch().wait_state(lambda state: state.exits)
        assert (state.exits[0].rank, state.exits[0].code, state.exits[0].error) == (0, 3, None)


def test_a_killed_rank_is_in_the_cell_at_once(tmp_path: Path) -> None:
    with bench(tmp_path) as one:
        pid = one.launch().wait_steps().ranks[1].pid
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        state = one.wait_state(lambda state: state.exits)
        assert time.monotonic() - began < TWO_TICKS_S
        (end,) = state.exits
        assert (end.rank, end.signal, end.code, end.by_us, end.pid) == (1, 9, None, False, pid)
        assert end.phase == "step"
        assert state.phase is AgentPhase.RUNNING  # the supervisor gathers first


def test_a_rank_whose_guard_was_killed_is_not_missed(tmp_path: Path) -> None:
    with bench(tmp_path) as one:
        one.launch().wait_steps()
        guard = next((one.local / "n0").glob("*/guard-1.json")).read_text()
        os.kill(int(guard.split(",")[0].rpartition(" ")[2]), signal.SIGKILL)
        state = one.wait_state(lambda state: state.exits)
        assert [end.rank for end in state.exits] == [1]
        one.say(kill=True)
        one.wait_over()
        one.wait_nothing_alive()


def test_a_program_that_is_missing_is_an_exit_of_127_that_says_so(tmp_path: Path) -> None:
    with bench(tmp_path, command=("/no/such/trainer",)) as one:
        state = one.launch().wait_over()
        assert {end.code for end in state.exits} == {127}
        error = state.exits[0].error
        assert error is not None
        assert "/no/such/trainer" in error.message


def test_a_failed_rank_without_a_supervisor_ends_the_attempt_after_a_short_bound(
    tmp_path: Path,
) -> None:
    with bench(tmp_path, command=script("0:exit=3"), env={"TRAINCTL_FAILED_GRACE_S": "0.5"}) as one:
        state = one.launch().wait_over()
        assert end_of(state.exits, 1).by_us is True
        assert "no supervisor" in state.reason
        one.wait_nothing_alive()


def test_helpers_that_outlive_their_ranks_do_not_outlive_the_attempt(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("helper=1", "steps=50")) as one:
        state = one.launch().wait_over()
        assert [end.code for end in state.exits] == [0, 0]
        one.wait_nothing_alive()


# --- what ranks find ------------------------------------------------------------------------------


def test_holes_are_filled_and_other_braces_are_the_users(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:])"
    holes = ("{checkpoint}", "{attempt}/{run_dir}", "{stop_file}", "{collective_timeout_s}")
    command = (sys.executable, "-c", code, *holes, "{other}", "{}", "{{attempt}}")
    spec = {"resume": "/ckpt/{attempt}", "collective_timeout_s": 90.0}
    with bench(tmp_path, ranks=1, attempt=4, command=command, spec=spec) as one:
        one.launch().wait_over()
        said = (one.run.logs(4, "n0") / "rank-0.out").read_text()
        local = one.local / "n0" / f"{one.run_id}-a0004" / "stop"
        want = ["/ckpt/{attempt}", f"4/{one.run.root}", str(local), "90", "{other}", "{}", "{4}"]
        assert said.strip() == str(want)


def test_ranks_know_who_they_are(tmp_path: Path) -> None:
    code = "import os; [print(k, '=', v) for k, v in sorted(os.environ.items())]"
    spec = {"env": {"MINE": "1", "TRAINCTL_ATTEMPT": "77"}, "resume_step": 12, "cwd": "/usr"}
    command = (sys.executable, "-c", code)
    with bench(tmp_path, nodes=2, command=command, spec=spec) as one:
        one.launch().wait_over("n1")
        said = dict(
            line.split(" = ", 1)
            for line in (one.run.logs(1, "n1") / "rank-3.out").read_text().splitlines()
        )
        state = one.state("n0")
        assert state is not None
        want = {
            "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "GROUP_RANK": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(state.port),
            "MINE": "1", "TRAINCTL_ATTEMPT": "1", "TRAINCTL_NODE": "n1",
            "TRAINCTL_RUN_ID": one.run_id, "TRAINCTL_RESUME": "", "TRAINCTL_RESUME_STEP": "12",
            "TRAINCTL_TRAINER_LOG": str(one.run.trainer_log(1)), "PWD": said.get("PWD", ""),
        }  # fmt: skip
        assert {key: said[key] for key in want if key in said or key != "PWD"} == {
            key: value for key, value in want.items() if key in said
        }
        assert said["TORCH_FR_DUMP_TEMP_FILE"] == said["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
        assert said["TORCH_FR_DUMP_TEMP_FILE"].startswith(str(one.run.flight(1, "n1")))
        one.wait_over("n0")


# --- stops and kills ------------------------------------------------------------------------------


def test_a_stop_is_passed_on_and_echoed(tmp_path: Path) -> None:
    with bench(tmp_path) as one:
        one.launch().wait_steps()
        one.say(term=2, stop="stop_operator")
        state = one.wait_over()
        assert [(end.code, end.by_us) for end in state.exits] == [(0, False)] * 2
        assert (state.ack_term, state.ack_seq) == (2, 1)
        assert one.agents["n0"].returncode == 0


def test_a_rank_deaf_to_the_stop_is_killed_at_its_bound(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("1:deaf=1"), spec={"stop_grace_s": 0.7}) as one:
        one.launch().wait_steps()
        one.say(stop="stop_time_limit")
        state = one.wait_over()
        assert (end_of(state.exits, 0).code, end_of(state.exits, 0).by_us) == (0, False)
        assert (end_of(state.exits, 1).signal, end_of(state.exits, 1).by_us) == (9, True)


def test_term_to_every_process_at_once_is_acted_on_by_the_agent_alone(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("save=1.0", "helper=1")) as one:
        one.launch().wait_state(lambda s: [rank.phase for rank in s.ranks] == ["save"] * 2)
        for each in one.alive():
            send_signal(each, signal.SIGTERM)
        state = one.wait_over()
        assert [(end.code, end.by_us) for end in state.exits] == [(0, False)] * 2
        assert "SIGTERM" in state.reason
        assert {path.name for path in one.run.root.glob("saved-*")} == {"saved-0", "saved-1"}
        one.wait_nothing_alive()


def test_term_has_the_bound_of_a_stop(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("deaf=1"), spec={"stop_grace_s": 0.5}) as one:
        guard = one.launch().wait_steps()
        os.kill(guard.pid, signal.SIGTERM)
        state = one.wait_over()
        assert [(end.signal, end.by_us) for end in state.exits] == [(9, True)] * 2


def test_int_and_hup_are_nothing_to_an_agent(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("steps=60")) as one:
        pid = one.launch().wait_steps().pid
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGHUP)
        assert [end.code for end in one.wait_over().exits] == [0, 0]


@pytest.mark.parametrize(("now", "saved"), [(False, True), (True, False)])
def test_a_kill_lets_a_save_in_flight_finish_unless_it_is_now(
    tmp_path: Path, now: bool, saved: bool
) -> None:
    with bench(tmp_path, ranks=1, command=script("save=1.5")) as one:
        one.launch().wait_state(lambda s: s.ranks and s.ranks[0].phase == "save")
        one.say(kill=True, now=now)
        state = one.wait_over()
        assert (state.exits[0].signal, state.exits[0].by_us) == (9, True)
        assert (one.run.root / "saved-0").exists() is saved


def test_a_save_that_outlasts_its_bound_is_killed(tmp_path: Path) -> None:
    spec = {"save_grace_s": 0.5}
    with bench(tmp_path, ranks=1, command=script("save=60"), spec=spec) as one:
        one.launch().wait_state(lambda s: s.ranks and s.ranks[0].phase == "save")
        one.say(kill=True)
        assert one.wait_over(bound_s=5).exits[0].by_us


def test_a_save_begun_after_a_rank_failed_is_not_waited_for(tmp_path: Path) -> None:
    with bench(
        tmp_path, command=script("1:raise=2", "0:save=60"), spec={"save_grace_s": 60.0}
    ) as one:
        one.launch().wait_state(lambda s: s.exits and any(rank.phase == "save" for rank in s.ranks))
        began = time.monotonic()
        one.say(kill=True)
        one.wait_over()
        assert time.monotonic() - began < 5.0


def test_a_stopped_rank_dies_of_a_kill(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("helper=1")) as one:
        pid = one.launch().wait_steps().ranks[0].pid
        os.kill(pid, signal.SIGSTOP)
        one.say(kill=True, now=True)
        one.wait_over()
        one.wait_nothing_alive()


# --- refusals -------------------------------------------------------------------------------------


def started_nothing(one: Bench) -> None:
    assert list(one.run.logs(one.attempt, "n0").glob("rank-*")) == []
    assert one.agents["n0"].returncode == 3


def test_a_voided_attempt_starts_nothing(tmp_path: Path) -> None:
    with bench(tmp_path) as one:
        one.lay_out().say()
        one.say(term=2, void=True)
        one.start()
        state = one.wait_over()
        assert (state.phase, state.exec_ms, "void" in state.reason) == (AgentPhase.REFUSED, 0, True)
        started_nothing(one)


def test_a_void_that_comes_between_claim_and_start_is_heard(tmp_path: Path) -> None:
    with bench(tmp_path, nodes=2) as one:
        one.lay_out().say()
        one.start("n1")  # waits for the port of n0, whose agent never comes
        one.wait_state(lambda state: state.phase is AgentPhase.STARTING, "n1")
        one.say(term=9, void=True)
        assert one.wait_over("n1").phase is AgentPhase.REFUSED
        assert not one.run.logs(1, "n1").exists()


def test_a_void_that_comes_while_the_agent_prepares_is_heard(tmp_path: Path) -> None:
    with bench(tmp_path) as one:
        one.lay_out().say()
        launch = one.run.launch(1)
        text = launch.read_text()
        launch.unlink()
        os.mkfifo(launch)
        one.start()
        with launch.open("w") as pipe:  # opens once the agent, having heard its word, reads
            one.say(term=2, void=True)
            pipe.write(text)
        assert one.wait_over().phase is AgentPhase.REFUSED
        started_nothing(one)


def test_a_cell_that_cannot_be_written_for_a_while_is_written_later(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("steps=30")) as one:
        one.lay_out().say()
        state = one.run.state(1, "n0")
        hidden = state.rename(tmp_path / "hidden")
        agent = one.start()
        time.sleep(1.5)
        assert agent.pid in [each.pid for each in one.alive()]
        hidden.rename(state)
        assert [end.code for end in one.wait_over().exits] == [0, 0]


def test_a_running_attempt_that_is_voided_quits(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("deaf=1")) as one:
        one.launch().wait_steps()
        one.say(term=2, void=True)
        state = one.wait_over()
        assert all(end.by_us for end in state.exits)
        one.wait_nothing_alive()


def test_a_lower_term_is_not_obeyed(tmp_path: Path) -> None:
    with bench(tmp_path) as one:
        one.lay_out().say(term=5)
        one.start()
        one.wait_steps()
        one.say(term=4, void=True)
        one.say(term=3, stop="stop_operator")
        time.sleep(0.7)
        state = one.state()
        assert state is not None
        assert (state.phase, state.ack_term) == (AgentPhase.RUNNING, 5)


@pytest.mark.parametrize("torn", [b"TRAINCL1 torn", b"\xff" * 64])
def test_a_torn_control_cell_starts_nothing(tmp_path: Path, torn: bytes) -> None:
    with bench(tmp_path, env={"TRAINCTL_WORD_BOUND_S": "0.7"}) as one:
        one.lay_out().say()
        with one.run.control(1, 2).open("r+b") as cell:  # another cell than that of the good word
            cell.write(torn)
        one.start()
        state = one.wait_over()
        assert state.phase is AgentPhase.REFUSED
        assert "control.2" in state.reason
        started_nothing(one)


def test_a_control_cell_torn_for_a_moment_delays_the_start_only(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("steps=3")) as one:
        one.lay_out().say()
        good = one.run.control(1, 1).read_bytes()
        one.run.control(1, 1).write_bytes(good[:30] + b"?" * (len(good) - 30))
        one.start()
        time.sleep(0.5)
        one.run.control(1, 1).write_bytes(good)
        assert one.wait_over().launcher_code == 0


def test_a_control_cell_torn_while_ranks_run_changes_nothing(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("steps=80")) as one:
        one.launch().wait_steps()
        one.run.control(1, 1).write_bytes(b"TRAINCL1" + b"?" * 4088)
        state = one.wait_over()
        assert [end.code for end in state.exits] == [0, 0]
        assert any("control" in note.text for note in state.notes)


def test_no_word_at_all_starts_nothing(tmp_path: Path) -> None:
    with bench(tmp_path, env={"TRAINCTL_WORD_BOUND_S": "0.5"}) as one:
        one.lay_out().start()
        assert one.wait_over().phase is AgentPhase.REFUSED
        started_nothing(one)


def test_a_node_without_a_seat_starts_nothing(tmp_path: Path) -> None:
    with bench(tmp_path) as one:
        one.lay_out().say()
        launch = one.run.launch(1)
        launch.write_text(launch.read_text().replace('"node":"n0"', '"node":"n7"'))
        one.start()
        state = one.wait_over()
        assert state.phase is AgentPhase.REFUSED
        assert "no seat" in state.reason


# --- no supervisor, earlier attempts, the launcher ------------------------------------------------


def test_ranks_that_stand_still_without_a_supervisor_are_ended(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("stand=3", "deaf=1"), spec={"orphan_s": 1.0}) as one:
        state = one.launch().wait_over()
        assert "orphaned" in state.reason
        assert all(end.by_us for end in state.exits)


def test_ranks_that_move_are_left_alone_without_a_supervisor(tmp_path: Path) -> None:
    with bench(tmp_path, command=script("steps=250"), spec={"orphan_s": 1.0}) as one:
        assert [end.code for end in one.launch().wait_over().exits] == [0, 0]


def test_strays_of_lower_attempts_are_swept_and_nobody_else(tmp_path: Path) -> None:
    with bench(tmp_path, attempt=5, command=script("steps=3")) as one:

        def stray(**env: str) -> int:
            mark = {"TRAINCTL_RUN_ID": one.run_id, "TRAINCTL_NODE": "n0", "TRAINCTL_ATTEMPT": "4"}
            argv = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
            return os.posix_spawn(argv[0], argv, {**mark, **env})

        lower = stray()
        others = [
            stray(TRAINCTL_ATTEMPT="6"), stray(TRAINCTL_ATTEMPT="5"), stray(TRAINCTL_NODE="n1"),
            stray(TRAINCTL_RUN_ID="another"), stray(TRAINCTL_ATTEMPT=""),
        ]  # fmt: skip
        try:
            state = one.launch().wait_over()
            assert os.waitpid(lower, 0)[1] == signal.SIGKILL
            assert all(identity_of(pid) for pid in others)
            assert any(note.source == "sweep" and str(lower) in note.text for note in state.notes)
        finally:
            kill_all([found for pid in others if (found := identity_of(pid))], 5.0)
            for pid in others:
                os.waitpid(pid, 0)


def test_a_launcher_that_cannot_start_ranks_says_why(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(tmp_path / "shadow")}
    (tmp_path / "shadow" / "torch" / "distributed").mkdir(parents=True)
    (tmp_path / "shadow" / "torch" / "__init__.py").touch()
    (tmp_path / "shadow" / "torch" / "distributed" / "__init__.py").touch()
    (tmp_path / "shadow" / "torch" / "distributed" / "run.py").write_text(
        "raise RuntimeError('The server socket has failed to listen (errno: 98)')"
    )
    with bench(tmp_path, launcher=Launcher.TORCHRUN, env=env) as one:
        state = one.launch().wait_over()
        assert (state.launcher_code, state.exits) == (1, ())
        assert "errno: 98" in state.reason
        assert any(note.source == "log" and "errno: 98" in note.text for note in state.notes)


@pytest.mark.torch
@pytest.mark.timeout(90)
def test_the_ranks_of_a_real_torchrun_stop_and_fail_the_same_way(tmp_path: Path) -> None:
    with bench(tmp_path, launcher=Launcher.TORCHRUN, command=script("helper=1")) as one:
        one.launch().wait_state(lambda s: sum(r.step > 0 for r in s.ranks) == 2, bound_s=40)
        for each in one.alive():
            send_signal(each, signal.SIGTERM)
        state = one.wait_over(bound_s=30)
        assert [(end.code, end.by_us) for end in state.exits] == [(0, False)] * 2
        assert (state.launcher_code, one.agents["n0"].returncode) == (0, 0)
        one.wait_nothing_alive()


@pytest.mark.torch
@pytest.mark.timeout(90)
def test_a_killed_torchrun_is_told_from_a_killed_rank(tmp_path: Path) -> None:
    with bench(
        tmp_path, launcher=Launcher.TORCHRUN, command=script("helper=1", "0:raise=900")
    ) as one:
        one.launch().wait_state(lambda s: sum(r.step > 0 for r in s.ranks) == 2, bound_s=40)
        os.kill(torchrun_of(one), signal.SIGKILL)
        state = one.wait_over()
        assert [(end.signal, end.by_us) for end in state.exits] == [(9, True)] * 2
        assert state.launcher_code == -9
        assert any("launcher was killed by signal 9" in note.text for note in state.notes)
        one.wait_nothing_alive()


def torchrun_of(one: Bench) -> int:
    def look() -> int:
        for each in one.alive():
            argv = Path(f"/proc/{each.pid}/cmdline").read_bytes().split(b"\0")
            if argv[1:3] == [b"-m", b"torch.distributed.run"]:
                return each.pid
        return 0

    return int(wait_for(look))
