"""What the sight of an attempt means."""

from __future__ import annotations

import pytest

from trainctl.model import events as ev
from trainctl.model.agent import (
    AgentPhase,
    AgentState,
    CommittedLine,
    DoneLine,
    LoadedLine,
    RankState,
    SaveFailedLine,
)
from trainctl.model.evidence import RankExit
from trainctl.policy.evolve import fold
from trainctl.policy.notice import (
    PROGRESS_EVERY_MS,
    AttemptView,
    findings_of,
    is_failure,
    lowest_step,
    notice,
)
from trainctl.policy.state import RunState


def running(*more: ev.AnyEvent) -> RunState:
    grants = tuple(ev.NodeGrant(f"n{i}", f"127.0.0.{i}", 1) for i in (1, 2))
    return fold(
        [
            ev.RunCreated(run="r", run_id="x", cluster="local", nodes=2),
            ev.GangRequested(name="g", nodes=2),
            ev.GangGranted(name="g", nodes=grants),
            ev.LaunchIntended(attempt=1, step_name="r-a0001", seats=("n1", "n2")),
            ev.AttemptLaunched(attempt=1),
            *more,
        ]
    )


def agent(node: str, step: int = -1, **fields: object) -> AgentState:
    rank = int(node[1]) - 1
    known = {
        "phase": AgentPhase.RUNNING,
        "ranks": (RankState(rank, pid=10, step=step, phase="step"),),
    }
    return AgentState(node=node, attempt=1, **{**known, **fields})


def view(*agents: AgentState, **fields: object) -> AttemptView:
    return AttemptView(agents={a.node: a for a in agents}, **fields)


def kinds(events: tuple[ev.AnyEvent, ...]) -> list[str]:
    return [event.kind for event in events]


def test_the_first_step_is_the_lowest_of_all_ranks_and_is_told_once() -> None:
    state = running()
    assert notice(state, view(agent("n1", 3), agent("n2", -1))) == ()
    (first,) = notice(state, view(agent("n1", 3), agent("n2", 2)))
    assert first == ev.FirstStep(attempt=1, step=2)
    after = running(first)
    assert notice(after, view(agent("n1", 9), agent("n2", 8))) == ()


def test_a_commit_seen_before_any_step_does_not_hide_the_first_step() -> None:
    state = running(ev.CheckpointCommitted(attempt=1, step=20))
    assert kinds(notice(state, view(agent("n1", 20), agent("n2", 20)))) == ["first_step"]


def test_progress_is_told_every_30_s_and_at_the_end() -> None:
    state = running(ev.FirstStep(attempt=1, step=1))
    both = (agent("n1", 5), agent("n2", 6))
    assert notice(state, view(*both, since_progress_ms=PROGRESS_EVERY_MS - 1)) == ()
    told = notice(state, view(*both, since_progress_ms=PROGRESS_EVERY_MS))
    assert told == (ev.Progressed(attempt=1, step=5),)
    assert kinds(notice(state, view(*both, gone=frozenset({"n2"})))) == ["progressed", "detected"]


def test_a_node_that_cannot_be_read_is_no_sign_of_anything() -> None:
    state = running(ev.FirstStep(attempt=1, step=1))
    assert notice(state, view(agent("n1", 7))) == ()
    assert lowest_step(state, view(agent("n1", 7))) is None


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (view(agent("n1", 5), agent("n2", 5), gone=frozenset({"n2"})), "node_gone"),
        (
            view(agent("n1", 5), agent("n2", 5, exits=(RankExit(1, "n2", signal=9),))),
            "rank_failed",
        ),
        (
            view(agent("n1", 5), agent("n2", phase=AgentPhase.REFUSED, reason="void")),
            "launch_failed",
        ),
        (view(agent("n1", 5), agent("n2", 5), vanished=frozenset({"n1"})), "agent_gone"),
        (
            view(
                agent("n1", phase=AgentPhase.ENDED, launcher_code=1, exits=()),
                agent("n2", phase=AgentPhase.ENDED, launcher_code=1, exits=()),
            ),
            "launch_failed",
        ),
        (
            view(*(agent(n, 9, phase=AgentPhase.ENDED, launcher_code=0) for n in ("n1", "n2"))),
            "all_exited",
        ),
        (view(agent("n1", 5), age_ms=300_000), "launch_failed"),
    ],
)
def test_the_first_sign_of_an_end(seen: AttemptView, cause: str) -> None:
    state = running(ev.FirstStep(attempt=1, step=5))
    (sign,) = [e for e in notice(state, seen) if isinstance(e, ev.Detected)]
    assert sign.cause == cause


def test_a_rank_that_we_killed_or_that_ended_well_is_no_failure() -> None:
    assert not is_failure(RankExit(0, "n1", signal=9, by_us=True))
    assert not is_failure(RankExit(0, "n1", code=0))
    assert not is_failure(RankExit(0, "n1"))
    assert is_failure(RankExit(0, "n1", code=3))


def test_facts_of_rank_0_are_events_also_while_the_attempt_ends() -> None:
    lines = (
        LoadedLine(step=4, path="p"),
        SaveFailedLine(step=5, reason="No space left on device"),
        CommittedLine(step=6, path="q", took_ms=7),
        DoneLine(step=6, result={"loss": 1.5}),
    )
    ending = running(ev.Detected(attempt=1, cause="all_exited"))
    told = notice(ending, view(lines=lines))
    assert kinds(told) == ["loaded", "checkpoint_failed", "checkpoint_committed", "training_done"]


def test_findings_put_failures_first_and_count_the_clean_ones() -> None:
    state = running()
    ends = (RankExit(0, "n1", code=0, at_ms=1),)
    bad = (RankExit(1, "n2", code=1, at_ms=9),)
    found = findings_of(state, view(agent("n1", 5, exits=ends), agent("n2", 5, exits=bad)))
    assert [end.rank for end in found.exits] == [1, 0]
    assert (found.world, found.clean, found.uses_train) == (2, 1, True)
    assert findings_of(state, view()).silent == ("n1", "n2")
