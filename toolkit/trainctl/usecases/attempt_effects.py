"""
Effects on an attempt: launch it, hear it, gather evidence, tear it down, find out what an earlier
holder did of it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from trainctl.adapters.checkpoints import latest_committed
from trainctl.adapters.cluster import NodeLife, Step, StepLife
from trainctl.model.agent import AgentPhase, LaunchSpec, NodeSeat
from trainctl.model.errors import CheckpointError, ClusterError
from trainctl.model.events import (
    AnyEvent,
    AttemptAdopted,
    AttemptLaunched,
    AttemptVoided,
    CheckpointCommitted,
    Detected,
    Gathered,
    LaunchIntended,
    RunStopped,
    TornDown,
)
from trainctl.model.outcome import EndKind
from trainctl.policy import actions as do
from trainctl.policy.blame import judge
from trainctl.policy.naming import step_name
from trainctl.policy.notice import AttemptView, findings_of
from trainctl.policy.state import RunState
from trainctl.usecases.attempts import (
    Ear,
    Voice,
    claim,
    lay_out,
    read_launch,
    write_launch,
)
from trainctl.usecases.kit import Kit, grants, page, run_id

AGENT_GONE = frozenset({AgentPhase.ENDED, AgentPhase.REFUSED})
ADOPT_S = 3.0
"""A launch that an earlier holder began has so long to be found on all its nodes."""
VOID_WAIT_S = 3.0
"""An agent reads its control cells every second; after a void it has had time to read thrice."""
LAST_WORD_S = 4.0
"""A reading may be a few seconds old: so long an ended agent's last word is waited for."""
SETTLE_S = 0.1
"""After the first failure with a reason of its own, so long is waited for a better one."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The checkpoint that an attempt starts from; `path` "" is a fresh start."""

    step: int
    path: str
    attempt: int
    refused: tuple[str, ...]


@dataclass(slots=True)
class Attempt:
    """The supervisor's hold on the attempt that runs: its word and its hearing."""

    voice: Voice
    ear: Ear
    launch_error: str = ""
    #: When we first saw that the step had ended on a node whose cell does not say so.
    ended_ms: dict[str, int] = field(default_factory=dict)


