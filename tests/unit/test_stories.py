"""
Stories of a run: a history of events in, the next action out; the test id is the story's name.

The first are the seven failures that every large run meets. Each story is stopped after each event
and taken over by another supervisor, which must go on with the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from support.histories import History, grant
from support.telling import tell
from trainctl.model.events import (
    AttemptVoided,
    CheckpointCommitted,
    CheckpointFailed,
    Detected,
    GangGranted,
    GangLost,
    GangRequested,
    NodeVerdict,
    Paged,
    PreflightFinished,
    ReplacementGranted,
    ReplacementIntended,
    ReplacementRequested,
    RunResumed,
    RunStopped,
    StopRequested,
    SupervisorStarted,
    TeardownIntended,
    TornDown,
    TrainingDone,
)
from trainctl.model.outcome import Confidence, Domain, EndKind, Outcome, Suspect
from trainctl.policy.actions import Recover, intent
from trainctl.policy.decide import decide
from trainctl.policy.evolve import evolve, fold
from trainctl.policy.limits import Limits
from trainctl.policy.state import RunState

LIKELY = Confidence.LIKELY
DEFAULTS = Limits()


@dataclass(frozen=True)
class Story:
    """A history and what comes next."""

    history: History
    then: str
    limits: Limits = DEFAULTS


def suspect(node: str, confidence: Confidence = LIKELY) -> tuple[Suspect, ...]:
    return (Suspect(node, confidence, "it failed"),)


def preempted_often() -> History:
    history = History()
    for i in range(60):
        history.running(commit=10 * i).exited(Outcome.STOP_PREEMPTED).wait(3600)
    return history.failed(Outcome.APP_ERROR, 1).traded("n1", "n4").failed(Outcome.KILLED_UNKNOWN, 3)


def early(times: int, history: History | None = None) -> History:
    history = history or History()
    for i in range(times):
        history.failed(Outcome.APP_ERROR, steps=0, place=f"train.py:f{i}").backed_off().wait(3600)
    return history


def checked(*verdicts: tuple[str, str], nodes: int = 4, history: History | None = None) -> History:
    """The nodes were checked before the first attempt, with these verdicts of the check `gpu`."""
    history = history or History()
    return history.add(
        PreflightFinished(
            attempt=history.attempt + 1,
            checked=tuple(f"n{i}" for i in range(1, nodes + 1)),
            verdicts=tuple(NodeVerdict(node, "gpu", verdict, "…") for node, verdict in verdicts),
        )
    )


CHECKING = Limits(preflight=True)
REPLACING = Limits(can_replace=True)
OBSERVING = Limits(act=False)

STORIES: dict[str, Story] = {
    # --- the seven failures that every large run meets ----------------------------------------
    "a node dies: quarantined first": Story(History().lost("n2"), "quarantine n2"),
    "a node died: a spare takes its seat": Story(
        History().lost("n2").quarantined("n2"), "spare n4 for n2 in seat 1"
    ),
    "a rank is killed and nothing says by whom: its node trades places": Story(
        History().failed(Outcome.KILLED_UNKNOWN, 3), "trade n2 with n4"
    ),
    "a bug fails in the same place on three nodes: somebody is paged": Story(
        History()
        .failed(Outcome.APP_ERROR, 0)
        .traded("n1", "n4")
        .failed(Outcome.APP_ERROR, 0)
        .traded("n4", "n2")
        .failed(Outcome.APP_ERROR, 0),
        "page end-crash_loop-a0003",
    ),
    "a bad image, first launch: it waits": Story(
        History().launch_failed(), "back off before a0002"
    ),
    "a bad image, third launch: somebody is paged": Story(
        History().launch_failed().backed_off().launch_failed().backed_off().launch_failed(),
        "page early-deaths-since--1",
    ),
    "a checkpoint is torn: the next attempt resumes from the last committed one": Story(
        History()
        .running(commit=40)
        .add(CheckpointFailed(attempt=1, step=50, reason="No space left on device"))
        .exited(Outcome.KILLED_UNKNOWN, 0)
        .traded("n1", "n4"),
        "launch a0002 on n4 n2 n3 from 40",
    ),
    "60 preemptions and two crashes spend no budget": Story(
        preempted_often().traded("n2", "n1"),
        "launch a0063 on n4 n1 n3 from 590",
        Limits(failures_without_progress=50, max_failures=50),
    ),
    "a preempted run resumes at the committed step at once": Story(
        History().running(commit=40).exited(Outcome.STOP_PREEMPTED),
        "launch a0002 on n1 n2 n3 from 40",
    ),
    # --- an attempt's life --------------------------------------------------------------------
    "a new run asks for nodes and spares": Story(
        History().add(RunResumed()), "launch a0001 on n1 n2 n3 from scratch"
    ),
    "an attempt runs: it is watched": Story(History().running(), "watch"),
    "a stop is passed on": Story(
        History().running().stop(Outcome.STOP_TIME_LIMIT), "pass on stop_time_limit to a0001"
    ),
    "the operator's word counts above the time limit's": Story(
        History().running().stop(Outcome.STOP_TIME_LIMIT).stop(), "pass on stop_operator to a0001"
    ),
    "a first sign of an end: evidence first": Story(
        History().running().add(Detected(attempt=1, cause="rank_failed", node="n1", rank=0)),
        "gather a0001",
    ),
    "a launch that raised is gathered like every end": Story(
        History().intended().add(Detected(attempt=1, cause="launch_failed")), "gather a0001"
    ),
    "a node that is no seat of the attempt dies: the attempt goes on": Story(
        History().running().add(Detected(attempt=1, cause="node_gone", node="n4")), "watch"
    ),
    "a spare that died is given back, not used": Story(
        History()
        .running()
        .add(Detected(attempt=1, cause="node_gone", node="n4"))
        .exited(Outcome.STOP_PREEMPTED),
        "release n4",
    ),
    "torn down without findings: the end is unknown": Story(
        History().running().add(TeardownIntended(attempt=1), TornDown(attempt=1)),
        "verdict a0001 unknown_end unknown",
    ),
    # --- blame --------------------------------------------------------------------------------
    "a hang with a named node: quarantined": Story(
        History().running().exited(Outcome.HANG, 2, domain=Domain.HARDWARE, suspects=suspect("n2")),
        "quarantine n2",
    ),
    "a hang with a guess: no quarantine, a trade": Story(
        History().running().exited(Outcome.HANG, 2, suspects=suspect("n2", Confidence.GUESS)),
        "trade n2 with n4",
    ),
    "a guess at the hardware: no quarantine": Story(
        History().running().exited(Outcome.STRAGGLER, 2, suspects=suspect("n2", Confidence.GUESS)),
        "trade n2 with n4",
    ),
    "storage that fails on one node: neither named nor traded": Story(
        History().failed(Outcome.STORAGE_FAULT, 2), "launch a0002 on n1 n2 n3 from scratch"
    ),
    "a likely suspect of a program's error is not quarantined": Story(
        History().running().exited(Outcome.APP_ERROR, 2, suspects=suspect("n2")),
        "trade n2 with n4",
    ),
    "the storage goes away under all ranks: nobody is named, the same nodes go on": Story(
        History().failed(Outcome.STORAGE_FAULT, 0, 1, 2, 3, 4, 5),
        "launch a0002 on n1 n2 n3 from scratch",
    ),
    "a failure that was first on several nodes trades none": Story(
        History().failed(Outcome.APP_ERROR, 0, 2), "launch a0002 on n1 n2 n3 from scratch"
    ),
    "no spare: the first node trades seats within the attempt": Story(
        History(spares=0).failed(Outcome.APP_ERROR, 0), "trade n1 with n2"
    ),
    "a trade between seats prefers a node that did not fail first itself": Story(
        History(spares=0)
        .failed(Outcome.APP_ERROR, 0)
        .traded("n1", "n2")
        .failed(Outcome.APP_ERROR, 0),
        "trade n2 with n3",
    ),
    "one trade a failure": Story(
        History().failed(Outcome.APP_ERROR, 0).traded("n1", "n4"),
        "launch a0002 on n4 n2 n3 from scratch",
    ),
    "one trade a failure, also between seats": Story(
        History(spares=0).failed(Outcome.APP_ERROR, 0).traded("n1", "n2"),
        "launch a0002 on n2 n1 n3 from scratch",
    ),
    "a node that came later is used before one that was traded out": Story(
        History()
        .failed(Outcome.APP_ERROR, 0)
        .traded("n1", "n4")
        .add(ReplacementGranted(name="run-r001", node=grant("n9")))
        .lost("n2")
        .quarantined("n2"),
        "spare n9 for n2 in seat 1",
    ),
    "the node that was traded out is the last spare": Story(
        History(spares=2)
        .failed(Outcome.APP_ERROR, 0)
        .traded("n1", "n4")
        .lost("n2")
        .quarantined("n2"),
        "spare n5 for n2 in seat 1",
    ),
    "a node that was traded out is a spare still": Story(
        History().failed(Outcome.APP_ERROR, 0).traded("n1", "n4").lost("n2").quarantined("n2"),
        "spare n1 for n2 in seat 1",
    ),
    "a drained node is left without being condemned": Story(
        History().running().exited(Outcome.STOP_DRAIN, suspects=suspect("n3")),
        "spare n4 for n3 in seat 2",
    ),
    "many nodes named at once: nobody is quarantined, a human is asked": Story(
        History(nodes=3)
        .running()
        .exited(Outcome.GPU_FAULT, 0, suspects=(*suspect("n1"), *suspect("n2"), *suspect("n3"))),
        "page many-suspects-a0001",
    ),
    # --- crash loops --------------------------------------------------------------------------
    "two of one failure are no crash loop": Story(
        History().failed(Outcome.APP_ERROR, 0).traded("n1", "n4").failed(Outcome.APP_ERROR, 0),
        "trade n4 with n1",
    ),
    "another place in the program begins another row": Story(
        History()
        .failed(Outcome.APP_ERROR, 0)
        .traded("n1", "n4")
        .failed(Outcome.APP_ERROR, 0)
        .traded("n4", "n1")
        .failed(Outcome.APP_ERROR, 0, place="other.py:f")
        .traded("n1", "n4"),
        "launch a0004 on n4 n2 n3 from scratch",
    ),
    "progress in between begins another row": Story(
        History()
        .failed(Outcome.APP_ERROR, 0, 2)
        .failed(Outcome.APP_ERROR, 0, 2)
        .running(commit=10)
        .exited(Outcome.APP_ERROR, 0, 2, place="x.py:f"),
        "launch a0004 on n1 n2 n3 from 10",
    ),
    "a planned stop in between does not": Story(
        History()
        .failed(Outcome.APP_ERROR, 0, 2)
        .failed(Outcome.APP_ERROR, 0, 2)
        .running()
        .exited(Outcome.STOP_PREEMPTED)
        .failed(Outcome.APP_ERROR, 0, 2),
        "page end-crash_loop-a0004",
    ),
    "a launch that failed in between does not": Story(
        History()
        .failed(Outcome.APP_ERROR, 0, 2)
        .failed(Outcome.APP_ERROR, 0, 2)
        .launch_failed()
        .failed(Outcome.APP_ERROR, 0, 2),
        "page end-crash_loop-a0004",
    ),
    "a storage outage is no crash loop": Story(
        History()
        .failed(Outcome.STORAGE_FAULT, 0, 2)
        .failed(Outcome.STORAGE_FAULT, 0, 2)
        .failed(Outcome.STORAGE_FAULT, 0, 2),
        "launch a0004 on n1 n2 n3 from scratch",
    ),
    "a crash loop that was paged gives its nodes back": Story(
        History()
        .failed(Outcome.APP_ERROR, 0, 2)
        .failed(Outcome.APP_ERROR, 0, 2)
        .failed(Outcome.APP_ERROR, 0, 2)
        .add(Paged(key="end-crash_loop-a0003", message="…")),
        "release n1 n2 n3 n4",
    ),
    "and then it ends": Story(
        History()
        .failed(Outcome.APP_ERROR, 0, 2)
        .failed(Outcome.APP_ERROR, 0, 2)
        .failed(Outcome.APP_ERROR, 0, 2)
        .add(Paged(key="end-crash_loop-a0003", message="…"))
        .released("n1", "n2", "n3", "n4"),
        "stopped: crash_loop",
    ),
    # --- budgets and waiting ------------------------------------------------------------------
    "the budget without progress": Story(
        early(50), "page end-budget-a0050", Limits(early_deaths=99)
    ),
    "49 failures are within it": Story(
        early(49), "launch a0050 on n1 n2 n3 from scratch", Limits(early_deaths=99)
    ),
    "the budget of an hour": Story(
        History()
        .failed(Outcome.STORAGE_FAULT, 0, 2)
        .running(commit=10)
        .exited(Outcome.STORAGE_FAULT, 0, 2),
        "page end-budget-a0002",
        Limits(failures_per_hour=2),
    ),
    "failures over more than an hour do not spend it": Story(
        History()
        .failed(Outcome.STORAGE_FAULT, 0, 2)
        .wait(3600)
        .failed(Outcome.STORAGE_FAULT, 0, 2),
        "launch a0003 on n1 n2 n3 from scratch",
        Limits(failures_per_hour=2),
    ),
    "the budget of the whole run": Story(
        History().running(commit=10).exited(Outcome.APP_ERROR, 0),
        "page end-budget-a0001",
        Limits(max_failures=1),
    ),
    "stops have a budget of their own": Story(
        History().running(commit=10).exited(Outcome.STOP_PREEMPTED),
        "page end-budget-a0001",
        Limits(stops=1),
    ),
    "launches that fail have one too": Story(
        History().launch_failed().launch_failed(),
        "page end-budget-a0002",
        Limits(launch_failures=2),
    ),
    "launches that fail spend no other": Story(
        History().launch_failed().backed_off().wait(60),
        "launch a0002 on n1 n2 n3 from scratch",
        Limits(failures_without_progress=1, failures_per_hour=1, max_failures=1),
    ),
    "a backoff is waited for": Story(early(1), "launch a0002 on n1 n2 n3 from scratch"),
    "within a backoff nothing is launched": Story(
        History().failed(Outcome.APP_ERROR, steps=0).backed_off(600), "watch"
    ),
    "a clock that was set back makes no endless backoff": Story(
        History().failed(Outcome.APP_ERROR, steps=0).backed_off(7 * 24 * 3600),
        "launch a0002 on n1 n2 n3 from scratch",
    ),
    "an early death that a node explains waits for nothing": Story(
        History()
        .running(0)
        .exited(Outcome.NODE_LOST, 2, suspects=suspect("n2"), steps=0)
        .quarantined("n2")
        .spare("n4", "n2")
        .released("n2"),
        "launch a0002 on n1 n4 n3 from scratch",
    ),
    "a resumed run counts anew": Story(
        early(50)
        .add(Paged(key="end-budget-a0050", message="…"))
        .add(RunResumed(by="me"))
        .failed(Outcome.APP_ERROR, 0, 2),
        "launch a0052 on n1 n2 n3 from scratch",
    ),
    # --- stops --------------------------------------------------------------------------------
    "a stop while it backs off": Story(
        History().failed(Outcome.APP_ERROR, steps=0).backed_off(600).stop(), "release n1 n2 n3 n4"
    ),
    "a stop while it launches: the launch is finished first": Story(
        History().intended().stop(), "launch a0001 on n1 n2 n3 from scratch"
    ),
    "a stop while it launched: passed on": Story(
        History().intended().stop().running().stop(), "pass on stop_operator to a0002"
    ),
    "a stop of a launch that never was": Story(
        History().intended().stop().add(AttemptVoided(attempt=1)), "release n1 n2 n3 n4"
    ),
    "a stop with no attempt": Story(History().stop(attempt=0), "release n1 n2 n3 n4"),
    "a stopped run ends": Story(
        History()
        .running(commit=5)
        .stop()
        .exited(Outcome.STOP_OPERATOR)
        .released("n1", "n2", "n3", "n4"),
        "stopped: operator",
    ),
    "the operator's stop stands, though the attempt crashed at it": Story(
        History().running().stop().exited(Outcome.APP_ERROR, 0), "release n1 n2 n3 n4"
    ),
    "a preemption's stop does not outlive its attempt": Story(
        History().running().stop(Outcome.STOP_PREEMPTED).exited(Outcome.STOP_PREEMPTED).running(),
        "watch",
    ),
    "a stop of an older attempt stops nothing": Story(
        History().running().exited(Outcome.STOP_PREEMPTED).running().stop(attempt=1), "watch"
    ),
    "a request that was obeyed once stops no later attempt": Story(
        History()
        .running()
        .add(StopRequested(attempt=1, reason=Outcome.STOP_DRAIN, request="r1"))
        .exited(Outcome.STOP_DRAIN)
        .running()
        .add(StopRequested(attempt=2, reason=Outcome.STOP_DRAIN, request="r1")),
        "watch",
    ),
    "a drain with no attempt stops nothing": Story(
        History().stop(Outcome.STOP_DRAIN, attempt=0), "launch a0001 on n1 n2 n3 from scratch"
    ),
    "finished: nodes are given back": Story(
        History().running(commit=5).add(TrainingDone(attempt=1, step=5)).exited(Outcome.FINISHED),
        "release n1 n2 n3 n4",
    ),
    "finished: the run's last word": Story(
        History()
        .running(commit=5)
        .add(TrainingDone(attempt=1, step=5))
        .exited(Outcome.FINISHED)
        .released("n1", "n2", "n3", "n4"),
        "finished at 5",
    ),
    "a done marker that the judge did not believe is no end": Story(
        History()
        .running(commit=5)
        .add(TrainingDone(attempt=1, step=9))
        .exited(Outcome.APP_ERROR, 0)
        .traded("n1", "n4"),
        "launch a0002 on n4 n2 n3 from 5",
    ),
    # --- nodes run out ------------------------------------------------------------------------
    "no spare is left: a replacement": Story(
        History(spares=0).lost("n2").quarantined("n2"), "replacement run-r001 without n2", REPLACING
    ),
    "a replacement is waited for": Story(
        History(spares=0)
        .lost("n2")
        .quarantined("n2")
        .add(
            ReplacementIntended(name="run-r001"),
            ReplacementRequested(name="run-r001"),
        ),
        "watch",
        REPLACING,
    ),
    "a replacement that could not be had is asked for again": Story(
        History(spares=0)
        .lost("n2")
        .quarantined("n2")
        .add(
            ReplacementIntended(name="run-r001"),
            GangLost(name="run-r001"),
        ),
        "replacement run-r002 without n2",
        REPLACING,
    ),
    "no replacement: what is left is given back": Story(
        History(spares=0).lost("n2").quarantined("n2"), "release n1 n2 n3"
    ),
    "no replacement: a new gang": Story(
        History(spares=0).lost("n2").quarantined("n2").released("n1", "n2", "n3"),
        "gang run-g002 of 3 without n2",
    ),
    "the gang was lost: all of it is given back": Story(
        History().running().exited(Outcome.STOP_PREEMPTED).add(GangLost(name="run-g001")),
        "release n1 n2 n3 n4",
    ),
    "a gang that could not be had: it waits": Story(
        History()
        .add(GangLost(name="run-g001"))
        .released("n1", "n2", "n3", "n4")
        .add(GangRequested(name="run-g002", nodes=4), GangLost(name="run-g002")),
        "back off before a0001",
    ),
    "and asks again": Story(
        History()
        .add(GangLost(name="run-g001"))
        .released("n1", "n2", "n3", "n4")
        .add(GangRequested(name="run-g002", nodes=4), GangLost(name="run-g002"))
        .backed_off()
        .wait(60),
        "gang run-g003 of 4",
    ),
    "no gang can be had at all: a human is asked": Story(
        History(spares=0).lost("n2").quarantined("n2").released("n1", "n2", "n3"),
        "page end-needs_human-a0001",
        Limits(gangs=1),
    ),
    # --- checks before an attempt -------------------------------------------------------------
    "all nodes are checked": Story(History(), "check a0001 round 1: n1 n2 n3 n4", CHECKING),
    "all well": Story(checked(), "launch a0001 on n1 n2 n3 from scratch", CHECKING),
    "one is bad: quarantined": Story(checked(("n2", "bad")), "quarantine n2", CHECKING),
    "a replacement is checked too": Story(
        checked(("n2", "bad"), nodes=3, history=History(spares=0))
        .quarantined("n2")
        .released("n2")
        .add(GangGranted(name="run-g002", nodes=(grant("n4"),))),
        "spare n4 for nobody in seat 1",
        CHECKING,
    ),
    "a spare that came after the checks is checked in a second round": Story(
        checked(("n2", "bad"), nodes=3).quarantined("n2").spare("n4", "n2").released("n2"),
        "check a0001 round 2: n4",
        CHECKING,
    ),
    "three of four fail one check: one common cause": Story(
        checked(("n1", "bad"), ("n2", "bad"), ("n3", "bad")),
        "page end-needs_human-a0000",
        CHECKING,
    ),
    "both of two fail one check: one common cause": Story(
        checked(("n1", "bad"), ("n2", "bad"), nodes=2, history=History(nodes=2, spares=0)),
        "page end-needs_human-a0000",
        CHECKING,
    ),
    "a check that could not tell condemns nobody": Story(
        checked(("n2", "unsure")), "trade n2 with n4", CHECKING
    ),
    "checks that could not tell say nothing": Story(
        checked(("n1", "unsure"), ("n2", "unsure")),
        "launch a0001 on n1 n2 n3 from scratch",
        CHECKING,
    ),
    "rounds of checks have a limit": Story(
        checked(("n2", "bad"), nodes=2, history=History(nodes=3, spares=0)).quarantined("n2"),
        "page end-needs_human-a0000",
        Limits(preflight=True, preflight_rounds=1, can_replace=False, gangs=1),
    ),
    # --- damaged histories --------------------------------------------------------------------
    "a missing exit is an unknown end": Story(History().running().running(), "watch"),
    "a late commit of an older attempt counts": Story(
        History()
        .running()
        .exited(Outcome.STOP_PREEMPTED)
        .running()
        .exited(Outcome.STOP_PREEMPTED)
        .add(CheckpointCommitted(attempt=1, step=7, path="step-7")),
        "launch a0003 on n1 n2 n3 from 7",
    ),
    "a void number is never used": Story(
        History().add(AttemptVoided(attempt=7)), "launch a0008 on n1 n2 n3 from scratch"
    ),
    "a grant read again later brings no node back": Story(
        History()
        .running()
        .add(Detected(attempt=1, cause="node_gone", node="n4"))
        .exited(Outcome.STOP_PREEMPTED)
        .released("n4")
        .add(GangGranted(name="run-g001", nodes=tuple(grant(f"n{i}") for i in range(1, 5))))
        .lost("n1")
        .quarantined("n1"),
        "release n1 n2 n3",
    ),
    "a quarantined node that is granted again is given back": Story(
        History(spares=0)
        .lost("n2")
        .quarantined("n2")
        .released("n1", "n2", "n3")
        .add(
            GangRequested(name="run-g002", nodes=3),
            GangGranted(name="run-g002", nodes=tuple(grant(f"n{i}") for i in range(2, 6))),
        ),
        "release n2",
    ),
    "an end that was written while nodes were held: they are given back": Story(
        History().add(RunStopped(end=EndKind.NEEDS_HUMAN, reason="…")), "release n1 n2 n3 n4"
    ),
    # --- another's intents --------------------------------------------------------------------
    "a launch that another intended is looked up": Story(
        History().intended().add(SupervisorStarted(term=2), term=2), "recover launch_intended"
    ),
    "a launch that was ours goes on": Story(
        History().intended(), "launch a0001 on n1 n2 n3 from scratch"
    ),
    "a teardown that another intended is looked up": Story(
        History()
        .running()
        .add(Detected(attempt=1, cause="hang"), TeardownIntended(attempt=1))
        .add(SupervisorStarted(term=2), term=2),
        "recover teardown_intended",
    ),
    # --- observe only -------------------------------------------------------------------------
    "observe only: no launch": Story(History(), "would: launch_intended", OBSERVING),
    "observe only: no quarantine": Story(
        History().lost("n2"), "would: quarantine_intended", OBSERVING
    ),
    "observe only: no trade": Story(
        History().failed(Outcome.APP_ERROR, 0), "would: trade n1 with n4", OBSERVING
    ),
    "observe only: an end is gathered": Story(
        History().running().add(Detected(attempt=1, cause="all_exited")), "gather a0001", OBSERVING
    ),
    "observe only: no stop is passed on": Story(History().running().stop(), "watch", OBSERVING),
    "observe only: no page": Story(
        History().launch_failed(), "would: paged", Limits(act=False, launch_failures=1)
    ),
}


def then(story: Story) -> str:
    return tell(decide(fold(story.history.events), story.limits, story.history.now_ms))


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_story(story: Story) -> None:
    assert then(story) == story.then


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_supervisor_that_takes_over_after_any_event_goes_on_with_the_same(story: Story) -> None:
    before = RunState()
    for event in story.history.events:
        before = evolve(before, event)
        now_ms = event.at_ms
        after = evolve(before, SupervisorStarted(term=before.term + 1))
        action, again = (decide(s, story.limits, now_ms) for s in (before, after))
        if before.open_intent is None:
            assert again == action
        elif story.limits.act:
            assert again == Recover(before.open_intent)


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_an_event_read_twice_changes_nothing(story: Story) -> None:
    twice = [event for event in story.history.events for _ in range(2)]
    now_ms = story.history.now_ms
    once = decide(fold(story.history.events), story.limits, now_ms)
    assert decide(fold(twice), story.limits, now_ms) == once


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_an_intended_action_is_decided_again_until_it_is_done(story: Story) -> None:
    state = fold(story.history.events)
    now_ms = story.history.now_ms
    action = decide(state, story.limits, now_ms)
    if (intended := intent(action)) is not None and state.open_intent is None:
        stamped = type(intended)(**{**_fields(intended), "term": state.term})
        assert decide(fold([stamped], state), story.limits, now_ms) == action


def _fields(event: object) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}  # type: ignore[attr-defined]
