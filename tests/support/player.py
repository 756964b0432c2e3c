"""
The supervisor's loop in a few lines, with no thread and no file, played in `support.world`.

It can be killed at any of its steps (before and after each effect, before and after each line of
the journal); another then plays on from the same journal, as a new term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from support.telling import tell
from support.world import START_MS, World
from trainctl.model.events import (
    AnyEvent,
    AttemptExited,
    CheckpointCommitted,
    ReplacementGranted,
    RunCreated,
    SupervisorStarted,
)
from trainctl.policy import actions as do
from trainctl.policy.decide import decide
from trainctl.policy.evolve import evolve, fold
from trainctl.policy.limits import Limits
from trainctl.policy.naming import bare
from trainctl.policy.state import Phase, RunState


class Killed(Exception):
    """The supervisor is no more."""


@dataclass
class Player:
    """One supervisor after another on one journal."""

    world: World
    limits: Limits = field(default_factory=lambda: Limits(can_replace=True))
    journal: list[AnyEvent] = field(default_factory=list)
    #: The steps of the play at which the supervisor is killed.
    kill_at: frozenset[int] = frozenset()
    #: Called with the state before and after each event.
    check: Callable[[RunState, AnyEvent, RunState], None] | None = None
    state: RunState = field(default_factory=RunState)
    now_ms: int = START_MS
    steps: int = 0
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        created = RunCreated(
            run="run",
            run_id="run-1",
            cluster="local",
            nodes=self.world.size,
            spares=self.world.spares,
            ranks_per_node=self.world.ranks_per_node,
        )
        self.write(created)

    def write(self, event: AnyEvent) -> None:
        """Journal and fold one event."""
        term = event.term or self.state.term
        stamped = msgspec.structs.replace(
            event, v=1, term=term, seq=len(self.journal) + 1, at_ms=self.now_ms
        )
        self.journal.append(stamped)
        before, self.state = self.state, evolve(self.state, stamped)
        if self.check is not None:
            self.check(before, stamped, self.state)
        if isinstance(event, CheckpointCommitted):
            self.world.committed = max(self.world.committed, event.step)

    def play(self, most: int = 4000) -> RunState:
        """To the run's end, however often the supervisor is killed on the way."""
        for _ in range(len(self.kill_at) + 1):
            self.state = fold(self.journal)
            self.now_ms += 15_000
            self.write(SupervisorStarted(term=self.state.term + 1))
            try:
                self._live(most)
            except Killed:
                continue
            return self.state
        raise AssertionError("killed more often than was told")

    def _live(self, most: int) -> None:
        for _ in range(most):
            if self.state.phase is Phase.ENDED:
                return
            if not self._look() and self._do(decide(self.state, self.limits, self.now_ms)):
                return
        raise AssertionError(f"no end within {most} steps: {self.told[-20:]}")

    def _step(self) -> None:
        self.steps += 1
        if self.steps - 1 in self.kill_at:
            raise Killed

    def _look(self) -> bool:
        """One fact more of what was asked for or runs, unless the journal has it."""
        if grants := self.world.granted.get(self.state.replacement_pending):
            self._step()
            name = self.state.replacement_pending
            self.write(ReplacementGranted(name=name, node=grants[0]))
            return True
        if self.state.phase is not Phase.RUNNING:
            return False
        number = self.state.attempt
        mine = [event for event in self.journal[-50:] if getattr(event, "attempt", 0) == number]
        known = [bare(event) for event in mine]
        for fact in self.world.facts(number):
            if fact not in known:
                self._step()
                self.now_ms += 1000
                self.write(fact)
                return True
        return False

    def _do(self, action: do.Action) -> bool:
        """Perform one action; True when there is nothing left to wait for."""
        match action:
            case do.Watch(until_ms):
                assert until_ms or not self.limits.act, f"stuck in {self.state.phase}"
                self.now_ms = max(self.now_ms + 1, until_ms)
                return not until_ms
            case do.Record(event):
                self._step()
                self.told.append(tell(action))
                self.write(event)
            case do.PassOnStop():
                self.now_ms += 1000
            case _:
                self._perform(action)
        return False

    def _perform(self, action: do.Action) -> None:
        assert decide(self.state, self.limits, self.now_ms) == action
        if not isinstance(action, do.Recover):
            self.told.append(tell(action))
        self._step()
        intent = do.intent(action)
        if intent is not None and self.state.open_intent is None:
            self.write(intent)
            again = decide(self.state, self.limits, self.now_ms)
            assert again == action, f"{tell(action)} became {tell(again)} once it was intended"
            self._step()
        events = self.world.perform(action, self.state)
        self._step()
        self.now_ms += 500
        for event in events:
            self.write(event)
            self._step()

    def exits(self) -> list[AttemptExited]:
        """The verdicts, in order."""
        return [event for event in self.journal if isinstance(event, AttemptExited)]
