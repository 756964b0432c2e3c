"""Says an action in one line, so that a story's expectation reads like a sentence."""

from __future__ import annotations

from trainctl.model.events import (
    AnyEvent,
    AttemptExited,
    BackoffStarted,
    NodeTraded,
    RunFinished,
    RunStopped,
    SpareUsed,
)
from trainctl.policy import actions as do


def tell(action: do.Action) -> str:
    """`launch a0002 on n1 n4 n3 from 40`; texts for people are left out."""
    match action:
        case do.Watch():
            return "watch"
        case do.Record(event):
            return f"would: {tell_event(event)}" if event.would else tell_event(event)
        case do.Recover(event):
            return f"recover {event.kind}"
        case do.Page(key):
            return f"page {key}"
        case do.Gather() | do.TearDown() | do.PassOnStop() | do.Launch() | do.Preflight():
            return _tell_of_attempt(action)
        case _:
            return _tell_of_nodes(action)


def _tell_of_nodes(action: do.Action) -> str:
    match action:
        case do.RequestGang(name, nodes, exclude):
            return " ".join(["gang", name, "of", str(nodes), *_without(exclude)])
        case do.RequestReplacement(name, exclude):
            return " ".join(["replacement", name, *_without(exclude)])
        case do.Quarantine(node):
            return f"quarantine {node}"
        case do.Release(nodes):
            return f"release {' '.join(nodes)}"
        case _:
            raise AssertionError(f"{action} is told elsewhere")


def _tell_of_attempt(action: do.Action) -> str:
    match action:
        case do.Preflight(attempt, round_, nodes):
            return f"check a{attempt:04d} round {round_}: {' '.join(nodes)}"
        case do.Launch():
            start = "scratch" if action.resume_step is None else str(action.resume_step)
            return f"launch a{action.attempt:04d} on {' '.join(action.seats)} from {start}"
        case do.PassOnStop(attempt, reason, now):
            return f"pass on {reason} to a{attempt:04d}" + (" now" if now else "")
        case do.Gather(attempt):
            return f"gather a{attempt:04d}"
        case do.TearDown(attempt):
            return f"tear down a{attempt:04d}"
        case _:
            raise AssertionError(f"{action} is told elsewhere")


def tell_event(event: AnyEvent) -> str:
    """The same for an event that is a decision."""
    match event:
        case SpareUsed():
            return f"spare {event.node} for {event.instead_of or 'nobody'} in seat {event.seat}"
        case NodeTraded():
            return f"trade {event.node} with {event.with_node}"
        case BackoffStarted():
            return f"back off before a{event.attempt:04d}"
        case AttemptExited():
            return f"verdict a{event.attempt:04d} {event.outcome} {event.domain}" + "".join(
                f" {suspect.node}={suspect.confidence}" for suspect in event.suspects
            )
        case RunStopped():
            return f"stopped: {event.end}"
        case RunFinished():
            return f"finished at {event.step}"
        case _:
            return event.kind


def _without(nodes: tuple[str, ...]) -> list[str]:
    return ["without", *nodes] if nodes else []
