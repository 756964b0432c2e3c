"""
Fault injection as a tool: real faults into a real run, one after the other, each named beforehand.

A fault waits until the run trains and has committed something since the last fault, is injected,
and is *dealt with* when the journal says so; only then comes the next. What happens inside a rank
goes through the plan file that `trainctl.train.inject` reads; all else is done from outside
(signals, requests).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from trainctl.adapters.journal import JournalTail
from trainctl.adapters.requests import Request, write_request
from trainctl.base.clock import Clock
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model import events as ev
from trainctl.model.errors import TrainctlError, UsageError
from trainctl.model.events import AnyEvent
from trainctl.model.outcome import Outcome
from trainctl.policy.evolve import evolve
from trainctl.policy.state import Phase, RunState
from trainctl.usecases.attempts import Ear


class Fault(StrEnum):
    """What can be injected."""

    #: A rank raises RuntimeError in its step.
    EXCEPTION = "exception"
    #: SIGKILL of a rank from outside.
    SIGKILL = "sigkill"
    #: A node's whole process tree dies.
    NODE_DEATH = "node-death"
    #: A rank is killed in the middle of a save: the checkpoint stays half-written.
    TORN_CHECKPOINT = "torn-checkpoint"
    #: SIGKILL of the supervisor that holds the lease.
    SUPERVISOR_KILL = "supervisor-kill"
    #: A planned stop.
    STOP = "stop"
    #: A planned stop that one rank sees late.
    LATE_STOP = "late-stop"
    NONE = "none"


EXPECTED: dict[Fault, Outcome | None] = {
    Fault.EXCEPTION: Outcome.APP_ERROR,
    Fault.SIGKILL: Outcome.KILLED_UNKNOWN,
    Fault.NODE_DEATH: Outcome.NODE_LOST,
    Fault.TORN_CHECKPOINT: Outcome.KILLED_UNKNOWN,
    Fault.SUPERVISOR_KILL: None,
    Fault.STOP: Outcome.STOP_OPERATOR,
    Fault.LATE_STOP: Outcome.STOP_OPERATOR,
}
"""The outcome that the attempt must get; None: the attempt goes on."""

STOPS = (Fault.STOP, Fault.LATE_STOP)
INJECTED_MESSAGE = "injected by trainctl: a bug in the program"


def parse_faults(names: list[str]) -> tuple[Fault, ...]:
    """
    The faults of `--inject`, in order; `none` is no fault. Raises UsageError naming what is known.
    """
    known = ", ".join(fault.value for fault in Fault)
    faults = []
    for name in names:
        try:
            faults.append(Fault(name))
        except ValueError as error:
            raise UsageError(f"--inject {name}: not a fault; known: {known}") from error
    return tuple(fault for fault in faults if fault is not Fault.NONE)


@dataclass(frozen=True, slots=True)
class Injection:
    """
    One fault as it was injected: into which attempt, at which node and rank, after which step.
    """

    fault: Fault
    attempt: int
    step: int
    node: str = ""
    rank: int | None = None


@dataclass(slots=True)
class Injector:
    """
    Injects `faults` into the run at `run`, one after the other.

    `poll()` looks once and does what is due; it returns the journal's new events. `kill_node` ends
    a node's process tree by its grant. `rank_of` says which rank the n-th fault hits.
    """

    run: RunDir
    faults: tuple[Fault, ...]
    clock: Clock
    files: Files
    kill_node: Callable[[ev.NodeGrant], None]
    #: Steps between the commit that a fault waits for and the fault.
    steps_after_commit: int = 3
    done: list[Injection] = field(default_factory=list)
    state: RunState = field(default_factory=RunState)
    _tail: JournalTail = field(init=False)
    _ear: Ear | None = None
    _committed: int = -1
    _dealt_with: bool = True
    _holder: tuple[int, int] = (0, 0)
    _released: bool = False

    def __post_init__(self) -> None:
        self._tail = JournalTail(self.run)

    @property
    def plan(self) -> str:
        """The plan file, for TRAINCTL_INJECT in the run's environment."""
        return str(self.run.root / "inject" / "plan.json")

    @property
    def is_done(self) -> bool:
        """All faults were injected, and each was dealt with."""
        return self._dealt_with and len(self.done) == len(self.faults)

    def poll(self) -> list[AnyEvent]:
        """Look once; inject what is due."""
        news = [event for event in self._tail.poll() if not isinstance(event, ev.Unknown)]
        for event in news:
            self.state = evolve(self.state, event)
            self._see(event)
        if self._dealt_with and len(self.done) < len(self.faults) and self._is_time():
            self._inject(self.faults[len(self.done)])
        return news

    def _see(self, event: AnyEvent) -> None:
        if isinstance(event, ev.SupervisorStarted):
            self._holder, self._released = (event.term, event.pid), False
        elif isinstance(event, ev.LeaseReleased):
            self._released = True
        if self.done and not self._dealt_with:
            self._dealt_with = _deals_with(self.done[-1], event)

    def _is_time(self) -> bool:
        """The run trains, has committed something new, and is a few steps beyond that."""
        state = self.state
        if state.phase is not Phase.RUNNING or state.committed <= self._committed:
            return False
        ranks = list(self._ranks())
        steps = [step for _, _, _, step in ranks]
        world = len(state.seats) * (state.created.ranks_per_node if state.created else 1)
        return len(ranks) == world and min(steps) >= state.committed + self.steps_after_commit

    def _ranks(self) -> Iterator[tuple[int, str, int, int]]:
        """(rank, node, pid, step) of each rank that has beaten."""
        if self._ear is None or self._ear.attempt != self.state.attempt:
            self._ear = Ear(self.run, self.state.attempt, self.state.seats, self.files)
        for node, agent in self._ear.hear_agents().items():
            for rank in agent.ranks:
                if rank.pid:
                    yield rank.rank, node, rank.pid, rank.step

    def _inject(self, fault: Fault) -> None:
        ranks = sorted(self._ranks())
        rank, node, pid, step = ranks[(1 + len(self.done)) % len(ranks)]
        if fault is Fault.TORN_CHECKPOINT:
            rank, node, pid, step = ranks[0]
        self._committed = self.state.committed
        self._dealt_with = False
        named = fault not in (*STOPS, Fault.SUPERVISOR_KILL)
        self.done.append(
            Injection(
                fault,
                self.state.attempt,
                step,
                node if named else "",
                rank if named and fault is not Fault.NODE_DEATH else None,
            )
        )
        match fault:
            case Fault.EXCEPTION:
                self._plan("step", rank, "exception", message=INJECTED_MESSAGE)
            case Fault.TORN_CHECKPOINT:
                self._plan("save.shard_written", rank, "sigkill")
            case Fault.SIGKILL:
                os.kill(pid, signal.SIGKILL)
            case Fault.NODE_DEATH:
                self.kill_node(self.state.nodes[node].grant)
            case Fault.SUPERVISOR_KILL:
                os.kill(self._holder[1], signal.SIGKILL)
            case Fault.LATE_STOP:
                self._plan("step", rank, "hold_stop", step=step + 10)
                self._ask_stop()
            case Fault.STOP:
                self._ask_stop()
            case _:
                raise TrainctlError(f"{fault} cannot be injected")

    def _ask_stop(self) -> None:
        name = f"inject-{len(self.done):02d}"
        write_request(
            self.run,
            Request(
                name=name,
                kind="stop",
                by="fault injection",
                at_ms=self.clock.utc_ms(),
                attempt=self.state.attempt,
            ),
        )

    def _plan(self, point: str, rank: int, action: str, **more: str | int) -> None:
        fault = {
            "id": f"{len(self.done):02d}-{action}",
            "point": point,
            "rank": rank,
            "attempt": self.state.attempt,
            "action": action,
            **more,
        }
        path = self.run.root / "inject" / "plan.json"
        path.parent.mkdir(exist_ok=True)
        self.files.replace(path, msgspec.json.encode({"faults": [fault]}))


def _deals_with(injection: Injection, event: AnyEvent) -> bool:
    if injection.fault is Fault.SUPERVISOR_KILL:
        return isinstance(event, ev.AttemptAdopted)
    if injection.fault in STOPS:
        return isinstance(event, ev.RunStopped)
    return isinstance(event, ev.FirstStep) and event.attempt > injection.attempt
