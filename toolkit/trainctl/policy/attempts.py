"""The part of `evolve` about attempts: how one begins, goes on, ends, and how that is counted."""

from __future__ import annotations

from dataclasses import replace

from trainctl.model.events import (
    AttemptAdopted,
    AttemptExited,
    AttemptLaunched,
    AttemptVoided,
    CheckpointCommitted,
    Detected,
    Event,
    FirstStep,
    Gathered,
    LaunchIntended,
    Loaded,
    Progressed,
    StopRequested,
    TeardownIntended,
    TornDown,
    TrainingDone,
)
from trainctl.model.outcome import STOPS, Domain, Outcome
from trainctl.policy import gang
from trainctl.policy.crash_loop import is_explained
from trainctl.policy.state import Failure, Phase, RunState

HOUR_MS = 3_600_000

_OfAttempt = (
    CheckpointCommitted
    | TrainingDone
    | Detected
    | Loaded
    | FirstStep
    | Progressed
    | Gathered
    | TeardownIntended
    | TornDown
    | AttemptExited
)


def intended(state: RunState, event: LaunchIntended) -> RunState:
    """A launch is about to happen; an attempt that is still open lost its exit."""
    if event.attempt <= state.attempt:
        return state
    state = _close_missing(state, event)
    return replace(
        state,
        phase=Phase.LAUNCHING,
        open_intent=event,
        attempt=event.attempt,
        seats=event.seats,
        resume_step=-1 if event.resume_step is None else event.resume_step,
        resume_path=event.resume,
        step_from=-1 if event.resume_step is None else event.resume_step,
        step=-1 if event.resume_step is None else event.resume_step,
        findings=None,
        detected=None,
        leftover=(),
        # A stop request is of one attempt; only the operator's is of the run.
        stop=_operator(state),
        stop_now=state.stop_now and _operator(state) is not None,
    )


def alive(state: RunState, event: AttemptLaunched | AttemptAdopted) -> RunState:
    """The attempt's agents were started."""
    state = seen(state, event)
    if event.attempt != state.attempt or state.phase is not Phase.LAUNCHING:
        return state
    state = replace(state, phase=Phase.RUNNING, open_intent=None)
    refused = isinstance(event, AttemptLaunched) and bool(event.refused)
    if event.resume_step is None and not refused:
        return state  # as intended
    # The launch looked at the checkpoints themselves: it may have found one less, or one more.
    start = -1 if event.resume_step is None else event.resume_step
    return replace(state, resume_step=start, step_from=start, step=start)


def voided(state: RunState, event: AttemptVoided) -> RunState:
    """The number is spent and nothing ran: no verdict, no count."""
    if event.attempt > state.attempt:
        return replace(_close_missing(state, event), attempt=event.attempt, phase=_rest(state))
    if event.attempt < state.attempt or state.phase not in (Phase.LAUNCHING, Phase.RUNNING):
        return state
    return _closed(state)


def _rest(state: RunState) -> Phase:
    return Phase.PLACING if state.attempt_open else state.phase


def seen(state: RunState, event: AttemptLaunched | AttemptAdopted | _OfAttempt) -> RunState:
    """
    An event of an attempt that nobody told us of: its launch was lost, and what was open before has
    no exit. Everything that follows then treats it as the attempt that runs.
    """
    if event.attempt <= state.attempt or state.phase in (Phase.ENDING, Phase.ENDED):
        return state
    state = _close_missing(state, event)
    return replace(
        state,
        phase=Phase.RUNNING,
        attempt=event.attempt,
        open_intent=None,
        findings=None,
        detected=None,
        resume_step=-1,
        resume_path="",
        step_from=-1,
        step=-1,
    )


def stepped(state: RunState, event: Loaded | FirstStep | Progressed) -> RunState:
    """The attempt's ranks live and stand at a step."""
    if event.attempt != state.attempt or not state.attempt_open:
        return state
    if state.phase is Phase.LAUNCHING:
        state = replace(state, phase=Phase.RUNNING, open_intent=None)
    if isinstance(event, Loaded):
        return replace(state, step_from=event.step, step=max(state.step, event.step))
    if isinstance(event, FirstStep):
        state = replace(state, stepped_in=event.attempt)
    return replace(state, step=max(state.step, event.step))


