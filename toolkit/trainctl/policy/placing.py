"""
Between two attempts: rules in the order in which they are tried, each `(state, limits, now_ms) ->
Action | None`. The first that has something to do decides; all are asked again after each event, so
a supervisor that dies between two of them loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from trainctl.model.outcome import EndKind, Outcome
from trainctl.policy import readiness, seating
from trainctl.policy.actions import (
    Action,
    Quarantine,
)
from trainctl.policy.crash_loop import chain, culprits
from trainctl.policy.ending import end, page_once
from trainctl.policy.guard import bad_verdicts, common_cause, too_many
from trainctl.policy.limits import Limits
from trainctl.policy.naming import (
    plural,
)
from trainctl.policy.state import RunState

Rule = Callable[[RunState, Limits, int], Action | None]

# --- is the run over? -------------------------------------------------------------------------


def end_when_operator_asked(state: RunState, limits: Limits, _now_ms: int) -> Action | None:
    """A person asked for a stop: the run is not relaunched."""
    if state.stop is not Outcome.STOP_OPERATOR:
        return None
    where = f"resumes at step {state.committed}" if state.committed >= 0 else "nothing committed"
    return end(state, limits, EndKind.OPERATOR, f"stopped by the operator; {where}")


def end_when_done(state: RunState, limits: Limits, _now_ms: int) -> Action | None:
    """The trainer wrote its done marker."""
    if state.done_step is None:
        return None
    return end(state, limits, EndKind.FINISHED, f"finished at step {state.done_step}")


def end_on_crash_loop(state: RunState, limits: Limits, _now_ms: int) -> Action | None:
    """The same failure again and again, and no node explains it: restarting is pointless."""
    row = chain(state.failures)
    if len(row) < limits.crash_loop:
        return None
    last = row[-1].exited
    seats = ", ".join(
        f"a{failure.attempt:04d}: "
        + (" ".join(f"rank {s.rank} on {s.node}" for s in failure.exited.first[:3]) or "nowhere")
        for failure in row[-limits.crash_loop :]
    )
    reason = f"crash loop: {last.fingerprint} {len(row)} times in a row without progress"
    evidence = (f"first seen at {seats}", *last.sentences[:3])
    return end(state, limits, EndKind.CRASH_LOOP, reason, evidence)


def end_on_spent_budget(state: RunState, limits: Limits, _now_ms: int) -> Action | None:
    """A count has reached its limit; the counts do not change while the run ends."""
    counts = (
        (len(state.failures), limits.failures_without_progress, "failures without progress"),
        (len(state.failure_times), limits.failures_per_hour, "failures within an hour"),
        (state.failures_total, limits.max_failures, "failures in all"),
        (state.launch_failures, limits.launch_failures, "launches in a row that failed"),
        (state.stops_total, limits.stops, "planned stops"),
    )
    for count, limit, what in counts:
        if limit is not None and count >= limit:
            last = state.last_exit
            said = (f"last: {last.outcome}", *last.sentences[:2]) if last else ()
            reason = f"budget exhausted: {count} {what} (limit {limit})"
            return end(state, limits, EndKind.BUDGET, reason, said)
    return None


def end_on_common_cause(state: RunState, limits: Limits, _now_ms: int) -> Action | None:
    """Too many nodes failed the same check at once: the check or what they share is at fault."""
    if state.preflight_for != state.next_attempt:
        return None
    for done in state.preflights:
        if same := common_cause(done):
            reason = (
                f"{len(same)} of {plural(len(done.checked), 'node')} failed the check"
                f" {same[0].check!r} at once: one common cause, nobody is quarantined"
            )
            evidence = tuple(f"{verdict.node}: {verdict.reason}" for verdict in same[:5])
            return end(state, limits, EndKind.NEEDS_HUMAN, reason, evidence)
    return None


# --- who is out? ------------------------------------------------------------------------------


def quarantine_culprits(state: RunState, _limits: Limits, _now_ms: int) -> Action | None:
    """The nodes that the last verdict names, by more than a guess."""
    last = state.last_exit
    if last is None:
        return None
    named = culprits(last)
    if too_many(len({suspect.node for suspect in named}), len(state.seats)):
        return page_once(
            state,
            f"many-suspects-a{last.attempt:04d}",
            f"attempt {last.attempt} names {plural(len(named), 'node')} at once: one common"
            " cause is likelier, nobody is quarantined",
        )
    for suspect in named:
        if suspect.node not in state.quarantined:
            reason = f"{last.outcome} in attempt {last.attempt}: {suspect.reason}"
            return Quarantine(suspect.node, reason, last.sentences, suspect.confidence)
    return None


def quarantine_failed_checks(state: RunState, _limits: Limits, _now_ms: int) -> Action | None:
    """The nodes that the checks before this attempt condemned."""
    if state.preflight_for != state.next_attempt:
        return None
    for done in state.preflights:
        for verdict in bad_verdicts(done):
            if verdict.node not in state.quarantined:
                reason = f"check {verdict.check} before attempt {done.attempt}: {verdict.reason}"
                return Quarantine(verdict.node, reason, (verdict.reason,))
    return None


NEW: tuple[Rule, ...] = (end_when_operator_asked, end_when_done, seating.get_gang)
"""Before any node was asked for, and after a gang could not be had."""

PLACING: tuple[Rule, ...] = (
    end_when_operator_asked,
    end_when_done,
    end_on_common_cause,
    quarantine_culprits,
    quarantine_failed_checks,
    end_on_crash_loop,
    end_on_spent_budget,
    seating.trade_first_node,
    seating.use_spare,
    seating.get_replacement,
    seating.get_gang,
    seating.release_out,
    readiness.page_early_deaths,
    readiness.back_off,
    readiness.check_nodes,
    readiness.leave_out_unsure,
    readiness.launch,
)
"""Nodes are there and no attempt runs."""