class AttemptEffects:
    """What is done to the attempt of the state; each method yields the events of what happened."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._attempt: Attempt | None = None

    def launch(self, action: do.Launch, state: RunState) -> Iterator[AnyEvent]:
        """Claim the number, lay out the folder, start the agents; void it where it was claimed."""
        kit = self._kit
        kit.still_mine()
        if not claim(kit.run, action.attempt, action.seats, kit.files):
            yield from self._void(action.attempt, action.step_name, action.seats, state)
            return
        self._attempt = attempt = self._hold(action.attempt, action.seats)
        attempt.voice.say()
        try:
            chosen = self._choose_checkpoint()
            if chosen.step > state.committed:  # its writer died before it could tell
                yield CheckpointCommitted(
                    attempt=chosen.attempt, step=chosen.step, path=chosen.path
                )
            if not chosen.path and state.committed >= 0:
                yield from self._checkpoints_are_gone(action.attempt, state, chosen)
                return
            spec = self._spec(action, state, chosen)
            write_launch(kit.run, spec, kit.files)
            kit.still_mine()
            kit.cluster.launch(self._step(spec, state))
        except (ClusterError, CheckpointError) as error:
            attempt.launch_error = str(error)
            yield Detected(attempt=action.attempt, cause="launch_failed", detail=str(error))
        else:
            yield _launched(spec, chosen.refused)

    def _checkpoints_are_gone(
        self, number: int, state: RunState, chosen: Chosen
    ) -> Iterator[AnyEvent]:
        """A start from scratch would throw away what was trained: a human must look."""
        folder = self._kit.config.checkpoint.dir or str(self._kit.run.checkpoints)
        reason = (
            f"step {state.committed} was committed, and {folder} holds no checkpoint that can be "
            "used; restore it and resume, or submit a new run to start from scratch"
        )
        yield AttemptVoided(attempt=number, reason=reason)
        yield from page(self._kit, f"checkpoints-gone-a{number:04d}", reason)
        root = shlex.quote(str(self._kit.run.root))
        yield RunStopped(
            end=EndKind.NEEDS_HUMAN,
            reason=reason,
            evidence=chosen.refused[:5],
            next_command=f"trainctl resume {root}",
        )

    def _choose_checkpoint(self) -> Chosen:
        """
        What to start from: the highest committed checkpoint that verifies, and why newer ones did
        not.
        """
        folder = self._kit.config.checkpoint.dir or str(self._kit.run.checkpoints)
        found = latest_committed(folder, layout=self._kit.config.checkpoint.layout)
        refused = tuple(f"{one.path}: {one.reason}" for one in found.refused)
        if found.best is None:
            return Chosen(-1, "", 0, refused)
        return Chosen(found.best.step, str(found.best.path), found.best.attempt, refused)

    def _spec(self, action: do.Launch, state: RunState, chosen: Chosen) -> LaunchSpec:
        held = grants(state, action.seats)
        config = self._kit.config
        return LaunchSpec(
            run=config.name,
            run_id=run_id(state),
            run_dir=str(self._kit.run.root),
            attempt=action.attempt,
            term=self._kit.term,
            step_name=action.step_name,
            cluster=config.cluster,
            seats=tuple(NodeSeat(grant.node, grant.address) for grant in held),
            ranks_per_node=config.size.ranks_per_node,
            command=config.command,
            env=config.env,
            launcher=config.launcher,
            checkpoint_dir=config.checkpoint.dir or str(self._kit.run.checkpoints),
            resume=chosen.path,
            resume_step=chosen.step if chosen.path else None,
            stop_grace_s=config.restart.stop_grace_s,
            save_grace_s=config.restart.save_grace_s,
            orphan_s=config.restart.orphan_s,
        )

    def _step(self, spec: LaunchSpec, state: RunState) -> Step:
        return Step(
            name=spec.step_name,
            nodes=grants(state, tuple(seat.node for seat in spec.seats)),
            argv=(
                sys.executable,
                "-m",
                "trainctl.node.agent",
                "--run-dir",
                spec.run_dir,
                "--attempt",
                str(spec.attempt),
            ),
            env={},
            output=self._kit.run.nodes(spec.attempt),
        )

    def _hold(self, number: int, seats: tuple[str, ...]) -> Attempt:
        return Attempt(
            voice=Voice(self._kit.run, number, self._kit.term, self._kit.files),
            ear=Ear(self._kit.run, number, seats, self._kit.files),
        )

    def take_hold(self, state: RunState) -> Attempt:
        """The hold on the attempt of `state`, taken now where an earlier term launched it."""
        if self._attempt is None or self._attempt.ear.attempt != state.attempt:
            self._attempt = self._hold(state.attempt, state.seats)
        return self._attempt

    def gather(self, state: RunState) -> Iterator[AnyEvent]:
        """
        Look until the failure has a reason of its own, or all ranks ended, or the bound is reached.

        The first failure seen is often a consequence (a peer's socket closed): the lead may be a
        moment behind it. So a lead must stand for `SETTLE_S`, and without one the whole bound is
        used.
        """
        attempt = self.take_hold(state)
        end_ms = self._kit.clock.mono_ms() + int(self._kit.config.detect.gather_s * 1000)
        stands_since: int | None = None
        attempt.voice.ask_for_reports()
        while True:
            findings = findings_of(state, self.view(state), attempt.launch_error)
            now_ms = self._kit.clock.mono_ms()
            stands_since = (stands_since or now_ms) if judge(findings).first else None
            settled = stands_since is not None and now_ms - stands_since >= SETTLE_S * 1000
            whole = len(findings.exits) >= min(findings.world, 256) or bool(findings.launch_error)
            if settled or whole or state.stop_now or now_ms >= end_ms:
                break
            self._kit.clock.sleep(0.02)
        yield Gathered(attempt=state.attempt, findings=findings)

    def view(self, state: RunState) -> AttemptView:
        """One look at the attempt of `state` by its agents' cells and the cluster."""
        attempt = self.take_hold(state)
        held = grants(state, state.seats)
        agents = attempt.ear.hear_agents()
        try:
            lives = self._kit.cluster.observe(held)
            steps = self._kit.cluster.find_step(step_name(state, state.attempt), held)
        except ClusterError:
            lives, steps = {}, {}
        return AttemptView(
            agents=dict(agents),
            gone=frozenset(node for node, life in lives.items() if life is NodeLife.GONE),
            vanished=self._vanished(attempt, steps),
        )

    def _vanished(self, attempt: Attempt, steps: dict[str, StepLife]) -> frozenset[str]:
        """
        Nodes where the step ended and the agent's cell does not say so, however long we wait for a
        cache to let its last word through.
        """
        now_ms = self._kit.clock.mono_ms()
        silent = set()
        for node, life in steps.items():
            agent = attempt.ear.agents.get(node)
            if life is not StepLife.ENDED or (agent and agent.phase in AGENT_GONE):
                attempt.ended_ms.pop(node, None)
            elif now_ms - attempt.ended_ms.setdefault(node, now_ms) >= LAST_WORD_S * 1000:
                silent.add(node)
        return frozenset(silent)

    def tear_down(self, state: RunState) -> Iterator[AnyEvent]:
        """Ask the agents, who let a save in flight finish; then the cluster, which asks nobody."""
        self._kit.still_mine()
        attempt = self.take_hold(state)
        attempt.voice.say(kill=True, now=state.stop_now)
        held = grants(state, state.seats)
        bound_s = self._kit.config.restart.save_grace_s + self._kit.config.detect.teardown_s
        end_ms = self._kit.clock.mono_ms() + int(bound_s * 1000)
        while self._kit.clock.mono_ms() < end_ms and self._alive(state):
            self._kit.clock.sleep(0.02)
        try:
            left = self._kit.cluster.tear_down(
                step_name(state, state.attempt), held, self._kit.config.detect.teardown_s
            )
        except ClusterError:
            left = tuple(self._alive(state))
        yield TornDown(attempt=state.attempt, leftover=left)

    def _alive(self, state: RunState) -> list[str]:
        """
        Nodes of the attempt whose agent has not said that it is done, and is not known to be gone.
        """
        view = self.view(state)
        return [
            node
            for node in state.seats
            if node not in view.gone
            and node not in view.vanished
            and (node in view.agents and view.agents[node].phase not in AGENT_GONE)
        ]

    def recover_launch(self, intent: LaunchIntended, state: RunState) -> Iterator[AnyEvent]:
        """
        Adopt where the step is on all its nodes; else void the number, whatever may still start.
        """
        end_ms = self._kit.clock.mono_ms() + int(ADOPT_S * 1000)
        while True:
            lives = self._find_step(intent, state)
            if lives and all(life in (StepLife.RUNNING, StepLife.ENDED) for life in lives.values()):
                self._attempt = self._hold(intent.attempt, intent.seats)
                self._attempt.voice.say()
                spec = read_launch(self._kit.run, intent.attempt)
                yield AttemptAdopted(
                    attempt=intent.attempt, resume_step=spec.resume_step if spec else None
                )
                return
            if self._kit.clock.mono_ms() >= end_ms:
                break
            self._kit.clock.sleep(0.1)
        yield from self._void(intent.attempt, intent.step_name, intent.seats, state)

    def _find_step(self, intent: LaunchIntended, state: RunState) -> dict[str, StepLife]:
        try:
            return self._kit.cluster.find_step(intent.step_name, grants(state, intent.seats))
        except ClusterError:
            return {}

    def void_foreign(self, intent: LaunchIntended, state: RunState) -> None:
        """
        Make a number void that an ousted holder claimed. Journaled when it is this holder's turn to
        use that number: the launch then finds the claim.
        """
        spec = read_launch(self._kit.run, intent.attempt)
        claimed = self._kit.run.attempt(intent.attempt).is_dir()
        theirs = claimed and (spec is None or spec.term == intent.term)
        if theirs and intent.attempt > state.attempt:
            self._forbid(intent.attempt, intent.step_name, intent.seats, state)

    def _void(
        self, number: int, name: str, seats: tuple[str, ...], state: RunState
    ) -> Iterator[AnyEvent]:
        left = self._forbid(number, name, seats, state)
        said = f"; not torn down: {', '.join(left)}" if left else ""
        yield AttemptVoided(
            attempt=number, reason=f"its launch was begun by an earlier holder{said}"
        )

    def _forbid(
        self, number: int, name: str, seats: tuple[str, ...], state: RunState
    ) -> tuple[str, ...]:
        """
        Make sure that nothing is ever started under this number; the nodes that could not be asked.

        The folder is completed where the old holder died half-way (so that its own claim fails),
        the word `void` is left for every agent that may still start, and what runs already is
        killed by name.
        """
        kit = self._kit
        kit.still_mine()
        spec = read_launch(kit.run, number)
        if spec is not None:
            seats = tuple(seat.node for seat in spec.seats)
        lay_out(kit.run, number, seats, kit.files)
        voice = Voice(kit.run, number, kit.term, kit.files)
        voice.say(void=True)
        voice.close()
        kit.clock.sleep(VOID_WAIT_S)
        held = grants(state, tuple(node for node in seats if node in state.nodes))
        try:
            return kit.cluster.tear_down(name, held, kit.config.detect.teardown_s)
        except ClusterError:
            return tuple(grant.node for grant in held)


def _launched(spec: LaunchSpec, refused: tuple[str, ...]) -> AttemptLaunched:
    return AttemptLaunched(
        attempt=spec.attempt, resume_step=spec.resume_step, resume=spec.resume, refused=refused
    )
