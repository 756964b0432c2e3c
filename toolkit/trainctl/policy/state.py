"""
What is known of a run: the fold of its journal (`policy.evolve`), and nothing else.

    NEW → ALLOCATING → PLACING ⇄ LAUNCHING → RUNNING → DETECTED → GATHERED → TEARING_DOWN → TORN_DOWN
                          ↑                                                                    │
                          └──────────────────────── attempt_exited ────────────────────────────┘
    PLACING → ENDING (nodes are given back) → ENDED
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from trainctl.model.events import AnyEvent, AttemptExited, NodeGrant, RunCreated
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
    step: int = -1
    #: Highest step ever committed, and where.
    committed: int = -1
    committed_path: str = ""
    done_step: int | None = None
    done_result: dict[str, str | int | float] = field(default_factory=dict)
    stop: Outcome | None = None
    stop_now: bool = False
    requests_seen: frozenset[str] = frozenset()
    findings: Findings | None = None
    #: Failures since the last progress, oldest first; a planned stop in between does not reset them.
    failures: tuple[Failure, ...] = ()
    #: UTC ms of every failure within the last hour of the journal's own time, and their number in all.
    failure_times: tuple[int, ...] = ()
    failures_total: int = 0
    stops_total: int = 0
    quarantined: frozenset[str] = frozenset()
    preflight_for: int = 0
    backoff_until_ms: int = 0
    backoff_for: int = 0
    pages: frozenset[str] = frozenset()
    would: tuple[AnyEvent, ...] = ()
    end: EndKind | None = None
    end_reason: str = ""
    end_evidence: tuple[str, ...] = ()
    ended_by_request: bool = False
