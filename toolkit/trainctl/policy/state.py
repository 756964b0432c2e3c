"""
What is known of a run: the fold of its journal (`policy.evolve`), and nothing else.

    NEW → ALLOCATING → PLACING ⇄ LAUNCHING → RUNNING → DETECTED → GATHERED → TEARING_DOWN
                          ↑                                                       │
                          └──────────────── attempt_exited ── TORN_DOWN ←─────────┘
    PLACING → ENDING (nodes are given back) → ENDED
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from trainctl.model.events import (
    AnyEvent,
    AttemptExited,
    Detected,
    NodeGrant,
    PreflightFinished,
    RunCreated,
)
from trainctl.model.evidence import Findings
from trainctl.model.outcome import EndKind, Outcome


class Phase(StrEnum):
    """Where the run stands."""

    #: No node was asked for.
    NEW = "new"
    #: A gang was asked for.
    ALLOCATING = "allocating"
    #: Nodes are there, no attempt runs: blame is settled, seats are filled, checks are made.
    PLACING = "placing"
    #: A launch is intended.
    LAUNCHING = "launching"
    RUNNING = "running"
    #: The attempt ends or must end; evidence is to be gathered.
    DETECTED = "detected"
    GATHERED = "gathered"
    TEARING_DOWN = "tearing_down"
    TORN_DOWN = "torn_down"
    #: The run's end is decided, nodes are being given back.
    ENDING = "ending"
    ENDED = "ended"


#: An attempt was intended and its verdict is not in: its number is taken, its ranks may be alive.
ATTEMPT_OPEN: frozenset[Phase] = frozenset(
    {
        Phase.LAUNCHING,
        Phase.RUNNING,
        Phase.DETECTED,
        Phase.GATHERED,
        Phase.TEARING_DOWN,
        Phase.TORN_DOWN,
    }
)


class NodeRole(StrEnum):
    """What a node of the gang is for."""

    #: In the seats of the current or next attempt.
    ACTIVE = "active"
    SPARE = "spare"
    #: Traded out after an unexplained failure: the last spare to be used.
    TRADED = "traded"
    #: Quarantined, or gone; still to be released.
    OUT = "out"


@dataclass(frozen=True, slots=True)
class GangNode:
    """A node that is held for the run."""

    grant: NodeGrant
    role: NodeRole

    @property
    def usable(self) -> bool:
        """May train in the next attempt."""
        return self.role is not NodeRole.OUT


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, as the policy counts it."""

    attempt: int
    at_ms: int
    exited: AttemptExited
    #: The attempt ended no step beyond where it began.
    early: bool
    #: The seats it ran on, in rank order.
    seats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunState:
    """The fold of the journal."""

    phase: Phase = Phase.NEW
    #: The term of the last `supervisor_started`; an open intent of a lower term is somebody else's.
    term: int = 0
    created: RunCreated | None = None
    gang_name: str = ""
    gangs: int = 0
    nodes: dict[str, GangNode] = field(default_factory=dict)
    #: Nodes in rank order for the attempt that runs or comes next; "" is an empty seat.
    seats: tuple[str, ...] = ()
    #: The highest attempt number ever intended.
    attempt: int = 0
    #: Written before an effect whose event has not come: what a new holder must look up.
    open_intent: AnyEvent | None = None
    resume_step: int = -1
    resume_path: str = ""
    step_from: int = -1
    #: The last attempt whose first step was journaled.
    stepped_in: int = 0
    step: int = -1
    #: Highest step ever committed, by which attempt, and where.
    committed: int = -1
    committed_attempt: int = 0
    committed_path: str = ""
    done_step: int | None = None
    done_result: dict[str, str | int | float] = field(default_factory=dict)
    stop: Outcome | None = None
    stop_now: bool = False
    requests_seen: frozenset[str] = frozenset()
    #: The first sign of the open attempt's end, and what was gathered of it.
    detected: Detected | None = None
    findings: Findings | None = None
    #: Nodes on which something of the last attempt may still live: never launched on again.
    leftover: tuple[str, ...] = ()
    #: The verdict of the last attempt that ended.
    last_exit: AttemptExited | None = None
    #: Failures since the last progress, oldest first; a planned stop in between resets nothing.
    failures: tuple[Failure, ...] = ()
    #: UTC ms of the failures within the hour before the last one, and the number of all failures.
    failure_times: tuple[int, ...] = ()
    failures_total: int = 0
    stops_total: int = 0
    #: Launches in a row that failed before any rank started: outside the failure budget.
    launch_failures: int = 0
    #: Attempts in a row that ended no new step and that no node explains.
    early_deaths: int = 0
    #: The failed attempt after which the last trade was made: one trade a failure.
    traded_for: int = 0
    quarantined: frozenset[str] = frozenset()
    #: Names under which nodes were granted already: a grant read twice brings no node back.
    granted: frozenset[str] = frozenset()
    #: Gangs asked for since the last progress or planned stop; those in a row that were not had.
    gangs_since_progress: int = 0
    gangs_lost: int = 0
    replacements: int = 0
    replacements_since_progress: int = 0
    #: A replacement that the cluster has accepted and not yet granted, and since when (UTC ms).
    replacement_pending: str = ""
    replacement_since_ms: int = 0
    #: The checks before attempt `preflight_for`, one a round.
    preflight_for: int = 0
    preflights: tuple[PreflightFinished, ...] = ()
    #: Nothing is launched before `backoff_until_ms`, which was decided for attempt `backoff_for`
    #: (for gang number `backoff_gang` where no node was held).
    backoff_until_ms: int = 0
    backoff_for: int = 0
    backoff_gang: int = 0
    pages: frozenset[str] = frozenset()
    would: tuple[AnyEvent, ...] = ()
    end: EndKind | None = None
    end_reason: str = ""
    end_evidence: tuple[str, ...] = ()
    ended_by_request: bool = False

    @property
    def attempt_open(self) -> bool:
        """An attempt was intended and its verdict is not in."""
        return self.phase in ATTEMPT_OPEN

    @property
    def next_attempt(self) -> int:
        """The next number that was never used."""
        return self.attempt + 1

    @property
    def held(self) -> tuple[str, ...]:
        """All nodes that are held, the ones that are out included."""
        return tuple(self.nodes)

    def is_usable(self, node: str) -> bool:
        """The node is held and may train in the next attempt."""
        held = self.nodes.get(node)
        return held is not None and held.usable

    def empty_seats(self) -> tuple[int, ...]:
        """The indices of the seats that no usable node fills."""
        return tuple(i for i, node in enumerate(self.seats) if not self.is_usable(node))
