"""
What the policy may ask the supervisor to do: one frozen class an action, imperative.

`intent(action)` is the event that must be on disk before the action is performed; None where the
action has no effect outside the journal. Performing an action yields the events of what happened.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainctl.model.events import AnyEvent


@dataclass(frozen=True, slots=True)
class Watch:
    """Nothing to do but look; look again by `until_ms` (UTC) at the latest, 0 for no such time."""

    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """A decision that is complete once it is journaled (a spare used, a trade, a verdict, the end)."""

    event: AnyEvent


@dataclass(frozen=True, slots=True)
class RequestGang:
    """Ask the cluster for nodes. → gang_granted | gang_lost"""

    name: str
    nodes: int
    exclude: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestReplacement:
    """Ask the cluster for one node more. → replacement_requested, replacement_granted"""

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
    """Claim the attempt number and start its agents. → attempt_launched | detected(launch_failed)"""

    attempt: int
    step_name: str
    seats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PassOnStop:
    """Write the stop request into the control cell of the attempt. No event: it is in the state already."""

    attempt: int


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
    """An earlier holder left this intent open: look up by name what it did; adopt, void or finish it."""

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
