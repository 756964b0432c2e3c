"""
A small pure world that a run is played in (`support.player`): it performs the policy's actions,
remembers each effect by name, and has faults that are told it beforehand.

Like the real thing it looks up what an earlier supervisor left open: a launch that is found is
adopted, one that is not is voided for ever. It asserts what must never be: two attempts alive, a
launch on a node that was given back, a resume from anything but the highest committed step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from trainctl.model.events import (
    AnyEvent,
    AttemptAdopted,
    AttemptLaunched,
    AttemptVoided,
    CheckpointCommitted,
    Detected,
    FirstStep,
    GangGranted,
    GangLost,
    GangRequested,
    Gathered,
    LaunchIntended,
    Loaded,
    NodeGrant,
    NodeQuarantined,
    NodeReleased,
    NodeVerdict,
    Paged,
    PreflightFinished,
    Progressed,
    QuarantineIntended,
    ReleaseIntended,
    ReplacementGranted,
    ReplacementIntended,
    ReplacementRequested,
    StopRequested,
    TeardownIntended,
    TornDown,
    TrainingDone,
)
from trainctl.model.evidence import Findings, RankError, RankExit
from trainctl.model.outcome import Outcome
from trainctl.policy import actions as do
from trainctl.policy.state import RunState

START_MS = 1_796_087_400_000


class Fate(StrEnum):
    """What becomes of one launch."""

    FINISHES = "finishes"
    RAISES = "raises"
    KILLED = "killed"
    NODE_DIES = "node_dies"
    STORAGE = "storage"
    PREEMPTED = "preempted"
    OPERATOR = "operator"
    LAUNCH_FAILS = "launch_fails"
    VANISHES = "vanishes"


@dataclass(frozen=True)
class Fault:
    """
    How a launch ends. `seat` and `local` say where; `steps` of them are done first, and `commits`
    says whether the last of them is committed.
    """

    fate: Fate
    seat: int = 0
    local: int = 0
    steps: int = 5
    commits: bool = False
    place: str = "train.py:step"


Faults = Callable[[int, tuple[str, ...]], Fault]
"""From the number of launches before (not the attempt's number) and the seats, to the fault."""


def one_after_another(*faults: Fault) -> Faults:
    """The first launches end so; then the run finishes."""
    return lambda number, _seats: (
        faults[number] if number < len(faults) else Fault(Fate.FINISHES, commits=True)
    )


def bad_node(node: str) -> Faults:
    """Whatever runs on this node fails there."""
    return lambda _number, seats: (
        Fault(Fate.KILLED, seat=seats.index(node)) if node in seats else Fault(Fate.FINISHES)
    )


@dataclass
class World:
    """All that exists outside the journal."""

    faults: Faults
    size: int = 3
    spares: int = 1
    ranks_per_node: int = 2
    #: Nodes that the cluster can still give, beyond the first gang.
    reserve: int = 2
    #: Nodes that fail the check before an attempt.
    bad_nodes: frozenset[str] = frozenset()
    effects: Counter[str] = field(default_factory=Counter)
    launches: list[tuple[tuple[str, ...], int | None]] = field(default_factory=list)
    granted: dict[str, tuple[NodeGrant, ...]] = field(default_factory=dict)
    claimed: dict[int, tuple[str, ...]] = field(default_factory=dict)
    void: set[int] = field(default_factory=set)
    alive: set[int] = field(default_factory=set)
    dead_nodes: set[str] = field(default_factory=set)
    given_back: set[str] = field(default_factory=set)
    quarantined: set[str] = field(default_factory=set)
    committed: int = -1
    pages: list[str] = field(default_factory=list)
    _nodes: int = 0
    _facts: dict[int, tuple[AnyEvent, ...]] = field(default_factory=dict)
    _findings: dict[int, Findings] = field(default_factory=dict)

    # --- looking ------------------------------------------------------------------------------

    def facts(self, attempt: int) -> tuple[AnyEvent, ...]:
        """What a look at the attempt shows, in order."""
        return self._facts.get(attempt, ())

    # --- acting -------------------------------------------------------------------------------

    def perform(self, action: do.Action, state: RunState) -> list[AnyEvent]:
        """Do it; the events of what happened."""
        match action:
            case do.Launch():
                return self._launch(action)
            case do.Gather(attempt):
                return [Gathered(attempt=attempt, findings=self._findings[attempt])]
            case do.TearDown(attempt):
                return self._tear_down(attempt)
            case do.Page(key, message):
                self.pages.append(key)
                return [Paged(key=key, message=message)]
            case do.Recover(intent):
                return self._recover(intent, state)
            case _:
                return self._perform_on_nodes(action)

    def _perform_on_nodes(self, action: do.Action) -> list[AnyEvent]:
        match action:
            case do.RequestGang(name, nodes, exclude):
                return self._gang(name, nodes, exclude)
            case do.RequestReplacement(name, exclude):
                return self._replacement(name, exclude)
            case do.Preflight():
                return [self._check(action)]
            case do.Quarantine(node, reason):
                if node not in self.quarantined:
                    self._once(f"quarantine {node}")
                    self.quarantined.add(node)
                return [NodeQuarantined(node=node, reason=reason)]
            case do.Release(nodes, reason):
                return self._release(nodes, reason)
            case _:
                raise AssertionError(f"{action} is no effect")

    def _once(self, name: str) -> None:
        self.effects[name] += 1

    def _new_nodes(self, name: str, count: int, exclude: tuple[str, ...]) -> bool:
        if name in self.granted:
            return True
        if self._nodes and count > self.reserve:
            return False
        if self._nodes:
            self.reserve -= count
        first = self._nodes + 1
        self._nodes += count
        names = [f"n{i}" for i in range(first, first + count)]
        assert not set(names) & set(exclude)
        self.granted[name] = tuple(NodeGrant(node, f"10.0.0.{node[1:]}", 0) for node in names)
        self._once(f"grant {name}")
        return True

    def _gang(self, name: str, count: int, exclude: tuple[str, ...]) -> list[AnyEvent]:
        if self._new_nodes(name, count, exclude):
            return [GangGranted(name=name, nodes=self.granted[name])]
        return [GangLost(name=name, reason="no nodes are left")]

    def _replacement(self, name: str, exclude: tuple[str, ...]) -> list[AnyEvent]:
        if self._new_nodes(name, 1, exclude):
            return [
                ReplacementRequested(name=name),
                ReplacementGranted(name=name, node=self.granted[name][0]),
            ]
        return [GangLost(name=name, reason="no node is left")]

    def _check(self, action: do.Preflight) -> PreflightFinished:
        bad = self.bad_nodes | self.dead_nodes
        return PreflightFinished(
            attempt=action.attempt,
            round=action.round,
            checked=action.nodes,
            verdicts=tuple(
                NodeVerdict(node, "alive", "bad", "does not answer")
                for node in action.nodes
                if node in bad
            ),
        )

    def _launch(self, action: do.Launch) -> list[AnyEvent]:
        number, seats = action.attempt, action.seats
        if number in self.claimed or number in self.void:
            return self._voided(number)
        assert not self.alive, f"{self.alive} still live while a{number:04d} is launched"
        assert not set(seats) & self.given_back, f"{seats}: some were given back"
        assert len(set(seats)) == self.size, seats
        assert (action.resume_step if action.resume_step is not None else -1) == self.committed
        self.claimed[number] = seats
        fault = self.faults(len(self.launches), seats)
        self.launches.append((seats, action.resume_step))
        self._once(f"launch {number}")
        if fault.fate is Fate.LAUNCH_FAILS:
            error = "exec: no such program"
            self._findings[number] = self._found(number, seats, launch_error=error)
            self._facts[number] = (Detected(attempt=number, cause="launch_failed", detail=error),)
        else:
            self.alive.add(number)
            self._play(number, seats, fault, self.committed)
        return [AttemptLaunched(attempt=number)]

    def _play(self, number: int, seats: tuple[str, ...], fault: Fault, start: int) -> None:
        step = max(start, 0) + fault.steps
        facts: list[AnyEvent] = [Loaded(attempt=number, step=max(start, 0))]
        if fault.steps:
            facts.append(FirstStep(attempt=number, step=max(start, 0) + 1))
            facts.append(Progressed(attempt=number, step=step))
        if fault.commits and fault.steps:
            facts.append(CheckpointCommitted(attempt=number, step=step, path=f"step-{step}"))
        facts += self._end(number, seats, fault, step)
        self._facts[number] = tuple(facts)

    def _end(self, number: int, seats: tuple[str, ...], fault: Fault, step: int) -> list[AnyEvent]:
        node, rank = seats[fault.seat], fault.seat * self.ranks_per_node + fault.local
        failed = Detected(attempt=number, cause="rank_failed", node=node, rank=rank)
        over = Detected(attempt=number, cause="all_exited")
        exits: tuple[RankExit, ...] = ()
        match fault.fate:
            case Fate.FINISHES:
                self._findings[number] = self._found(number, seats, done_step=step)
                return [TrainingDone(attempt=number, step=step), over]
            case Fate.RAISES:
                error = RankError("boom", exception="ValueError", place=fault.place)
                exits = (RankExit(rank, node, code=1, step=step, phase="step", error=error),)
            case Fate.KILLED:
                exits = (RankExit(rank, node, signal=9, step=step, phase="step"),)
            case Fate.STORAGE:
                error = RankError("Stale file handle", exception="OSError", place="train.py:save")
                exits = tuple(
                    RankExit(i, seats[i // self.ranks_per_node], code=1, step=step, error=error)
                    for i in range(self.size * self.ranks_per_node)
                )
            case Fate.NODE_DIES:
                self.dead_nodes.add(node)
                failed = Detected(attempt=number, cause="node_gone", node=node)
            case Fate.PREEMPTED | Fate.OPERATOR:
                stop = {
                    Fate.PREEMPTED: Outcome.STOP_PREEMPTED,
                    Fate.OPERATOR: Outcome.STOP_OPERATOR,
                }[fault.fate]
                self._findings[number] = self._found(number, seats, stop=stop.value)
                asked = StopRequested(attempt=number, reason=stop, request=f"stop-{number}")
                saved = CheckpointCommitted(attempt=number, step=step, path=f"step-{step}")
                return [asked, saved, over] if fault.steps else [asked, over]
            case _:
                failed = over
        self._findings[number] = self._found(number, seats, exits=exits)
        return [failed]

    def _found(self, number: int, seats: tuple[str, ...], **more: object) -> Findings:
        world = len(seats) * self.ranks_per_node
        clean = world if more.get("stop") or more.get("done_step") is not None else 0
        gone = tuple(node for node in seats if node in self.dead_nodes)
        return msgspec.structs.replace(
            Findings(
                attempt=number,
                seats=seats,
                ranks_per_node=self.ranks_per_node,
                uses_train=True,
                world=world,
                clean=clean,
                nodes_gone=gone,
            ),
            **more,
        )

    def _tear_down(self, attempt: int) -> list[AnyEvent]:
        if attempt in self.alive:
            self._once(f"tear down {attempt}")
            self.alive.discard(attempt)
        return [TornDown(attempt=attempt)]

    def _release(self, nodes: tuple[str, ...], reason: str) -> list[AnyEvent]:
        for node in nodes:
            if node not in self.given_back:
                self._once(f"release {node}")
                self.given_back.add(node)
        return [NodeReleased(node=node, end_ms=1, reason=reason) for node in nodes]

    def _recover(self, intent: AnyEvent, state: RunState) -> list[AnyEvent]:
        match intent:
            case LaunchIntended() if intent.attempt in self.claimed:
                return [AttemptAdopted(attempt=intent.attempt)]
            case LaunchIntended():
                return self._voided(intent.attempt)
            case GangRequested():
                return self._gang(intent.name, intent.nodes, intent.exclude)
            case ReplacementIntended():
                return self._replacement(intent.name, intent.exclude)
            case QuarantineIntended():
                again = do.Quarantine(intent.node, intent.reason, intent.evidence)
                return self.perform(again, state)
            case ReleaseIntended():
                return self._release(intent.nodes, intent.reason)
            case TeardownIntended():
                return self._tear_down(intent.attempt)
            case _:
                raise AssertionError(f"{intent} is no intent")

    def _voided(self, attempt: int) -> list[AnyEvent]:
        self.void.add(attempt)
        self.alive.discard(attempt)
        return [AttemptVoided(attempt=attempt, reason="it was never started")]
