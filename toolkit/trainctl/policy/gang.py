"""How the nodes of the gang come, change places and go: the part of `evolve` about nodes."""

from __future__ import annotations

from dataclasses import replace

from trainctl.model.events import (
    GangGranted,
    GangLost,
    GangRequested,
    NodeGrant,
    NodeQuarantined,
    NodeReleased,
    NodeTraded,
    QuarantineIntended,
    ReleaseIntended,
    ReplacementGranted,
    ReplacementIntended,
    ReplacementRequested,
    SpareUsed,
)
from trainctl.policy.state import GangNode, NodeRole, Phase, RunState

_WAITING = (Phase.NEW, Phase.ALLOCATING)


def requested(state: RunState, event: GangRequested) -> RunState:
    """Nodes are about to be asked for."""
    if event.name in state.granted or event.name == state.gang_name:
        return state
    phase = state.phase if state.attempt_open else Phase.ALLOCATING
    return replace(
        state,
        phase=phase,
        open_intent=event,
        gang_name=event.name,
        gangs=state.gangs + 1,
        gangs_since_progress=state.gangs_since_progress + 1,
    )


def granted(state: RunState, event: GangGranted) -> RunState:
    """The nodes are there: empty seats first, the rest are spares."""
    if event.name in state.granted:
        return state
    for grant in event.nodes:
        state = _join(state, grant)
    state = replace(state, granted=state.granted | {event.name}, gangs_lost=0)
    if isinstance(state.open_intent, GangRequested) and state.open_intent.name == event.name:
        state = replace(state, open_intent=None)
    if state.phase in _WAITING:
        state = replace(state, phase=Phase.PLACING)
    return replace(state, gang_name=event.name)


def _join(state: RunState, grant: NodeGrant) -> RunState:
    name = grant.node
    if name in state.quarantined:
        return _with_role(state, name, NodeRole.OUT, grant)
    empty = state.empty_seats()
    if name in state.seats:
        return _with_role(state, name, NodeRole.ACTIVE, grant)
    if empty and not state.attempt_open and state.phase in _WAITING:
        state = replace(state, seats=_put(state.seats, empty[0], name))
        return _with_role(state, name, NodeRole.ACTIVE, grant)
    return _with_role(state, name, NodeRole.SPARE, grant)


def lost(state: RunState, event: GangLost) -> RunState:
    """The gang is gone, could not be had, or (under a replacement's name) one node could not."""
    if event.name == state.replacement_pending or _is_replacement(state, event.name):
        return replace(_without_replacement_intent(state, event.name), replacement_pending="")
    if event.name != state.gang_name:
        return state
    if isinstance(state.open_intent, GangRequested):
        phase = state.phase if state.attempt_open else _idle(state)
        return replace(state, phase=phase, open_intent=None, gangs_lost=state.gangs_lost + 1)
    for node in state.nodes:
        state = out(state, node)
    return state


def _idle(state: RunState) -> Phase:
    return Phase.PLACING if state.nodes else Phase.NEW


def replacement_intended(state: RunState, event: ReplacementIntended) -> RunState:
    """One node more is about to be asked for."""
    if event.name in state.granted or event.name == state.replacement_pending:
        return state
    if _is_replacement(state, event.name):
        return state
    return replace(
        state,
        open_intent=event,
        replacements=state.replacements + 1,
        replacements_since_progress=state.replacements_since_progress + 1,
    )


def replacement_requested(state: RunState, event: ReplacementRequested) -> RunState:
    """The cluster took the request."""
    if event.name in state.granted:
        return state
    state = _without_replacement_intent(state, event.name)
    if state.replacement_pending == event.name:
        return state
    return replace(state, replacement_pending=event.name, replacement_since_ms=event.at_ms)


