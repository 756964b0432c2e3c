"""
What to do next, from what is known: pure, idempotent, and the same in every supervisor.

Asked twice with the same state it gives the same action; the loop knows which one is in flight. An
intent that an earlier holder left open is looked up before anything else is done.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from trainctl.model.events import (
    AnyEvent,
    AttemptExited,
    AttemptLaunched,
    BackoffStarted,
    LaunchIntended,
    Paged,
    PreflightFinished,
)
from trainctl.model.evidence import Findings
from trainctl.model.outcome import Domain, Outcome, Verdict
from trainctl.policy import placing
from trainctl.policy.actions import (
    Action,
    Gather,
    Page,
    PassOnStop,
    Preflight,
    Record,
    Recover,
    Release,
    TearDown,
    Watch,
    action_of,
    intent,
)
from trainctl.policy.blame import evidence
from trainctl.policy.blame import judge as blame
from trainctl.policy.crash_loop import weigh
from trainctl.policy.limits import Limits
from trainctl.policy.naming import bare
from trainctl.policy.state import Phase, RunState

Judge = Callable[[Findings], Verdict]


def decide(state: RunState, limits: Limits, now_ms: int, judge: Judge = blame) -> Action:
    """
    The next action of the run in `state` at `now_ms` (UTC).

    `judge` gives the verdict on what was gathered of an attempt; by default `policy.blame.judge`.
    """
    action = _decide(state, limits, now_ms, judge)
    return action if limits.act else _would(state, action, judge)


def _decide(state: RunState, limits: Limits, now_ms: int, judge: Judge) -> Action:
    if state.created is None or state.phase is Phase.ENDED:
        return Watch()
    if (unfinished := _open_intent(state)) is not None:
        return unfinished
    match state.phase:
        case Phase.NEW | Phase.ALLOCATING:
            return _first(placing.NEW, state, limits, now_ms)
        case Phase.PLACING:
            return _first(placing.PLACING, state, limits, now_ms)
        case Phase.ENDING:
            return Release(state.held, f"the run ends: {state.end}")
        case _:
            return _of_attempt(state, judge)


def _open_intent(state: RunState) -> Action | None:
    """What was begun is finished first: by us, or by looking up what another holder did of it."""
    if state.open_intent is None:
        return None
    if state.open_intent.term < state.term:
        return Recover(state.open_intent)
    return action_of(state.open_intent)


def _first(rules: tuple[placing.Rule, ...], state: RunState, limits: Limits, now_ms: int) -> Action:
    for rule in rules:
        if (action := rule(state, limits, now_ms)) is not None:
            return action
    return Watch()


def _of_attempt(state: RunState, judge: Judge) -> Action:
    match state.phase:
        case Phase.DETECTED:
            return Gather(state.attempt)
        case Phase.GATHERED | Phase.TEARING_DOWN:
            return TearDown(state.attempt)
        case Phase.TORN_DOWN:
            return Record(_verdict(state, judge))
        case _ if state.stop is not None:
            return PassOnStop(state.attempt, state.stop, state.stop_now)
        case _:
            return Watch()


def _verdict(state: RunState, judge: Judge) -> AttemptExited:
    """What the judge says of the attempt, weighed with the failures before it."""
    if state.findings is None:
        why = "nothing was gathered before it was torn down"
        verdict = Verdict(Outcome.UNKNOWN_END, Domain.UNKNOWN, (why,))
    else:
        verdict = weigh(judge(state.findings), state.failures, state.seats)
    return AttemptExited(
        attempt=state.attempt,
        outcome=verdict.outcome,
        domain=verdict.domain,
        sentences=verdict.sentences,
        suspects=verdict.suspects,
        fingerprint=verdict.fingerprint,
        first=verdict.first,
        step_from=state.step_from,
        step_to=state.step,
        committed=state.committed,
        evidence=evidence(state.findings) if state.findings else (),
    )


# --- observe-only -----------------------------------------------------------------------------


def _would(state: RunState, action: Action, judge: Judge) -> Action:
    """
    Observe-only: what is seen and judged is recorded, what would be done is said once.

    Gathering is observation, and so is looking up whether a launch that another holder intended is
    alive. An attempt that would be torn down is judged by what was gathered.
    """
    match action:
        case Watch() | Gather() | Record(AttemptExited()) | Recover(LaunchIntended()):
            return action
        case PassOnStop() | Record(BackoffStarted()):
            return Watch()
    said = msgspec.structs.replace(_said(action), would=True)
    if bare(said) not in state.would:
        return Record(said)
    return Record(_verdict(state, judge)) if isinstance(action, TearDown) else Watch()


def _said(action: Action) -> AnyEvent:
    match action:
        case Record(event):
            return bare(event)
        case Recover(event):
            return bare(event)
        case Page(key, message):
            return Paged(key=key, message=message)
        case Preflight(attempt, round_, nodes):
            return PreflightFinished(attempt=attempt, round=round_, checked=nodes)
        case _:
            return intent(action) or AttemptLaunched(attempt=0)
