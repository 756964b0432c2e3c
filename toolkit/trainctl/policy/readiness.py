"""Rules just before a launch: somebody is told, a wait is kept, the nodes are checked."""

from __future__ import annotations

from trainctl.model.events import BackoffStarted, NodeTraded
from trainctl.model.outcome import EndKind
from trainctl.policy.actions import (
    Action,
    Launch,
    Preflight,
    Record,
    Watch,
)
from trainctl.policy.backoff import still_waits, wait_ms
from trainctl.policy.ending import end, page_once
from trainctl.policy.guard import bad_verdicts
from trainctl.policy.limits import Limits
from trainctl.policy.naming import (
    plural,
    step_name,
    typed_name,
)
from trainctl.policy.seating import spares
from trainctl.policy.state import NodeRole, RunState


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
    return page_once(state, f"early-deaths-since-{state.committed}", message)


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
    return (
        Watch(state.backoff_until_ms)
        if still_waits(state.backoff_until_ms, now_ms, limits)
        else None
    )


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
    passed = [name for name in spares(state) if name in checked - unsure]
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
