"""
An agent while its ranks run: what it obeys, how it stops, and how it kills.

    STARTING ─→ RUNNING ─→ STOPPING ─→ KILLING ─→ ENDED
        └─→ REFUSED (void, nothing to obey, no seat: no rank was started)

It obeys the control cells and SIGTERM (which is a stop), tells all in its state cell, and ends when
nothing of the attempt is left on the node. Its bounds, each ended by KILL:

- a stop: `stop_grace_s` from the flag;
- a kill: `save_grace_s` for a save in flight, unless `now`;
- a rank that failed: FAILED_GRACE_S for the supervisor, who gathers evidence first and then says
  `kill`; without a supervisor the peers would burn GPUs in a collective that never ends;
- no supervisor for `orphan_s` while the ranks stand still.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from trainctl.base.processes import Identity, descendants, send_signal
from trainctl.base.spawning import reap, spawn
from trainctl.model.agent import AgentPhase, AgentState, LaunchSpec
from trainctl.model.evidence import Evidence, Role
from trainctl.node.desk import Desk
from trainctl.node.last_words import tail
from trainctl.node.launcher import Plan
from trainctl.node.ranks import LocalFolder, Ranks
from trainctl.node.starting import Start

TICK_S = 0.02
FAILED_GRACE_S = 10.0
"""Above what a supervisor takes to gather and to say `kill`."""
GUARD_GRACE_S = 2.0
"""For the guards, once their ranks are killed, to write down the ends; then they are killed too."""
KILL_BOUND_S = 30.0
"""What does not die of KILL by then sits in the kernel: it is named and left."""
BARRIER_BOUND_S = 330.0
"""All local ranks are done: torchrun waits 300 s for those of other nodes before it ends itself."""
CLOSE_BOUND_S = 10.0


@dataclass(slots=True)
class Tending:
    """One attempt's ranks on this node, from the first to the last; see the module's diagram."""

    start: Start
    spec: LaunchSpec
    folder: LocalFolder
    ranks: Ranks
    desk: Desk
    logs: Path
    failed_grace_s: float = FAILED_GRACE_S
    _phase: AgentPhase = AgentPhase.STARTING
    _children: dict[int, int | None] = field(default_factory=dict)
    _codes: dict[int, int] = field(default_factory=dict)
    _kill_at: float | None = None
    _kill_why: str = ""
    _killing_s: float = 0.0
    _all_ended_s: float | None = None
    _exec_ms: int = 0
    _reason: str = ""
    _notes: tuple[Evidence, ...] = ()
    _published: AgentState | None = None

    def launch(self, plan: Plan) -> None:
        """Start torchrun, or the ranks, each under a guard."""
        self._notes = self.start.notes
        self._exec_ms = time.time_ns() // 1_000_000
        for child in plan.children():
            identity = spawn(child.argv, env=child.env, stdout=child.output)
            self._children[identity.pid] = child.rank
        self._phase = AgentPhase.RUNNING

    def run(self) -> int:
        """Watch until nothing is left; the exit code."""
        self._publish()
        while not self._is_over():
            time.sleep(TICK_S)
            for pid, code in reap().items():
                if pid in self._children:
                    self._codes[pid] = code
            self.ranks.look()
            self._obey()
            if self._phase is AgentPhase.KILLING:
                self._kill_what_is_left()
            self._publish()
        return self._end()

    # --- decisions --------------------------------------------------------------------------------

    def _obey(self) -> None:
        """Look at the supervisor's word, at signals and at the ranks; begin to stop or to kill."""
        if self._phase is AgentPhase.KILLING:
            return
        now = time.monotonic()
        word = self.desk.word
        said = word.said if word else None
        if said and said.void:
            self._begin_to_kill("the attempt was voided")
        elif said and said.kill and (said.now or not self._waits_for_save(now)):
            self._begin_to_kill("the supervisor ends the attempt")
        elif said and said.stop:
            self._begin_to_stop(now, said.stop)
        elif self.start.told_to_end():
            self._begin_to_stop(now, "SIGTERM")
        if (why := self._overdue(now)) is not None:
            self._begin_to_kill(why)

    def _waits_for_save(self, now: float) -> bool:
        """A kill was asked: whether a save in flight has time; the first call sets the bound."""
        bound = self._deadline(now + self.spec.save_grace_s, "a save outlasted its bound")
        return now < bound and self.ranks.is_saving(self.spec.save_grace_s)

    def _begin_to_stop(self, now: float, why: str) -> None:
        if self._phase is AgentPhase.RUNNING:
            self.folder.ask_to_stop()
            self._phase, self._reason = AgentPhase.STOPPING, why
            grace_s = self.spec.stop_grace_s
            self._deadline(now + grace_s, f"not ended {grace_s:g} s after the stop")

    def _deadline(self, at_s: float, why: str) -> float:
        """Kill at `at_s` at the latest; an earlier bound stays."""
        if self._kill_at is None or at_s < self._kill_at:
            self._kill_at, self._kill_why = at_s, why
        return self._kill_at

    def _overdue(self, now: float) -> str | None:
        """Why it is time to kill, if it is."""
        if self.ranks.first_failure_ns() is not None:
            saving = self.ranks.is_saving(self.spec.save_grace_s)
            grace_s = self.failed_grace_s + (self.spec.save_grace_s if saving else 0.0)
            self._deadline(now + grace_s, "a rank failed and no supervisor ended the attempt")
        if self.ranks.all_ended:
            self._deadline(now + BARRIER_BOUND_S, "the launcher outlived its ranks")
        if self._kill_at is not None and now >= self._kill_at:
            return self._kill_why
        limit_s = self.spec.orphan_s
        beat = self.ranks.have_beaten
        stands_s = now - (self.ranks.moved_s if beat else self.desk.output_moved_s)
        if stands_s >= limit_s and self.desk.alone_s >= limit_s:
            return f"orphaned: still, and without a supervisor, for {limit_s:g} s"
        return None

    def _begin_to_kill(self, why: str) -> None:
        self._phase = AgentPhase.KILLING
        self._reason = f"{self._reason}; {why}" if self._reason else why
        self._killing_s = time.monotonic()
        self.ranks.killing_since_ns = time.monotonic_ns()

    def _kill_what_is_left(self) -> None:
        spared: frozenset[int] = frozenset()
        if time.monotonic() < self._killing_s + GUARD_GRACE_S:
            spared = self.ranks.guard_pids() | self._children.keys()
        for each in descendants(os.getpid()):
            if each.pid not in spared:
                send_signal(each, signal.SIGKILL)

    def _is_over(self) -> bool:
        """All our children have ended, and with the guards all that was below them."""
        if len(self._codes) == len(self._children):
            # A guard that was killed has swept nothing: what it left has come to us.
            if (left := descendants(os.getpid())) and self._phase is not AgentPhase.KILLING:
                self._begin_to_kill(f"{len(left)} processes outlived the ranks")
            return not left or time.monotonic() > self._killing_s + KILL_BOUND_S
        killing = self._phase is AgentPhase.KILLING
        return killing and time.monotonic() > self._killing_s + KILL_BOUND_S

    # --- the cell ---------------------------------------------------------------------------------

    def _publish(self) -> None:
        state = self._state()
        urgent = self._published is None or _visible(state) != _visible(self._published)
        if urgent:
            self._published = state
        self.desk.put(state, urgent=urgent)

    def _state(self) -> AgentState:
        word = self.desk.word
        return self.start.state(
            phase=self._phase,
            exec_ms=self._exec_ms,
            ack_term=word.term if word else 0,
            ack_seq=word.seq if word else 0,
            ranks=self.ranks.states(),
            exits=self.ranks.exits,
            launcher_code=self._launcher_code(),
            reason=self._reason,
            notes=self._notes,
        )

    def _launcher_code(self) -> int | None:
        """torchrun's code; where we start the ranks, the first not 0, once all have ended."""
        if len(self._codes) < len(self._children):
            return None
        return next((code for code in self._codes.values() if code), 0)

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> int:
        left = descendants(os.getpid())
        self.ranks.close_all()
        self._explain_launcher()
        if left:
            self._note("agent", f"{len(left)} processes do not die of KILL: {_pids(left)}")
        if self.desk.deaf:
            self._note("agent", f"control cells could not be read at last: {self.desk.deaf}")
        self._phase = AgentPhase.ENDED
        self._publish()
        told = self.desk.close(CLOSE_BOUND_S)
        self.folder.remove()
        clean = self.ranks.all_ended and all(end.code == 0 for end in self.ranks.exits)
        return 0 if clean and told else 1

    def _explain_launcher(self) -> None:
        """Say why the launcher failed, where no rank's own end says it."""
        code = self._launcher_code()
        if not code or self.ranks.killing_since_ns is not None:
            return
        if code < 0:
            self._note("exit", f"the launcher was killed by signal {-code}", Role.LEAD)
        if not self.ranks.exits:
            lines = [line for line in tail(self.logs / "launcher.log") if line.strip()]
            self._reason = lines[-1][:500] if lines else f"the launcher ended with {code}"
            telling = [line for line in lines if "rror" in line or "errno" in line]
            for line in telling[:3]:
                self._note("log", line[:500])

    def _note(self, source: str, text: str, role: Role = Role.CONTEXT) -> None:
        evidence = Evidence(source=source, text=text, role=role, node=self.start.node)
        self._notes = (*self._notes, evidence)


def _visible(state: AgentState) -> tuple[object, ...]:
    """What is written at once when it changes; steps may wait for the period."""
    return (
        *(state.phase, state.port, state.ack_term, state.ack_seq, state.exits, state.stalled),
        *(state.launcher_code, state.reason, state.notes),
        # That a rank has started to beat, or beats in another phase, is news too.
        tuple((r.rank, r.pid, r.step >= 0, r.phase == "save") for r in state.ranks),
    )


def _pids(identities: tuple[Identity, ...]) -> str:
    return ", ".join(str(each.pid) for each in identities[:10])