def replacement_granted(state: RunState, event: ReplacementGranted) -> RunState:
    """The node joins the spares."""
    if event.name in state.granted:
        return state
    state = _without_replacement_intent(state, event.name)
    state = _join(replace(state, granted=state.granted | {event.name}), event.node)
    pending = "" if state.replacement_pending == event.name else state.replacement_pending
    return replace(state, replacement_pending=pending)


def _is_replacement(state: RunState, name: str) -> bool:
    return isinstance(state.open_intent, ReplacementIntended) and state.open_intent.name == name


def _without_replacement_intent(state: RunState, name: str) -> RunState:
    return replace(state, open_intent=None) if _is_replacement(state, name) else state


def quarantined(state: RunState, event: NodeQuarantined) -> RunState:
    """The node is kept out: it trains no more, and no gang brings it back."""
    open_intent = state.open_intent
    if isinstance(open_intent, QuarantineIntended) and open_intent.node == event.node:
        state = replace(state, open_intent=None)
    return out(replace(state, quarantined=state.quarantined | {event.node}), event.node)


def out(state: RunState, node: str) -> RunState:
    """The node must not train again in this gang."""
    held = state.nodes.get(node)
    if held is None or not held.usable:
        return state
    return replace(state, nodes={**state.nodes, node: GangNode(held.grant, NodeRole.OUT)})


def released(state: RunState, event: NodeReleased) -> RunState:
    """The node is no longer held."""
    nodes = {name: node for name, node in state.nodes.items() if name != event.node}
    state = replace(state, nodes=nodes)
    if not state.attempt_open:
        seats = tuple("" if seat == event.node else seat for seat in state.seats)
        state = replace(state, seats=seats)
    intent = state.open_intent
    if isinstance(intent, ReleaseIntended) and not any(node in nodes for node in intent.nodes):
        state = replace(state, open_intent=None)
    if state.phase is Phase.ENDING and not nodes:
        state = replace(state, phase=Phase.ENDED)
    return state


def traded(state: RunState, event: NodeTraded) -> RunState:
    """
    One swap. Against a spare `node` becomes the last spare; against another seat both stay.

    A line read twice changes nothing: the second time `node` has no seat, or the failure after
    which it was traded has had its trade.
    """
    if event.node not in state.seats or not state.is_usable(event.with_node):
        return state
    index = state.seats.index(event.node)
    if event.with_node in state.seats:
        if not state.failures or state.traded_for == state.failures[-1].attempt:
            return state
        other = state.seats.index(event.with_node)
        seats = _put(_put(state.seats, index, event.with_node), other, event.node)
    else:
        seats = _put(state.seats, index, event.with_node)
        state = _with_role(state, event.with_node, NodeRole.ACTIVE)
        if state.is_usable(event.node):
            state = _with_role(state, event.node, NodeRole.TRADED)
    traded_for = state.failures[-1].attempt if state.failures else state.traded_for
    return replace(state, seats=seats, traded_for=traded_for)


def spare_used(state: RunState, event: SpareUsed) -> RunState:
    """A spare takes an empty seat."""
    in_range = 0 <= event.seat < len(state.seats)
    if not in_range or event.node in state.seats or not state.is_usable(event.node):
        return state
    sat = state.seats[event.seat]
    state = replace(state, seats=_put(state.seats, event.seat, event.node))
    return _with_role(out(state, sat), event.node, NodeRole.ACTIVE)


def _put(seats: tuple[str, ...], index: int, node: str) -> tuple[str, ...]:
    return (*seats[:index], node, *seats[index + 1 :])


def _with_role(
    state: RunState, node: str, role: NodeRole, grant: NodeGrant | None = None
) -> RunState:
    """The node in its new role, last in the order of the nodes: spares are used in that order."""
    held = state.nodes.get(node)
    grant = grant or (held.grant if held else None)
    if grant is None:
        return state
    nodes = {name: other for name, other in state.nodes.items() if name != node}
    nodes[node] = GangNode(grant, role)
    return replace(state, nodes=nodes)
