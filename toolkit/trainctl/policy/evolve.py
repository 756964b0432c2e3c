"""
What is known of a run after one event more: the fold of the journal, which never raises.

A journal may be damaged: an exit that was never written, an event twice, one of an older attempt
that arrives late, a clock that jumped back. So every case here asks whether the event is still news
and leaves the state as it is where it is not. Only facts that stay true whoever tells them late (a
checkpoint is committed, a node is quarantined, the training is done) count whenever they come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from trainctl.model.events import (
    AnyEvent,
    AttemptAdopted,
    AttemptExited,
    AttemptLaunched,
    AttemptVoided,
    BackoffStarted,
    CheckpointCommitted,
    CheckpointFailed,
    Detected,
    FirstStep,
    GangGranted,
    GangLost,
    GangRequested,
    Gathered,
    HangCleared,
    HangSuspected,
    LaunchIntended,
    LeaseReleased,
    Loaded,
    NodeQuarantined,
    NodeReleased,
    NodeTraded,
    Paged,
    PageFailed,
    PreflightFinished,
    Progressed,
    QuarantineIntended,
    ReleaseIntended,
    ReplacementGranted,
    ReplacementIntended,
    ReplacementRequested,
    RunCreated,
    RunFinished,
    RunResumed,
    RunStopped,
    SpareUsed,
    Stall,
    StopRequested,
    StragglerSuspected,
    SupervisorLost,
    SupervisorStarted,
    TeardownIntended,
    TornDown,
    TrainingDone,
    Unknown,
)
from trainctl.model.outcome import EndKind
from trainctl.policy import attempts, gang
from trainctl.policy.naming import bare
from trainctl.policy.state import Phase, RunState

_Life = (
    RunCreated
    | RunResumed
    | SupervisorStarted
    | SupervisorLost
    | LeaseReleased
    | RunFinished
    | RunStopped
)
_Gang = (
    GangRequested
    | GangGranted
    | GangLost
    | ReplacementIntended
    | ReplacementRequested
    | ReplacementGranted
    | BackoffStarted
)
_Node = (
    QuarantineIntended
    | NodeQuarantined
    | ReleaseIntended
    | NodeReleased
    | NodeTraded
    | SpareUsed
    | PreflightFinished
)
_Start = LaunchIntended | AttemptLaunched | AttemptAdopted | AttemptVoided
_Sign = (
    Loaded | FirstStep | Progressed | CheckpointCommitted | TrainingDone | StopRequested | Detected
)
_Ending = Gathered | TeardownIntended | TornDown | AttemptExited
_Told = (
    Paged | PageFailed | Stall | CheckpointFailed | HangSuspected | HangCleared | StragglerSuspected
)


def fold(events: Iterable[AnyEvent | Unknown], state: RunState | None = None) -> RunState:
    """The state after `events`, from nothing or from `state` on."""
    state = state or RunState()
    for event in events:
        state = evolve(state, event)
    return state


def evolve(state: RunState, event: AnyEvent | Unknown) -> RunState:
    """The state after `event`. What is no news, unknown or impossible leaves it as it is."""
    if isinstance(event, Unknown):
        return state
    if event.would:
        return _would(state, event)
    if isinstance(event, _Sign):
        return _sign(state, event)
    if isinstance(event, _Told):
        return _told(state, event)
    if isinstance(event, _Start):
        return _start(state, event)
    if isinstance(event, _Ending):
        return _ending(state, event)
    if isinstance(event, _Node):
        return _node(state, event)
    if isinstance(event, _Gang):
        return _gang(state, event)
    if isinstance(event, _Life):
        return _life(state, event)
    assert_never(event)


def _would(state: RunState, event: AnyEvent) -> RunState:
    """Observe-only: remembered so that it is said once, and nothing else."""
    said = bare(event)
    return state if said in state.would else replace(state, would=(*state.would, said))


def _life(state: RunState, event: _Life) -> RunState:
    match event:
        case RunCreated():
            if state.created is not None:
                return state
            return replace(state, created=event, seats=("",) * max(event.nodes, 0))
        case SupervisorStarted():
            return replace(state, term=max(state.term, event.term))
        case RunResumed():
            return _resumed(state, event)
        case RunFinished():
            return _ended(state, EndKind.FINISHED, f"finished at step {event.step}", ())
        case RunStopped():
            return _ended(state, event.end, event.reason, event.evidence)
        case SupervisorLost() | LeaseReleased():
            return state
        case _:
            assert_never(event)


def _ended(state: RunState, end: EndKind, reason: str, evidence: tuple[str, ...]) -> RunState:
    # A run whose nodes are still held has something left to do.
    phase = Phase.ENDING if state.nodes else Phase.ENDED
    return replace(
        state, phase=phase, end=end, end_reason=reason, end_evidence=evidence, backoff_until_ms=0
    )


def _resumed(state: RunState, event: RunResumed) -> RunState:
    """A person started the run again: what was counted, asked and paged before is history."""
    if state.phase in (Phase.ENDING, Phase.ENDED):
        state = replace(state, phase=Phase.PLACING if state.nodes else Phase.NEW)
    return replace(
        state,
        end=None,
        end_reason="",
        end_evidence=(),
        ended_by_request=False,
        stop=None,
        stop_now=False,
        requests_seen=state.requests_seen.union(event.requests),
        failures=(),
        failure_times=(),
        failures_total=0,
        stops_total=0,
        launch_failures=0,
        early_deaths=0,
        gangs_since_progress=0,
        gangs_lost=0,
        replacements_since_progress=0,
        preflight_for=0,
        preflights=(),
        backoff_until_ms=0,
        pages=frozenset(),
        would=(),
    )


def _gang(state: RunState, event: _Gang) -> RunState:
    match event:
        case GangRequested():
            return gang.requested(state, event)
        case GangGranted():
            return gang.granted(state, event)
        case GangLost():
            return gang.lost(state, event)
        case ReplacementIntended():
            return gang.replacement_intended(state, event)
        case ReplacementRequested():
            return gang.replacement_requested(state, event)
        case ReplacementGranted():
            return gang.replacement_granted(state, event)
        case BackoffStarted():
            if state.phase is Phase.NEW:
                state = replace(state, backoff_gang=state.gangs + 1)
            return replace(state, backoff_for=event.attempt, backoff_until_ms=event.until_ms)
        case _:
            assert_never(event)


def _node(state: RunState, event: _Node) -> RunState:
    match event:
        case QuarantineIntended():
            new = event.node not in state.quarantined
            return replace(state, open_intent=event) if new else state
        case ReleaseIntended():
            held = any(node in state.nodes for node in event.nodes)
            return replace(state, open_intent=event) if held else state
        case NodeQuarantined():
            return gang.quarantined(state, event)
        case NodeReleased():
            return gang.released(state, event)
        case NodeTraded():
            return gang.traded(state, event)
        case SpareUsed():
            return gang.spare_used(state, event)
        case PreflightFinished():
            if event.attempt != state.next_attempt:
                return state
            earlier = state.preflights if state.preflight_for == event.attempt else ()
            if any(done.round == event.round for done in earlier):
                return state
            return replace(state, preflight_for=event.attempt, preflights=(*earlier, event))
        case _:
            assert_never(event)


def _start(state: RunState, event: _Start) -> RunState:
    match event:
        case LaunchIntended():
            return attempts.intended(state, event)
        case AttemptLaunched() | AttemptAdopted():
            return attempts.alive(state, event)
        case AttemptVoided():
            return attempts.voided(state, event)
        case _:
            assert_never(event)


def _sign(state: RunState, event: _Sign) -> RunState:
    match event:
        case CheckpointCommitted():
            return attempts.committed(attempts.seen(state, event), event)
        case TrainingDone():
            state = attempts.seen(state, event)
            return replace(state, done_step=event.step, done_result=event.result)
        case StopRequested():
            return attempts.stop_requested(state, event)
        case Detected():
            return attempts.detected(attempts.seen(state, event), event)
        case Loaded() | FirstStep() | Progressed():
            return attempts.stepped(attempts.seen(state, event), event)
        case _:
            assert_never(event)


def _ending(state: RunState, event: _Ending) -> RunState:
    state = attempts.seen(state, event)
    if event.attempt != state.attempt or not state.attempt_open:
        return state
    match event:
        case Gathered():
            if state.phase in (Phase.TEARING_DOWN, Phase.TORN_DOWN):
                return replace(state, findings=state.findings or event.findings)
            return replace(state, phase=Phase.GATHERED, findings=event.findings, open_intent=None)
        case TeardownIntended():
            return replace(state, phase=Phase.TEARING_DOWN, open_intent=event)
        case TornDown():
            return replace(state, phase=Phase.TORN_DOWN, open_intent=None, leftover=event.leftover)
        case AttemptExited():
            return attempts.exited(state, event)
        case _:
            assert_never(event)


def _told(state: RunState, event: _Told) -> RunState:
    match event:
        case Paged() | PageFailed():
            # A page that failed is not tried again: the run's last line says the same.
            return replace(state, pages=state.pages | {event.key})
        case Stall() | CheckpointFailed() | HangSuspected() | HangCleared() | StragglerSuspected():
            return state
        case _:
            assert_never(event)
