"""Status, report, events and logs: values read from a journal, whatever state it is in."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.journals import commit, created, ended, granted, launched, lay_out
from trainctl.adapters.journal import read_journal
from trainctl.base.rundir import RunDir
from trainctl.model import events as ev
from trainctl.model.errors import UsageError
from trainctl.model.events import AnyEvent
from trainctl.model.evidence import Findings, RankExit
from trainctl.model.outcome import Confidence, EndKind, Outcome, Seat, Suspect
from trainctl.usecases.endings import ending_text
from trainctl.usecases.events import choose, events_of, follow
from trainctl.usecases.logs import all_logs_of, last_lines, logs_of
from trainctl.usecases.logs import follow as follow_logs
from trainctl.usecases.report import Report, report_of
from trainctl.usecases.status import status_of

WHY = ("rank 1 on node-2 raised RuntimeError: boom", "rank 0 then lost its peer: a consequence")


def crash(attempt: int, step_from: int, step_to: int) -> list[AnyEvent]:
    return ended(
        attempt,
        Outcome.APP_ERROR,
        step_from=step_from,
        step_to=step_to,
        first=(Seat(1, "node-2"),),
        sentences=WHY,
    )


def story() -> list[AnyEvent]:
    """A crash, a dead node, a stop by the operator: attempts 1 to 3, committed up to 120."""
    return [
        ev.SupervisorStarted(host="h", pid=8, read_term=1, read_seq=3),
        *granted(),
        *launched(1),
        ev.FirstStep(attempt=1, step=1),
        commit(1, 40),
        ev.Progressed(attempt=1, step=57),
        *crash(1, 0, 57),
        *launched(2, 40),
        commit(2, 80),
        *ended(
            2,
            Outcome.NODE_LOST,
            step_from=40,
            step_to=85,
            first=(Seat(0, "node-1"),),
            suspects=(Suspect("node-1", Confidence.CERTAIN, "the cluster says it is dead"),),
        ),
        ev.QuarantineIntended(node="node-1", reason="lost"),
        ev.NodeQuarantined(node="node-1", reason="lost"),
        *launched(3, 80),
        commit(3, 120),
        *ended(3, Outcome.STOP_OPERATOR, step_from=80, step_to=120, fingerprint=None),
    ]


STOPPED = ev.RunStopped(end=EndKind.OPERATOR, reason="a stop was asked by ada")


def sums_are_consistent(report: Report) -> None:
    for row in report.attempts:
        assert row.step_to >= row.step_from >= 0
        assert min(row.kept, row.lost, row.pending) >= 0
        assert row.kept + row.lost + row.pending == row.step_to - row.step_from
        assert row.pending == 0 or row.outcome == "running"
    total = report.totals
    assert total.steps_kept == sum(row.kept for row in report.attempts)
    assert total.steps_done == total.steps_kept + total.steps_lost + total.steps_pending


# --- report -------------------------------------------------------------------------------------


def test_a_report_has_a_row_an_attempt_with_what_demo_prints(tmp_path: Path) -> None:
    report = report_of(lay_out(tmp_path, created(), [*story(), STOPPED]))
    rows = [
        (r.attempt, r.outcome, r.domain, r.node, r.rank, r.step_from, r.step_to)
        for r in report.attempts
    ]
    assert rows == [
        (1, "app_error", "software", "node-2", 1, 0, 57),
        (2, "node_lost", "hardware", "node-1", 0, 40, 85),
        (3, "stop_operator", "planned", "", None, 80, 120),
    ]
    assert report.quarantined == ("node-1",)
    assert (report.end, report.exit_code) == ("operator", 10)
    assert report.totals.failures == 2
    assert report.totals.stops == 1
    assert report.attempts[0].sentences == WHY


def test_steps_beyond_what_the_next_attempt_began_from_are_lost(tmp_path: Path) -> None:
    report = report_of(lay_out(tmp_path, created(), [*story(), STOPPED]))
    assert [(row.kept, row.lost) for row in report.attempts] == [(40, 17), (40, 5), (40, 0)]
    assert report.totals.steps_kept == 120 == report.committed
    sums_are_consistent(report)


def test_a_resume_from_an_older_checkpoint_loses_what_was_kept_before(tmp_path: Path) -> None:
    history = [*granted(), *launched(1), commit(1, 40), *crash(1, 0, 50), *launched(2, 40)]
    history += [commit(2, 80), *crash(2, 40, 90), *launched(3, 20), *crash(3, 20, 30)]
    report = report_of(lay_out(tmp_path, created(), history))
    assert [(row.kept, row.lost) for row in report.attempts] == [(20, 30), (0, 50), (10, 0)]
    sums_are_consistent(report)


def test_steps_of_a_running_attempt_are_pending_until_they_are_committed(tmp_path: Path) -> None:
    history = [*granted(), *launched(1), commit(1, 40), ev.Progressed(attempt=1, step=57)]
    (row,) = report_of(lay_out(tmp_path, created(), history)).attempts
    assert (row.outcome, row.kept, row.pending, row.lost) == ("running", 40, 17, 0)


def test_all_steps_of_a_finished_run_up_to_its_end_are_kept(tmp_path: Path) -> None:
    history = [*granted(), *launched(1), commit(1, 40), ev.TrainingDone(attempt=1, step=50)]
    history += [*ended(1, Outcome.FINISHED, step_from=0, step_to=50), ev.RunFinished(step=50)]
    report = report_of(lay_out(tmp_path, created(), history))
    assert (report.attempts[0].kept, report.attempts[0].lost) == (50, 0)
    assert report.ending.startswith(f"{tmp_path}: finished at step 50")


def test_an_attempt_without_an_exit_is_unknown_once_another_began(tmp_path: Path) -> None:
    history = [*granted(), *launched(1), commit(1, 40), *launched(2, 40)]
    report = report_of(lay_out(tmp_path, created(), history))
    assert [row.outcome for row in report.attempts] == ["unknown_end", "running"]
    assert report.attempts[0].domain == "unknown"
    assert report.totals.failures == 1


def test_an_attempt_without_an_exit_is_unknown_in_a_run_that_has_ended(tmp_path: Path) -> None:
    history = [*granted(), *launched(1), STOPPED]
    assert report_of(lay_out(tmp_path, created(), history)).attempts[0].outcome == "unknown_end"


def test_steps_that_only_the_last_beats_show_are_lost_too(tmp_path: Path) -> None:
    exits = (RankExit(0, "node-1", signal=9, step=63), RankExit(1, "node-2", code=1, step=64))
    gathered = ev.Gathered(attempt=1, findings=Findings(1, ("node-1", "node-2"), exits=exits))
    history = [
        *granted(),
        *launched(1),
        commit(1, 40),
        gathered,
        *crash(1, 0, 40),
        *launched(2, 40),
    ]
    row = report_of(lay_out(tmp_path, created(), history)).attempts[0]
    assert (row.step_to, row.kept, row.lost) == (63, 40, 23)


def test_a_void_number_is_no_attempt(tmp_path: Path) -> None:
    history = [*granted(), launched(1)[0], ev.AttemptVoided(attempt=1), *launched(2)]
    report = report_of(lay_out(tmp_path, created(), history))
    assert [row.outcome for row in report.attempts] == ["void", "running"]
    assert report.totals.attempts == 1


def test_a_second_exit_of_an_attempt_changes_nothing(tmp_path: Path) -> None:
    again = ended(3, Outcome.APP_ERROR, step_from=80, step_to=200)
    first = report_of(lay_out(tmp_path / "a", created(), [*story(), STOPPED]))
    second = report_of(lay_out(tmp_path / "b", created(), [*story(), *again, STOPPED]))
    assert second.attempts[2].outcome == "stop_operator"
    assert second.totals == first.totals


def test_what_was_only_decided_in_observe_only_mode_is_no_fact(tmp_path: Path) -> None:
    would = ev.NodeQuarantined(node="node-2", reason="x", would=True)
    report = report_of(lay_out(tmp_path, created(), [*granted(), *launched(1), would]))
    assert report.quarantined == ()


def test_a_resumed_run_has_not_ended(tmp_path: Path) -> None:
    history = [*story(), STOPPED, ev.RunResumed(by="ada"), *launched(4, 120)]
    report = report_of(lay_out(tmp_path, created(), history))
    assert (report.end, report.attempts[3].outcome) == ("", "running")


def test_takeovers_and_terms_are_listed(tmp_path: Path) -> None:
    second = [
        ev.SupervisorStarted(host="h", pid=9, read_term=2, read_seq=10),
        ev.SupervisorLost(lost_term=2),
        ev.LeaseReleased(reason="operator"),
    ]
    report = report_of(lay_out(tmp_path, created(), story(), second))
    assert [(t.term, t.pid, t.ended) for t in report.supervisors] == [
        (1, 7, "released"),
        (2, 8, "lost"),
        (3, 9, "released"),
    ]
    assert report.totals.takeovers == 1


def test_a_clock_step_changes_no_duration(tmp_path: Path) -> None:
    run = lay_out(tmp_path, created(), [*granted(), *launched(1), *crash(1, 0, 5)])
    path = run.journal(2)
    lines = path.read_bytes().splitlines(keepends=True)
    stepped = lines[-1].replace(b'"at_ms":17960', b'"at_ms":17950')
    assert stepped != lines[-1]
    path.write_bytes(b"".join([*lines[:-1], stepped]))
    assert report_of(run).attempts[0].took_ms == 7_000


@pytest.mark.parametrize("seed", range(40))
def test_sums_are_consistent_whatever_was_lost_of_the_journal(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    whole = [*story(), STOPPED, ev.RunResumed(by="ada"), *launched(4, 120), *crash(4, 120, 130)]
    damaged = [event for event in whole if chance.random() > 0.3]
    damaged += chance.sample(whole, 3)
    if seed % 3 == 0:
        chance.shuffle(damaged)
    run = lay_out(tmp_path, created() if seed % 2 else [], damaged)
    sums_are_consistent(report_of(run))
    status_of(run)
    events_of(run, choose((), None, 0))


@pytest.mark.parametrize("cut", [1, 40, 200, 1_000])
def test_a_cut_journal_is_reported_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    run = lay_out(tmp_path, created(), story())
    data = run.journal(2).read_bytes()
    run.journal(2).write_bytes(data[:-cut])
    report = report_of(run)
    sums_are_consistent(report)
    assert report.attempts[0].outcome == "app_error"


def test_a_run_without_any_journal_has_an_empty_report(tmp_path: Path) -> None:
    run = lay_out(tmp_path)
    assert report_of(run).attempts == ()
    assert status_of(run).phase == "new"


# --- status -------------------------------------------------------------------------------------


def test_status_says_where_the_run_stands(tmp_path: Path) -> None:
    history = [*story()[:-6], ev.Progressed(attempt=3, step=130)]
    status = status_of(lay_out(tmp_path, created(), history))
    assert (status.phase, status.attempt, status.step, status.committed) == (
        "running",
        3,
        130,
        80,
    )
    assert status.quarantined == ("node-1",)
    assert status.last_events[-1].text == "attempt 3: step 130"
    assert len(status.last_events) == 5
    assert status.ending == ""


def test_status_names_the_nodes_and_their_roles(tmp_path: Path) -> None:
    status = status_of(lay_out(tmp_path, created(), [*granted(), *launched(1)]))
    assert {(one.node, one.role, one.seat) for one in status.nodes} == {
        ("node-1", "active", 0),
        ("node-2", "active", 1),
        ("node-3", "spare", None),
    }


def test_status_tells_failures_since_the_last_commit_from_all(tmp_path: Path) -> None:
    history = [*granted(), *launched(1), *crash(1, 0, 5), *launched(2), commit(2, 40)]
    history += [*crash(2, 0, 57)]
    status = status_of(lay_out(tmp_path, created(), history))
    assert (status.failures_since_progress, status.failures_total) == (1, 2)
    (failure,) = status.failures
    assert (failure.attempt, failure.node, failure.rank, failure.why) == (2, "node-2", 1, WHY[0])


def test_status_of_an_ended_run_says_how_it_ended(tmp_path: Path) -> None:
    history = [*story()]
    history += [ev.NodeReleased(node=f"node-{i}") for i in (1, 2, 3)]
    status = status_of(lay_out(tmp_path, created(), [*history, STOPPED]))
    assert (status.phase, status.end) == ("ended", "operator")
    assert "why: a stop was asked by ada" in status.ending


# --- endings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(EndKind))
def test_an_ending_is_one_line_that_ends_with_what_to_type(kind: EndKind) -> None:
    text = ending_text(
        kind, Path("/r/my run"), reason="because\nof x", evidence=("rank 1 …", "more"), step=7
    )
    assert "\n" not in text
    assert "next: trainctl " in text
    assert "'/r/my run'" in text


def test_an_ending_says_what_why_and_the_evidence() -> None:
    text = ending_text(
        EndKind.CRASH_LOOP,
        Path("/r"),
        reason="app_error 3 times in a row",
        evidence=("rank 1 on node-2 raised RuntimeError: boom", "the same on node-3"),
        step=40,
    )
    assert text == (
        "/r: stopped: crash loop · why: app_error 3 times in a row · evidence: rank 1 on node-2 "
        "raised RuntimeError: boom (and 1 more) · committed: step 40 · next: trainctl events /r "
        "--why, then trainctl resume /r"
    )


def test_an_ending_says_nothing_twice() -> None:
    text = ending_text(EndKind.OPERATOR, Path("/r"), reason="stopped by the operator; resumes at 7")
    assert text.count("stopped by the operator") == 1


# --- events -------------------------------------------------------------------------------------


def test_events_are_filtered_by_kind_and_attempt(tmp_path: Path) -> None:
    run = lay_out(tmp_path, created(), story())
    kinds = [line.kind for line in events_of(run, choose(("attempt_exited",), 2, 0)).events]
    assert kinds == ["attempt_exited"]
    last = events_of(run, choose((), None, 2))
    assert len(last.events) == 2
    assert last.left_out > 10


def test_an_unknown_kind_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean attempt_exited"):
        choose(("attempt_exit",), None, 0)


def test_why_shows_ends_with_their_reasons(tmp_path: Path) -> None:
    run = lay_out(tmp_path, created(), [*story(), STOPPED])
    lines = events_of(run, choose((), None, 0, why=True)).events
    assert [line.kind for line in lines] == [*["attempt_exited"] * 3, "run_stopped"]
    assert lines[0].why[:2] == WHY
    assert any("suspect: node-1 (certain)" in words for words in lines[1].why)


def test_a_line_of_a_newer_version_is_shown_and_not_understood(tmp_path: Path) -> None:
    run = lay_out(tmp_path, created(), story())
    with run.journal(2).open("ab") as file:
        file.write(b'{"kind":"gpu_sang","v":9,"term":2,"seq":999,"at_ms":1,"attempt":3}\n')
    report = report_of(run)
    assert report.unknown_events == 1
    assert report.totals == report_of(lay_out(tmp_path / "b", created(), story())).totals


class Clock:
    """A clock whose sleep runs what a test wants to happen next."""

    def __init__(self, *steps: object) -> None:
        self.steps = list(steps)

    def utc_ms(self) -> int:
        return 0

    def mono_ms(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        del seconds
        step = self.steps.pop(0)
        if callable(step):
            step()


def test_following_shows_what_is_written_meanwhile_and_ends_with_the_run(tmp_path: Path) -> None:
    released = [ev.NodeReleased(node=f"node-{i}") for i in (1, 2, 3)]
    whole = [*story(), *released, STOPPED]
    run = lay_out(tmp_path, created(), whole)
    lines = run.journal(2).read_bytes().splitlines(keepends=True)
    run.journal(2).write_bytes(b"".join(lines[:-1]))

    def write() -> None:
        with run.journal(2).open("ab") as file:
            file.write(lines[-1])

    shown = list(follow(run, choose(("run_stopped",), None, 0), Clock(None, write)))
    assert [line.kind for line in shown] == ["run_stopped"]


# --- logs ---------------------------------------------------------------------------------------


def write_logs(run: RunDir, attempt: int) -> None:
    for rank, node in enumerate(("node-1", "node-2")):
        folder = run.logs(attempt, node)
        folder.mkdir(parents=True)
        (folder / "agent.log").write_text(f"agent of {node}\n")
        (folder / f"rank-{rank}.err").write_text("".join(f"line {i}\n" for i in range(100)))
        (folder / f"rank-{rank}.out").write_text("")


def test_logs_are_those_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    run = lay_out(tmp_path, created(), story())
    write_logs(run, 1)
    logs = logs_of(run)
    assert [(file.node, file.name) for file in logs.files] == [
        ("node-2", "rank-1.err"),
        ("node-2", "rank-1.out"),
    ]
    assert "failed first" in logs.why


def test_logs_are_those_of_rank_0_where_nobody_failed(tmp_path: Path) -> None:
    run = lay_out(tmp_path, created(), [*granted(), *launched(1)])
    write_logs(run, 1)
    assert {file.rank for file in logs_of(run).files} == {0}
    assert {file.name for file in logs_of(run, node="node-2").files} >= {"agent.log"}
    assert len(all_logs_of(run).files) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attempt": 9}, "there are 1"),
        ({"node": "node-9"}, "there are node-1, node-2"),
        ({"rank": 9}, "there are 0 to 1"),
    ],
)
def test_logs_that_are_not_there_are_refused_with_what_is(
    tmp_path: Path, options: dict[str, int | str], words: str
) -> None:
    run = lay_out(tmp_path, created(), story())
    write_logs(run, 1)
    with pytest.raises(UsageError, match=words):
        logs_of(run, **options)  # type: ignore[arg-type]


def test_a_run_without_attempts_has_no_logs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no attempt"):
        logs_of(lay_out(tmp_path, created()))


def test_the_last_lines_of_a_huge_file_are_read_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.err"
    with path.open("wb") as file:
        file.truncate(5 << 30)
        file.seek(0, 2)
        file.write(b"\nlast but one\nlast\n")
    assert last_lines(path, 2) == ("last but one", "last")


def test_following_logs_shows_what_is_appended(tmp_path: Path) -> None:
    run = lay_out(tmp_path, created(), [*granted(), *launched(1)])
    write_logs(run, 1)
    files = logs_of(run, rank=0).files

    def append() -> None:
        with Path(files[0].path).open("a") as file:
            file.write("new\n")

    clock = Clock(append, None)
    found = list(follow_logs(files, clock, gave_up=lambda: not clock.steps))
    assert [(file.name, text) for file, text in found] == [("rank-0.err", "new\n")]


def test_the_journal_reads_what_the_tests_write(tmp_path: Path) -> None:
    journal = read_journal(lay_out(tmp_path, created(), story()))
    assert len(journal.events) == 3 + len(story())
    assert list(journal.warnings) == []
