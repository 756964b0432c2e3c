"""
What the supervisor does to the world: one bounded method an action, each yielding what happened.

Everything here runs in a thread of its own, so that neither the lease nor the look at the run waits for
it. Before a step that cannot be taken back it asks the lease once more; what may still slip through (a
holder stopped between that question and the step) is caught by the fences: the claimed attempt number, and
the control cell that an agent reads before it starts a rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainctl.adapters.cluster import Cluster, NodeLife, Step, StepLife
from trainctl.adapters.checkpoints import latest_committed
from trainctl.adapters.pager import Pager, PagerError
from trainctl.adapters.quarantine import Entry, QuarantineDir
from trainctl.base.clock import Clock
from trainctl.base.config import RunConfig
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model.agent import AgentPhase, LaunchSpec, NodeSeat
from trainctl.model.errors import ClusterError
from trainctl.model.events import (
    AnyEvent,
    AttemptAdopted,
    AttemptLaunched,
    AttemptVoided,
    Detected,
    GangGranted,
    GangLost,
    GangRequested,
    Gathered,
    LaunchIntended,
    NodeGrant,
    NodeQuarantined,
    NodeReleased,
    NodeVerdict,
    Paged,
    PageFailed,
    PreflightFinished,
    QuarantineIntended,
    ReleaseIntended,
    ReplacementGranted,
    ReplacementIntended,
    TeardownIntended,
    TornDown,
)
from trainctl.policy import actions as do
from trainctl.policy.blame import judge
from trainctl.policy.notice import AttemptView, findings_of
from trainctl.policy.state import RunState
from trainctl.usecases.attempts import Ear, Voice, claim, lay_out, read_launch

AGENT_GONE = frozenset({AgentPhase.ENDED, AgentPhase.REFUSED})
VOID_WAIT_S = 3.0
"""An agent reads its control cells every second; after a void it has had time to read thrice."""
SETTLE_S = 0.15
"""After the first failure with a reason of its own, so long is waited for a better one."""


@dataclass(slots=True)
class Attempt:
    """The supervisor's hold on the attempt that runs: its word and its hearing."""

    voice: Voice
    ear: Ear
    launch_error: str = ""


