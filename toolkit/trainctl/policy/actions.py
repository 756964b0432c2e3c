"""
What the policy may ask the supervisor to do: one frozen class an action, imperative.

`intent(action)` is the event that must be on disk before the action is performed; None where the
action has no effect outside the journal. Performing an action yields the events of what happened.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainctl.model.events import (
    AnyEvent,
    GangRequested,
    LaunchIntended,
    QuarantineIntended,
    ReleaseIntended,
    ReplacementIntended,
    TeardownIntended,
)
from trainctl.model.outcome import Confidence, Outcome


@dataclass(frozen=True, slots=True)
class Watch:
    """Nothing to do but look; look again by `until_ms` (UTC) at the latest, 0 for no such time."""

    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """A decision that is complete once it is journaled: a spare used, a trade, a verdict."""

    event: AnyEvent


@dataclass(frozen=True, slots=True)
class RequestGang:
    """Ask the cluster for nodes. → gang_granted | gang_lost"""

    name: str
    nodes: int
    exclude: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestReplacement:
    """
    Ask the cluster for one node more. → replacement_requested and, at once or later,
    replacement_granted | gang_lost with this name
    """

    name: str
    exclude: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preflight:
    """Check the nodes before an attempt. → preflight_finished"""

    attempt: int
    round: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """
    Claim the attempt number and start its agents.
    → attempt_launched | detected(cause=launch_failed)
    """

    attempt: int
    step_name: str
    seats: tuple[str, ...]
    resume_step: int | None = None
    resume: str = ""


@dataclass(frozen=True, slots=True)
class PassOnStop:
    """
    Write the stop request into the control cell of the attempt. No event: it is in the state
    already. Decided for as long as the attempt runs; it is performed again only when it changes.
    """

    attempt: int
    reason: Outcome = Outcome.STOP_OPERATOR
    now: bool = False


@dataclass(frozen=True, slots=True)
class Gather:
    """Gather evidence within a bound. → gathered"""

    attempt: int


@dataclass(frozen=True, slots=True)
class TearDown:
    """Kill what is left of the attempt and see that nothing is. → torn_down"""

    attempt: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Write the node's quarantine entry. → node_quarantined"""

    node: str
    reason: str
    evidence: tuple[str, ...]
    confidence: Confidence = Confidence.LIKELY


@dataclass(frozen=True, slots=True)
class Release:
    """Give nodes back. → node_released for each"""

    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Page:
    """Tell whoever is on call. → paged | page_failed"""

    key: str
    message: str


@dataclass(frozen=True, slots=True)
class Recover:
    """
    An earlier holder left this intent open: look up by name what it did; adopt, void or finish it.
    → whatever closes the intent: attempt_adopted | attempt_voided | the event of what was done
    """

    intent: AnyEvent


Action = (
    Watch
    | Record
    | RequestGang
    | RequestReplacement
    | Preflight
    | Launch
    | PassOnStop
    | Gather
    | TearDown
    | Quarantine
    | Release
    | Page
    | Recover
)


def intent(action: Action) -> AnyEvent | None:
    """The event that must be on disk before `action` is performed; None where there is none."""
    match action:
        case RequestGang(name, nodes, exclude):
            return GangRequested(name=name, nodes=nodes, exclude=exclude)
        case RequestReplacement(name, exclude):
            return ReplacementIntended(name=name, exclude=exclude)
        case Launch(attempt, step_name, seats, resume_step, resume):
            return LaunchIntended(
                attempt=attempt,
                step_name=step_name,
                seats=seats,
                resume_step=resume_step,
                resume=resume,
            )
        case TearDown(attempt):
            return TeardownIntended(attempt=attempt)
        case Quarantine(node, reason, evidence, confidence):
            return QuarantineIntended(
                node=node, reason=reason, confidence=confidence, evidence=evidence
            )
        case Release(nodes, reason):
            return ReleaseIntended(nodes=nodes, reason=reason)
        case _:
            return None


def action_of(event: AnyEvent) -> Action | None:
    """The action that `event` is the intent of: the inverse of `intent`."""
    match event:
        case GangRequested():
            return RequestGang(event.name, event.nodes, event.exclude)
        case ReplacementIntended():
            return RequestReplacement(event.name, event.exclude)
        case LaunchIntended():
            return Launch(
                event.attempt, event.step_name, event.seats, event.resume_step, event.resume
            )
        case TeardownIntended():
            return TearDown(event.attempt)
        case QuarantineIntended():
            return Quarantine(event.node, event.reason, event.evidence, event.confidence)
        case ReleaseIntended():
            return Release(event.nodes, event.reason)
        case _:
            return None