def committed(state: RunState, event: CheckpointCommitted) -> RunState:
    """A commit above the highest is progress; of the same step the later attempt's counts."""
    if event.step < state.committed:
        return state
    if event.step == state.committed:
        if event.attempt <= state.committed_attempt:
            return state
        return replace(state, committed_attempt=event.attempt, committed_path=event.path)
    state = replace(
        state,
        committed=event.step,
        committed_attempt=event.attempt,
        committed_path=event.path,
        failures=(),
        early_deaths=0,
        gangs_since_progress=0,
        replacements_since_progress=0,
    )
    if event.attempt == state.attempt and state.attempt_open:
        state = replace(state, step=max(state.step, event.step))
    return state


def stop_requested(state: RunState, event: StopRequested) -> RunState:
    """A request is obeyed once, and only by the attempt it names; the operator's outlives it."""
    if event.request:
        if event.request in state.requests_seen:
            return state
        state = replace(state, requests_seen=state.requests_seen | {event.request})
    if event.attempt not in (0, state.attempt) or state.phase in (Phase.ENDING, Phase.ENDED):
        return state
    operator = event.reason is Outcome.STOP_OPERATOR
    if not operator and not state.attempt_open:
        return state
    stop = event.reason if operator or state.stop is None else state.stop
    return replace(
        state,
        stop=stop,
        stop_now=state.stop_now or event.now,
        ended_by_request=state.ended_by_request or operator,
    )


def detected(state: RunState, event: Detected) -> RunState:
    """
    The first sign of the end. A node that is gone and has no seat in the open attempt ends nothing:
    it is a spare that is out.
    """
    if event.cause == "node_gone" and not (state.attempt_open and event.node in state.seats):
        return gang.out(state, event.node)
    if event.attempt != state.attempt or state.phase not in (Phase.LAUNCHING, Phase.RUNNING):
        return state
    return replace(state, phase=Phase.DETECTED, detected=event, open_intent=None)


def exited(state: RunState, event: AttemptExited) -> RunState:
    """The verdict: counted by its domain, and the seats of nodes that are gone become empty."""
    findings = state.findings
    gone = (*(findings.nodes_gone if findings else ()), *state.leftover)
    if event.outcome is Outcome.STOP_DRAIN:
        gone = (*gone, *(suspect.node for suspect in event.suspects))
    state = _count(state, event)
    for node in gone:
        state = gang.out(state, node)
    return replace(_closed(state), last_exit=event)


def _count(state: RunState, event: AttemptExited) -> RunState:
    if event.outcome is Outcome.FINISHED:
        if state.done_step is not None:
            return state
        return replace(state, done_step=max(event.step_to, state.step), launch_failures=0)
    if event.outcome in STOPS:
        counted = event.outcome is not Outcome.STOP_OPERATOR
        return replace(
            state,
            stops_total=state.stops_total + counted,
            launch_failures=0,
            gangs_since_progress=0,
        )
    no_new_step = event.step_to <= event.step_from
    early = no_new_step and not is_explained(event)
    if event.outcome is Outcome.LAUNCH_FAILED:
        return replace(
            state,
            launch_failures=state.launch_failures + 1,
            early_deaths=state.early_deaths + early,
        )
    if event.outcome is not Outcome.UNKNOWN_END:
        # The judge knew of a done marker and did not believe it: a rank failed short of the end.
        state = replace(state, done_step=None)
    failure = Failure(event.attempt, event.at_ms, event, early, state.seats)
    # A time far from this one was written by a clock that has since been set.
    recent = tuple(t for t in state.failure_times if abs(event.at_ms - t) < HOUR_MS)
    # A node took the blame for an early death: it says nothing of those before it.
    deaths = state.early_deaths + early if no_new_step else 0
    return replace(
        state,
        failures=(*state.failures, failure),
        failure_times=(*recent, event.at_ms),
        failures_total=state.failures_total + 1,
        launch_failures=0,
        early_deaths=deaths,
    )


def _close_missing(state: RunState, event: Event) -> RunState:
    """The open attempt ended and nobody wrote how."""
    if not state.attempt_open:
        return state
    end = AttemptExited(
        attempt=state.attempt,
        at_ms=event.at_ms,
        term=event.term,
        outcome=Outcome.UNKNOWN_END,
        domain=Domain.UNKNOWN,
        sentences=(f"attempt {state.attempt} has no exit in the journal",),
        step_from=state.step_from,
        step_to=state.step,
        committed=state.committed,
    )
    return exited(state, end)


def _closed(state: RunState) -> RunState:
    operator = _operator(state)
    return replace(
        state,
        phase=Phase.PLACING,
        open_intent=None,
        findings=None,
        detected=None,
        leftover=(),
        stop=operator,
        stop_now=state.stop_now and operator is not None,
    )


def _operator(state: RunState) -> Outcome | None:
    return state.stop if state.stop is Outcome.STOP_OPERATOR else None