class Effects:
    """Performs the actions of `policy.actions` for one term of one run."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        cluster: Cluster,
        pager: Pager,
        *,
        term: int,
        still_mine: Callable[[], None],
        clock: Clock,
        files: Files,
    ) -> None:
        self._run = run
        self._config = config
        self._cluster = cluster
        self._pager = pager
        self._term = term
        self._still_mine = still_mine
        self._clock = clock
        self._files = files
        self._quarantine = QuarantineDir(run.root / "quarantine", files)
        self.attempt: Attempt | None = None

    def perform(self, action: do.Action, state: RunState) -> Iterator[AnyEvent]:
        """Do it; yields the events of what happened. Bounded; raises only on a defect of ours."""
        match action:
            case do.RequestGang():
                return self._request_gang(action.name, action.nodes, action.exclude)
            case do.RequestReplacement():
                return self._request_replacement(action.name, action.exclude)
            case do.Preflight():
                return self._preflight(action, state)
            case do.Launch():
                return self._launch(action, state)
            case do.Gather():
                return self._gather(state)
            case do.TearDown():
                return self._tear_down(state)
            case do.Quarantine():
                return self._quarantine_node(action.node, action.reason, action.evidence, state)
            case do.Release():
                return self._release(action.nodes, action.reason, state)
            case do.Page():
                return self._page(action)
            case do.Recover():
                return self._recover(action.intent, state)
            case _:
                raise AssertionError(f"{action} is not an effect")

    # --- nodes --------------------------------------------------------------------------------

    def _request_gang(
        self, name: str, count: int, exclude: tuple[str, ...]
    ) -> Iterator[AnyEvent]:
        self._still_mine()
        try:
            yield GangGranted(name=name, nodes=self._cluster.allocate(name, count, exclude))
        except ClusterError as error:
            yield GangLost(name=name, reason=str(error))

    def _request_replacement(self, name: str, exclude: tuple[str, ...]) -> Iterator[AnyEvent]:
        self._still_mine()
        try:
            for grant in self._cluster.allocate(name, 1, exclude):
                yield ReplacementGranted(name=name, node=grant)
        except ClusterError as error:
            yield GangLost(name=name, reason=str(error))

    def _preflight(self, action: do.Preflight, state: RunState) -> Iterator[AnyEvent]:
        grants = _grants(state, action.nodes)
        try:
            lives = self._cluster.observe(grants)
        except ClusterError as error:
            lives = {}
            reason = str(error)
        else:
            reason = "the cluster could not say"
        verdicts = []
        for node in action.nodes:
            life = lives.get(node, NodeLife.UNKNOWN)
            if life is NodeLife.GONE:
                verdicts.append(NodeVerdict(node, "alive", "bad", "the cluster says it is gone"))
            elif life is NodeLife.UNKNOWN:
                verdicts.append(NodeVerdict(node, "alive", "unsure", reason))
        yield PreflightFinished(
            attempt=action.attempt,
            round=action.round,
            checked=action.nodes,
            verdicts=tuple(verdicts),
        )

    def _quarantine_node(
        self, node: str, reason: str, evidence: tuple[str, ...], state: RunState
    ) -> Iterator[AnyEvent]:
        self._still_mine()
        self._quarantine.add(
            Entry(
                node=node,
                reason=reason,
                evidence=evidence,
                run=self._config.name,
                run_id=_run_id(state),
                attempt=state.attempt,
                at_ms=self._clock.utc_ms(),
            )
        )
        yield NodeQuarantined(node=node, reason=reason)

    def _release(
        self, nodes: tuple[str, ...], reason: str, state: RunState
    ) -> Iterator[AnyEvent]:
        self._still_mine()
        for span in self._cluster.release(_grants(state, nodes)):
            yield NodeReleased(
                node=span.node, start_ms=span.start_ms, end_ms=span.end_ms, reason=reason
            )

    # --- an attempt ---------------------------------------------------------------------------

    def _launch(self, action: do.Launch, state: RunState) -> Iterator[AnyEvent]:
        spec = self._spec(action, state)
        self._still_mine()
        if not claim(self._run, spec, self._files):
            yield from self._void(action.attempt, action.step_name, action.seats, state)
            return
        self.attempt = self._hold(action.attempt, action.seats)
        self.attempt.voice.say()
        self._still_mine()
        try:
            self._cluster.launch(self._step(spec, state))
        except ClusterError as error:
            self.attempt.launch_error = str(error)
            yield AttemptLaunched(attempt=action.attempt)
            yield Detected(attempt=action.attempt, cause="launch_failed", detail=str(error))
            return
        yield AttemptLaunched(attempt=action.attempt)

    def _spec(self, action: do.Launch, state: RunState) -> LaunchSpec:
        grants = _grants(state, action.seats)
        config = self._config
        return LaunchSpec(
            run=config.name,
            run_id=_run_id(state),
            run_dir=str(self._run.root),
            attempt=action.attempt,
            term=self._term,
            step_name=action.step_name,
            cluster=config.cluster,
            seats=tuple(NodeSeat(grant.node, grant.address) for grant in grants),
            ranks_per_node=config.size.ranks_per_node,
            command=config.command,
            env=config.env,
            launcher=config.launcher,
            checkpoint_dir=config.checkpoint.dir or str(self._run.checkpoints),
            resume=action.resume,
            resume_step=action.resume_step,
            stop_grace_s=config.restart.stop_grace_s,
            save_grace_s=config.restart.save_grace_s,
            orphan_s=config.restart.orphan_s,
        )

    def _step(self, spec: LaunchSpec, state: RunState) -> Step:
        return Step(
            name=spec.step_name,
            nodes=_grants(state, tuple(seat.node for seat in spec.seats)),
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
            output=self._run.nodes(spec.attempt),
        )

    def _hold(self, number: int, seats: tuple[str, ...]) -> Attempt:
        return Attempt(
            voice=Voice(self._run, number, self._term, self._files),
            ear=Ear(self._run, number, seats, self._files),
        )

    def take_hold(self, state: RunState) -> Attempt:
        """The hold on the attempt of `state`, taken now where an earlier term launched it."""
        if self.attempt is None or self.attempt.ear.attempt != state.attempt:
            self.attempt = self._hold(state.attempt, state.seats)
        return self.attempt

    def _gather(self, state: RunState) -> Iterator[AnyEvent]:
        """
        Look until the failure has a reason of its own, or all ranks ended, or the bound is reached.

        The first failure seen is often a consequence (a peer's socket closed): the lead may be a
        moment behind it. So a lead must stand for `SETTLE_S`, and without one the whole bound is used.
        """
        attempt = self.take_hold(state)
        end_ms = self._clock.mono_ms() + int(self._config.detect.gather_s * 1000)
        stands_since: int | None = None
        attempt.voice.ask_for_reports()
        while True:
            findings = findings_of(state, self.view(state), attempt.launch_error)
            now_ms = self._clock.mono_ms()
            stands_since = (stands_since or now_ms) if judge(findings).first else None
            settled = stands_since is not None and now_ms - stands_since >= SETTLE_S * 1000
            whole = len(findings.exits) >= min(findings.world, 256) or bool(findings.launch_error)
            if settled or whole or state.stop_now or now_ms >= end_ms:
                break
            self._clock.sleep(0.02)
        yield Gathered(attempt=state.attempt, findings=findings)

    def view(self, state: RunState) -> AttemptView:
        """One look at the attempt of `state` by its agents' cells and the cluster."""
        attempt = self.take_hold(state)
        grants = _grants(state, state.seats)
        agents = attempt.ear.hear_agents()
        try:
            lives = self._cluster.observe(grants)
            steps = self._cluster.find_step(step_name(state), grants)
        except ClusterError:
            lives, steps = {}, {}
        silent = [
            node
            for node, life in steps.items()
            if life is StepLife.ENDED
            and (node not in agents or agents[node].phase not in AGENT_GONE)
        ]
        if silent:  # its last word may have been written between our look and the cluster's
            agents = attempt.ear.hear_agents(silent)
        return AttemptView(
            agents=dict(agents),
            gone=frozenset(node for node, life in lives.items() if life is NodeLife.GONE),
            vanished=frozenset(
                node
                for node in silent
                if node not in agents or agents[node].phase not in AGENT_GONE
            ),
        )

    def _tear_down(self, state: RunState) -> Iterator[AnyEvent]:
        """Ask the agents, who let a save in flight finish; then the cluster, which asks nobody."""
        self._still_mine()
        attempt = self.take_hold(state)
        attempt.voice.say(kill=True, now=state.stop_now)
        grants = _grants(state, state.seats)
        bound_s = self._config.restart.save_grace_s + self._config.detect.teardown_s
        end_ms = self._clock.mono_ms() + int(bound_s * 1000)
        while self._clock.mono_ms() < end_ms and self._alive(state):
            self._clock.sleep(0.02)
        try:
            left = self._cluster.tear_down(
                step_name(state), grants, self._config.detect.teardown_s
            )
        except ClusterError:
            left = tuple(self._alive(state))
        yield TornDown(attempt=state.attempt, leftover=left)

    def _alive(self, state: RunState) -> list[str]:
        """Nodes of the attempt whose agent has not said that it is done, and is not known to be gone."""
        view = self.view(state)
        return [
            node
            for node in state.seats
            if node not in view.gone
            and node not in view.vanished
            and (node in view.agents and view.agents[node].phase not in AGENT_GONE)
        ]

    # --- what an earlier holder left open ---------------------------------------------------------

    def _recover(self, intent: AnyEvent, state: RunState) -> Iterator[AnyEvent]:
        match intent:
            case LaunchIntended():
                return self._recover_launch(intent, state)
            case GangRequested():
                return self._request_gang(intent.name, intent.nodes, intent.exclude)
            case ReplacementIntended():
                return self._request_replacement(intent.name, intent.exclude)
            case QuarantineIntended():
                return self._quarantine_node(intent.node, intent.reason, intent.evidence, state)
            case ReleaseIntended():
                return self._release(intent.nodes, intent.reason, state)
            case TeardownIntended():
                return self._tear_down(state)
            case _:
                raise AssertionError(f"{intent.kind} is not an intent")

    def _recover_launch(self, intent: LaunchIntended, state: RunState) -> Iterator[AnyEvent]:
        """Adopt where the step is on all its nodes; else void the number, whatever may still start."""
        end_ms = self._clock.mono_ms() + 3_000
        while True:
            lives = self._find_step(intent, state)
            if lives and all(
                life in (StepLife.RUNNING, StepLife.ENDED) for life in lives.values()
            ):
                self.attempt = self._hold(intent.attempt, intent.seats)
                self.attempt.voice.say()
                yield AttemptAdopted(attempt=intent.attempt)
                return
            if self._clock.mono_ms() >= end_ms:
                break
            self._clock.sleep(0.1)
        yield from self._void(intent.attempt, intent.step_name, intent.seats, state)

    def _find_step(self, intent: LaunchIntended, state: RunState) -> dict[str, StepLife]:
        try:
            return self._cluster.find_step(intent.step_name, _grants(state, intent.seats))
        except ClusterError:
            return {}

    def _void(
        self, number: int, name: str, seats: tuple[str, ...], state: RunState
    ) -> Iterator[AnyEvent]:
        """
        Make sure that nothing is ever started under this number.

        The folder is completed where the old holder died half-way (so that its own claim fails), the word
        `void` is left for every agent that may still start, and what runs already is killed by name.
        """
        self._still_mine()
        spec = read_launch(self._run, number)
        if spec is not None:
            seats = tuple(seat.node for seat in spec.seats)
        self._files.mkdir_exclusive(self._run.attempt(number))
        lay_out(self._run, number, seats, self._files)
        voice = Voice(self._run, number, self._term, self._files)
        voice.say(void=True)
        ear = Ear(self._run, number, seats, self._files)
        end_ms = self._clock.mono_ms() + int(VOID_WAIT_S * 1000)
        while self._clock.mono_ms() < end_ms:
            self._clock.sleep(0.1)
        grants = _grants(state, tuple(node for node in seats if node in state.nodes))
        try:
            left = self._cluster.tear_down(name, grants, self._config.detect.teardown_s)
        except ClusterError as error:
            left = (str(error),)
        agents = ear.hear_agents()
        alive = [n for n, agent in agents.items() if agent.phase not in AGENT_GONE]
        voice.close()
        said = f"; not torn down: {', '.join(left)}" if left else ""
        said += f"; agents last heard on {', '.join(alive)}" if alive else ""
        yield AttemptVoided(
            attempt=number, reason=f"its launch was begun by an earlier holder{said}"
        )

    # --- people -------------------------------------------------------------------------------

    def _page(self, action: do.Page) -> Iterator[AnyEvent]:
        try:
            self._pager.page(action.message)
        except PagerError as error:
            yield PageFailed(key=action.key, error=str(error))
        else:
            yield Paged(key=action.key, message=action.message)

    def newest_checkpoint(self) -> tuple[int, str]:
        """Step and path of the checkpoint to start from; (-1, "") where there is none."""
        folder = self._config.checkpoint.dir or str(self._run.checkpoints)
        best = latest_committed(folder).best
        return (best.step, str(best.path)) if best else (-1, "")


def step_name(state: RunState) -> str:
    """The unique name of the current attempt's step."""
    run = state.created.run if state.created else "run"
    return f"{run}-a{state.attempt:04d}"


def _run_id(state: RunState) -> str:
    return state.created.run_id if state.created else ""


def _grants(state: RunState, nodes: tuple[str, ...]) -> tuple[NodeGrant, ...]:
    return tuple(state.nodes[node].grant for node in nodes if node in state.nodes)
