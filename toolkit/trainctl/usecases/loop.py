"""
The supervisor's loop: observe → evolve → decide → journal what is intended → act → journal what
happened.

Its whole state is the fold of the journal, so it can be killed at any instant and started anywhere;
what is kept beside it (when the attempt was launched by this process's clock, which lines of
trainer.jsonl were heard) is found again by looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from trainctl.adapters.journal import JournalWriter, read_journal
from trainctl.adapters.lease import Lease
from trainctl.adapters.requests import Request, read_requests
from trainctl.base.clock import Clock
from trainctl.base.config import RunConfig
from trainctl.base.rundir import RunDir
from trainctl.model.errors import CellError, LeaseLost, StorageError, TrainctlError
from trainctl.model.events import AnyEvent, AttemptAdopted, AttemptExited, StopRequested
from trainctl.policy import actions as do
from trainctl.policy.decide import decide
from trainctl.policy.evolve import evolve
from trainctl.policy.limits import Limits
from trainctl.policy.notice import AttemptView, notice
from trainctl.policy.state import Phase, RunState
from trainctl.usecases.effect_thread import EffectThread
from trainctl.usecases.effects import Effects
from trainctl.usecases.interrupts import Interrupts

TICK_S = 0.05
"""The loop sleeps so long when nothing happens; an effect that ends wakes it."""
REQUESTS_EVERY_MS = 500
EFFECT_RETRY_S = 2.0
EFFECT_TRIES = 300
"""An effect that cannot be done (storage away, a full disk) is tried for ten minutes."""
JOURNAL_RETRY_S = 1.0
JOURNAL_TRIES = 600
"""A full disk is waited for ten minutes: the attempt trains on, and a fact must not be lost."""

SETTLE_EVERY_MS = 10_000
SETTLE_FOR_MS = 180_000
"""Above the longest bound of an effect: what an ousted holder began is known by then."""

_LOOKING = (Phase.RUNNING, Phase.DETECTED, Phase.GATHERED, Phase.TEARING_DOWN)
_ALIVE = (Phase.LAUNCHING, *_LOOKING)
_ONCE = frozenset({"loaded", "checkpoint_committed", "checkpoint_failed", "training_done"})
"""Facts of trainer.jsonl: whoever adopts an attempt reads that file from its start."""


@dataclass(slots=True)
class Loop:
    """
    One holder's time: built on a lease that was just won and the state folded from the journal.
    """

    run: RunDir
    config: RunConfig
    limits: Limits
    lease: Lease
    journal: JournalWriter
    effects: Effects
    state: RunState
    clock: Clock
    interrupts: Interrupts
    tell: Callable[[AnyEvent], None]
    warn: Callable[[str], None]
    _thread: EffectThread = field(default_factory=EffectThread)
    _said: set[tuple[str, int, int]] = field(default_factory=set)
    _failed: int = 0
    _retry_ms: int = 0
    _blind: str = ""
    _strange: set[str] = field(default_factory=set)
    _settled: set[tuple[int, int]] = field(default_factory=set)
    _settled_ms: int | None = None
    _settle_end_ms: int = 0
    _launched_ms: int = 0
    _progress_ms: int = 0
    _requests_ms: int = -REQUESTS_EVERY_MS

    def live(self) -> RunState:
        """
        Run to the run's end; in observe-only mode, until nothing is left to observe.

        Raises LeaseLost as soon as the run is not ours.
        """
        self._launched_ms = self._progress_ms = self.clock.mono_ms()
        if self.state.phase in _LOOKING:
            self.record(AttemptAdopted(attempt=self.state.attempt))
        while self.state.phase is not Phase.ENDED:
            self.lease.tick()
            self.lease.check()
            self._obey_requests()
            self._look()
            self._settle()
            action = decide(self.state, self.limits, self.clock.utc_ms())
            if not self.limits.act and isinstance(action, do.Watch) and not self._observes():
                break
            self._do(action)
        return self.state

    def _observes(self) -> bool:
        return self.state.phase in _ALIVE

    def _do(self, action: do.Action) -> None:
        match action:
            case do.Record():
                self.record(action.event)
                return
            case do.PassOnStop(_, reason):
                try:
                    self.effects.attempt.take_hold(self.state).voice.say(stop=reason.value)
                except (CellError, OSError) as error:
                    self._cannot_look(error)
            case do.Watch():
                pass
            case _:
                if self._thread.action is None and self.clock.mono_ms() >= self._retry_ms:
                    self._begin(action)
        try:
            for event in self._thread.take(TICK_S):
                self.record(event)
                self._failed = 0
        except LeaseLost:
            raise
        except (TrainctlError, OSError) as error:
            self._effect_failed(action, error)

    def _effect_failed(self, action: do.Action, error: Exception) -> None:
        """Storage or cluster would not: the intent stays open, so the effect is tried again."""
        self._failed += 1
        if self._failed > EFFECT_TRIES:
            raise error
        self._retry_ms = self.clock.mono_ms() + int(EFFECT_RETRY_S * 1000)
        self.warn(f"{type(action).__name__}: {error}; trying again in {EFFECT_RETRY_S:.0f} s")

    def _begin(self, action: do.Action) -> None:
        intent = do.intent(action)
        if intent is not None and self.state.open_intent is None:
            self.record(intent)
        state = self.state
        self._thread.start(action, lambda: self.effects.perform(action, state))

    # --- the journal --------------------------------------------------------------------------

    def record(self, event: AnyEvent) -> None:
        """Journal one event, fold it, tell it; a fact of trainer.jsonl only once."""
        key = _key(event)
        if event.kind in _ONCE and key in self._said:
            return
        stamped = self._append(event)
        self._said.add(key)
        self.state = evolve(self.state, stamped)
        now_ms = self.clock.mono_ms()
        if event.kind in ("attempt_launched", "attempt_adopted"):
            self._launched_ms = self._progress_ms = now_ms
        elif event.kind in ("first_step", "progressed"):
            self._progress_ms = now_ms
        if isinstance(stamped, AttemptExited):
            self._write_verdict(stamped)
        self.tell(stamped)

    def _write_verdict(self, exited: AttemptExited) -> None:
        """
        verdict.json: the journal's own word, for people and programs that look at one attempt.
        """
        path = self.run.verdict(exited.attempt)
        text = msgspec.json.format(msgspec.json.encode(exited), indent=1)
        try:
            self.effects.files.replace(path, text + b"\n")
        except OSError as error:
            self.warn(f"{path}: cannot be written: {error.strerror or error}; the journal has it")

    def _append(self, event: AnyEvent) -> AnyEvent:
        for tries_left in range(JOURNAL_TRIES, -1, -1):
            self.lease.tick()
            self.lease.check()
            try:
                return self.journal.append(event)
            except TrainctlError:
                if not tries_left:
                    raise
                self.clock.sleep(JOURNAL_RETRY_S)
        raise AssertionError("unreachable")

    def remember(self, events: Iterable[object]) -> None:
        """What earlier holders journaled of trainer.jsonl is not journaled again."""
        self._said.update(_key(event) for event in events if hasattr(event, "kind"))

    # --- seeing -------------------------------------------------------------------------------

    def _look(self) -> None:
        if self.state.phase not in _LOOKING:
            return
        try:
            view = self._view()
        except (CellError, OSError) as error:
            self._cannot_look(error)
            return
        self._blind = ""
        for event in notice(self.state, view):
            self.record(event)

    def _view(self) -> AttemptView:
        now_ms = self.clock.mono_ms()
        runs = self.state.phase is Phase.RUNNING  # else the effect in flight looks by itself
        return replace(
            self.effects.attempt.view(self.state) if runs else AttemptView({}),
            lines=self.effects.attempt.take_hold(self.state).ear.hear_trainer(),
            age_ms=now_ms - self._launched_ms,
            since_progress_ms=now_ms - self._progress_ms,
            launch_limit_ms=int(self.config.detect.launch_s * 1000),
        )

    def _cannot_look(self, error: Exception) -> None:
        """Storage hides or refuses what is there: that says nothing of the attempt."""
        if str(error) != self._blind:
            self._blind = str(error)
            self.warn(f"cannot look at attempt {self.state.attempt}: {error}; it may be well")

    def _settle(self) -> None:
        """
        What an ousted holder wrote after the takeover is not folded, but what it may have begun is
        looked up and undone; its file is read again until its longest bound has passed.
        """
        now_ms = self.clock.mono_ms()
        if self._settled_ms is None:
            self._settle_end_ms = now_ms + SETTLE_FOR_MS
        elif now_ms - self._settled_ms < SETTLE_EVERY_MS or now_ms > self._settle_end_ms:
            return
        if self._thread.action is not None or not self.limits.act:
            return
        self._settled_ms = now_ms
        try:
            intents = read_journal(self.run, self.effects.files).void_intents
        except StorageError:
            return
        late = (e for e in intents if (e.term, e.seq) not in self._settled)
        if (intent := next(late, None)) is not None:
            state = self.state
            self._settled.add((intent.term, intent.seq))
            self._thread.start(do.Recover(intent), lambda: self.effects.settle(intent, state))

    def _obey_requests(self) -> None:
        attempt = self.state.attempt if self.state.phase in _ALIVE else 0
        if self.interrupts.obeyed < self.interrupts.count:
            self.interrupts.obeyed = self.interrupts.count
            now = self.interrupts.count > 1
            self.record(StopRequested(attempt=attempt, by="terminal", now=now))
        now_ms = self.clock.mono_ms()
        if now_ms - self._requests_ms < REQUESTS_EVERY_MS:
            return
        self._requests_ms = now_ms
        for request in self._requests():
            if request.name not in self.state.requests_seen:
                self.record(
                    StopRequested(
                        attempt=attempt, by=request.by, request=request.name, now=request.now
                    )
                )

    def _requests(self) -> tuple[Request, ...]:
        try:
            return read_requests(self.run, self.effects.files, unreadable=self._unreadable)
        except StorageError:
            return ()  # cannot read is not "nobody asked": looked for again in a moment

    def _unreadable(self, path: Path, why: str) -> None:
        if path.name not in self._strange:
            self._strange.add(path.name)
            self.warn(f"{path}: not a request: {why}")


def _key(event: object) -> tuple[str, int, int]:
    return (
        str(getattr(event, "kind", "")),
        int(getattr(event, "attempt", 0)),
        int(getattr(event, "step", 0)),
    )
