"""Rules between two attempts: which node sits in which seat, and where one more comes from."""

from __future__ import annotations

from trainctl.model.events import BackoffStarted, NodeTraded, SpareUsed
from trainctl.model.outcome import Domain, EndKind
from trainctl.policy.actions import (
    Action,
    Record,
    Release,
    RequestGang,
    RequestReplacement,
    Watch,
)
from trainctl.policy.backoff import still_waits, wait_ms
from trainctl.policy.crash_loop import chain, is_explained, only_node
from trainctl.policy.ending import end
from trainctl.policy.limits import Limits
from trainctl.policy.naming import (
    gang_name,
    plural,
    replacement_name,
)
from trainctl.policy.state import NodeRole, RunState


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
    if waiting := spares(state):
        return waiting[0]
    index = state.seats.index(node)
    others = [*state.seats[index + 1 :], *state.seats[:index]]
    others = [other for other in others if state.is_usable(other)]
    suspected = {only_node(failure.exited.first) for failure in chain(state.failures)}
    fresh = [other for other in others if other not in suspected]
    return next(iter(fresh or others), "")


def spares(state: RunState) -> list[str]:
    """In the order of their use: never traded first, then traded longest ago."""
    names = list(state.nodes)
    fresh = [name for name in names if state.nodes[name].role is NodeRole.SPARE]
    return fresh + [name for name in names if state.nodes[name].role is NodeRole.TRADED]


def use_spare(state: RunState, _limits: Limits, _now_ms: int) -> Action | None:
    """An empty seat goes to the next spare."""
    empty, waiting = state.empty_seats(), spares(state)
    if not empty or not waiting:
        return None
    instead_of = state.seats[empty[0]]
    return Record(SpareUsed(node=waiting[0], instead_of=instead_of, seat=empty[0]))


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
    if wait and still_waits(state.backoff_until_ms, now_ms, limits):
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
