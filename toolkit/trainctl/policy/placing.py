"""
Between two attempts: rules in the order in which they are tried, each `(state, limits, now_ms) ->
Action | None`. The first that has something to do decides; all are asked again after each event, so
a supervisor that dies between two of them loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from trainctl.model.events import BackoffStarted, NodeTraded, SpareUsed
from trainctl.model.outcome import Domain, EndKind, Outcome
from trainctl.policy.actions import (
    Action,
    Launch,
    Page,
    Preflight,
    Quarantine,
    Record,
    Release,
    RequestGang,
    RequestReplacement,
    Watch,
)
from trainctl.policy.backoff import wait_ms
from trainctl.policy.crash_loop import chain, culprits, is_explained, only_node
from trainctl.policy.ending import end
from trainctl.policy.guard import bad_verdicts, common_cause, too_many
from trainctl.policy.limits import Limits
from trainctl.policy.naming import (
    gang_name,
    plural,
    replacement_name,
    step_name,
    typed_name,
)
from trainctl.policy.state import NodeRole, RunState

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
        return _page_once(
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


def trade_first_node(state: RunState, _limits: Limits, _now_ms: int) -> Action | None:
    """
    After an unexplained failure the node where it first appeared trades places, so that the next
    failure tells whether it follows the node or the rank.
    """
    if not state.failures:
        return None
    failure = state.failures[-1]
    exited = failure.exited
    node = only_node(exited.first)
    if state.traded_for == failure.attempt or node not in state.seats:
        return None
    if is_explained(exited) or exited.domain is Domain.PLATFORM or not state.is_usable(node):
        return None
    other = _trade_partner(state, node)
    if not other:
        return None
    reason = f"{exited.fingerprint or exited.outcome} was first on {node}, unexplained"
    return Record(NodeTraded(node=node, with_node=other, reason=reason))


def _trade_partner(state: RunState, node: str) -> str:
    """A spare, else a seat: one whose node was not first itself, else the next one."""
    if spares := _spares(state):
        return spares[0]
    index = state.seats.index(node)
    others = [*state.seats[index + 1 :], *state.seats[:index]]
    others = [other for other in others if state.is_usable(other)]
    suspected = {only_node(failure.exited.first) for failure in chain(state.failures)}
    fresh = [other for other in others if other not in suspected]
    return next(iter(fresh or others), "")


def _spares(state: RunState) -> list[str]:
    """In the order of their use: never traded first, then traded longest ago."""
    names = list(state.nodes)
    fresh = [name for name in names if state.nodes[name].role is NodeRole.SPARE]
    return fresh + [name for name in names if state.nodes[name].role is NodeRole.TRADED]


# --- who takes the empty seats? ---------------------------------------------------------------


def use_spare(state: RunState, _limits: Limits, _now_ms: int) -> Action | None:
    """An empty seat goes to the next spare."""
    empty, spares = state.empty_seats(), _spares(state)
    if not empty or not spares:
        return None
    instead_of = state.seats[empty[0]]
    return Record(SpareUsed(node=spares[0], instead_of=instead_of, seat=empty[0]))


def get_replacement(state: RunState, limits: Limits, now_ms: int) -> Action | None:
    """No spare is left: one node more, where the cluster can give one to a gang that stands."""
    if not state.empty_seats() or not _some_usable(state) or not limits.can_replace:
        return None
    if state.replacement_pending:
        until_ms = state.replacement_since_ms + round(1000 * limits.replacement_wait_s)
        return Watch(until_ms) if now_ms < until_ms else None
    if state.replacements_since_progress >= limits.replacements:
        return None
    return RequestReplacement(replacement_name(state), _excluded(state))


def get_gang(state: RunState, limits: Limits, now_ms: int) -> Action | None:
    """Too few nodes and no way to replace one: all are given back and a new gang is asked for."""
    if not state.empty_seats() or state.created is None:
        return None
    if state.gangs_since_progress >= limits.gangs:
        reason = f"no {plural(state.created.nodes, 'node')} to run on after {limits.gangs} gangs"
        return end(state, limits, EndKind.NEEDS_HUMAN, reason, tuple(sorted(state.quarantined)))
    if state.nodes:
        return Release(state.held, "too few nodes are left: a new gang is asked for")
    wait = wait_ms(state.gangs_lost, limits, run_id=state.created.run_id, attempt=state.gangs + 1)
    if wait and state.backoff_gang != state.gangs + 1:
        until_ms = now_ms + wait
        reason = f"{plural(state.gangs_lost, 'gang')} could not be had"
        return Record(
            BackoffStarted(
                attempt=state.next_attempt, wait_ms=wait, until_ms=until_ms, reason=reason
            )
        )
    if wait and _still_waits(state, limits, now_ms):
        return Watch(state.backoff_until_ms)
    count = state.created.nodes + state.created.spares
    return RequestGang(gang_name(state), count, _excluded(state))


def _some_usable(state: RunState) -> bool:
    return any(node.usable for node in state.nodes.values())


def _excluded(state: RunState) -> tuple[str, ...]:
    out = {name for name, node in state.nodes.items() if not node.usable}
    return tuple(sorted(state.quarantined | out))


def release_out(state: RunState, _limits: Limits, _now_ms: int) -> Action | None:
    """Nodes that must not train again are given back."""
    out = tuple(name for name, node in state.nodes.items() if not node.usable)
    return Release(out, "out of the run") if out else None


# --- when, and on checked nodes ---------------------------------------------------------------


def page_early_deaths(state: RunState, limits: Limits, _now_ms: int) -> Action | None:
    """Attempts die before their first new step: somebody should look, while we go on slower."""
    if state.early_deaths < limits.early_deaths:
        return None
    last = state.last_exit
    said = "; ".join(last.sentences[:2]) if last else ""
    message = (
        f"{typed_name(state, limits)}: {state.early_deaths} attempts in a row ended before their"
        f" first new step, the last as {last.outcome if last else 'unknown'}: {said}"
    )
    return _page_once(state, f"early-deaths-since-{state.committed}", message)


def back_off(state: RunState, limits: Limits, now_ms: int) -> Action | None:
    """After early deaths the next attempt waits, longer each time."""
    run_id = state.created.run_id if state.created else ""
    wait = wait_ms(state.early_deaths, limits, run_id=run_id, attempt=state.next_attempt)
    if not wait:
        return None
    if state.backoff_for != state.next_attempt:
        reason = f"{plural(state.early_deaths, 'attempt')} in a row ended without a new step"
        event = BackoffStarted(
            attempt=state.next_attempt, wait_ms=wait, until_ms=now_ms + wait, reason=reason
        )
        return Record(event)
    return Watch(state.backoff_until_ms) if _still_waits(state, limits, now_ms) else None


def _still_waits(state: RunState, limits: Limits, now_ms: int) -> bool:
    """A wait longer than any that we ask for is a clock that was set back."""
    left_ms = state.backoff_until_ms - now_ms
    return 0 < left_ms <= round(1000 * limits.backoff_max_s)


def check_nodes(state: RunState, limits: Limits, _now_ms: int) -> Action | None:
    """All usable nodes before each attempt, then only those that came after the checks."""
    if not limits.preflight:
        return None
    rounds = state.preflights if state.preflight_for == state.next_attempt else ()
    checked = {node for done in rounds for node in done.checked}
    usable = tuple(name for name, node in state.nodes.items() if node.usable)
    missing = tuple(name for name in usable if name not in checked)
    if rounds and all(node in checked for node in state.seats):
        return None
    if len(rounds) >= limits.preflight_rounds:
        reason = f"no set of nodes passed the checks in {plural(len(rounds), 'round')}"
        said = tuple(f"{v.node}: {v.reason}" for done in rounds for v in bad_verdicts(done))
        return end(state, limits, EndKind.NEEDS_HUMAN, reason, said[:5])
    return Preflight(state.next_attempt, len(rounds) + 1, missing)


def leave_out_unsure(state: RunState, limits: Limits, _now_ms: int) -> Action | None:
    """One seat whose check could not tell is left to a spare that passed; many say nothing."""
    if not limits.preflight or state.preflight_for != state.next_attempt:
        return None
    unsure = {v.node for done in state.preflights for v in done.verdicts if v.verdict == "unsure"}
    checked = {node for done in state.preflights for node in done.checked}
    passed = [name for name in _spares(state) if name in checked - unsure]
    fresh = [name for name in passed if state.nodes[name].role is NodeRole.SPARE]
    if len(unsure) != 1 or not fresh or not unsure <= set(state.seats):
        return None
    reason = "its check before the attempt could not tell"
    return Record(NodeTraded(node=unsure.pop(), with_node=fresh[0], reason=reason))


def launch(state: RunState, _limits: Limits, _now_ms: int) -> Action | None:
    """All seats are filled: the next attempt, from the highest committed step."""
    attempt = state.next_attempt
    return Launch(
        attempt=attempt,
        step_name=step_name(state, attempt),
        seats=state.seats,
        resume_step=state.committed if state.committed >= 0 else None,
        resume=state.committed_path,
    )


def _page_once(state: RunState, key: str, message: str) -> Action | None:
    return None if key in state.pages else Page(key, message)


NEW: tuple[Rule, ...] = (end_when_operator_asked, end_when_done, get_gang)
"""Before any node was asked for, and after a gang could not be had."""

PLACING: tuple[Rule, ...] = (
    end_when_operator_asked,
    end_when_done,
    end_on_common_cause,
    quarantine_culprits,
    quarantine_failed_checks,
    end_on_crash_loop,
    end_on_spent_budget,
    trade_first_node,
    use_spare,
    get_replacement,
    get_gang,
    release_out,
    page_early_deaths,
    back_off,
    check_nodes,
    leave_out_unsure,
    launch,
)
"""Nodes are there and no attempt runs."""
