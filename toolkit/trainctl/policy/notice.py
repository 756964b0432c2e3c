"""
What the sight of a running attempt means: an observation in, events out. Pure.

The supervisor looks (cells, trainer.jsonl, the cluster) and hands over an `AttemptView`; what is
new compared with the state becomes events. What could not be read is simply not in the view:
absence of an observation is never an observation of absence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainctl.model.agent import (
    AgentPhase,
    AgentState,
    AnyTrainerLine,
    CommittedLine,
    DoneLine,
    LoadedLine,
    LossLine,
    SaveFailedLine,
)
from trainctl.model.events import (
    AnyEvent,
    CheckpointCommitted,
    CheckpointFailed,
    Detected,
    FirstStep,
    Loaded,
    Progressed,
    TrainingDone,
)
from trainctl.model.evidence import Evidence, Findings, RankExit
from trainctl.policy.state import Phase, RunState

PROGRESS_EVERY_MS = 30_000
"""
A journal line of progress at most so often: a run of weeks must not fill its journal with steps.
"""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """
    One look at a running attempt.

    - `agents`: the state cell of each node that could be read and was ever written.
    - `gone`: nodes of which the cluster is sure that they are dead.
    - `vanished`: nodes where the cluster says that our step ended, and the cell read after that
      still does not say so: the agent died without a word.
    - `lines`: lines of trainer.jsonl not seen before.
    - `age_ms`: time since the launch, by this supervisor's monotonic clock (since it adopted the
      attempt, if that was later).
    - `since_progress_ms`: time since the last `progressed` of this holder.
    - `launch_limit_ms`: an agent that never wrote its cell by then makes the launch a failed one.
    """

    agents: Mapping[str, AgentState]
    gone: frozenset[str] = frozenset()
    vanished: frozenset[str] = frozenset()
    lines: Sequence[AnyTrainerLine] = ()
    age_ms: int = 0
    since_progress_ms: int = 0
    launch_limit_ms: int = 300_000


def notice(state: RunState, view: AttemptView) -> tuple[AnyEvent, ...]:
    """The events that this look adds to what is known; empty while nothing runs."""
    if state.phase not in (Phase.RUNNING, Phase.DETECTED, Phase.GATHERED, Phase.TEARING_DOWN):
        return ()
    events = [*_trainer_facts(state.attempt, view.lines)]
    if state.phase is Phase.RUNNING:
        events += _progress(state, view)
        events += _first_sign_of_an_end(state, view)
    return tuple(events)


def lowest_step(state: RunState, view: AttemptView) -> int | None:
    """The step that all ranks have ended; None until every seat's every rank has beaten once."""
    steps: list[int] = []
    for node in state.seats:
        agent = view.agents.get(node)
        if agent is None or not agent.ranks:
            return None
        steps += [rank.step for rank in agent.ranks]
    lowest = min(steps, default=-1)
    return lowest if lowest >= 0 else None


def _trainer_facts(attempt: int, lines: Sequence[AnyTrainerLine]) -> Iterator[AnyEvent]:
    for line in lines:
        match line:
            case LoadedLine():
                yield Loaded(attempt=attempt, step=line.step, path=line.path)
            case CommittedLine():
                yield CheckpointCommitted(
                    attempt=attempt, step=line.step, path=line.path, took_ms=line.took_ms
                )
            case SaveFailedLine():
                yield CheckpointFailed(
                    attempt=attempt, step=line.step, reason=line.reason, rank=line.rank
                )
            case DoneLine():
                yield TrainingDone(attempt=attempt, step=line.step, result=line.result)
            case _:
                pass


def _progress(state: RunState, view: AttemptView) -> Iterator[AnyEvent]:
    step = lowest_step(state, view)
    if step is None or step <= state.step_from:
        return
    if state.stepped_in != state.attempt:
        yield FirstStep(attempt=state.attempt, step=step)
        return
    if step <= state.step:
        return
    ends = bool(_first_sign_of_an_end(state, view))
    if ends or view.since_progress_ms >= PROGRESS_EVERY_MS:
        losses = [line.loss for line in view.lines if isinstance(line, LossLine)]
        yield Progressed(attempt=state.attempt, step=step, loss=losses[-1] if losses else None)


def _first_sign_of_an_end(state: RunState, view: AttemptView) -> list[AnyEvent]:
    """At most one `detected`: the strongest sign in view."""
    signs = (
        _stop_now(state),
        _node_gone(state, view),
        _rank_failed(state, view),
        _refused(state, view),
        _agent_gone(state, view),
        _all_ended(state, view),
        _never_heard(state, view),
    )
    return [next(sign for sign in signs if sign is not None)] if any(signs) else []


def _stop_now(state: RunState) -> Detected | None:
    if not state.stop_now:
        return None
    return Detected(attempt=state.attempt, cause="stop_now", detail="the operator asked to end now")


def _node_gone(state: RunState, view: AttemptView) -> Detected | None:
    for node in state.seats:
        if node in view.gone:
            return Detected(attempt=state.attempt, cause="node_gone", node=node)
    return None


def _rank_failed(state: RunState, view: AttemptView) -> Detected | None:
    failed = [
        exit_
        for node in state.seats
        if (agent := view.agents.get(node)) is not None
        for exit_ in agent.exits
        if is_failure(exit_)
    ]
    if not failed:
        return None
    first = min(failed, key=lambda exit_: exit_.at_ms)
    return Detected(
        attempt=state.attempt,
        cause="rank_failed",
        node=first.node,
        rank=first.rank,
        detail=how_it_ended(first),
    )


def _refused(state: RunState, view: AttemptView) -> Detected | None:
    for node in state.seats:
        agent = view.agents.get(node)
        if agent is not None and agent.phase is AgentPhase.REFUSED:
            return Detected(
                attempt=state.attempt, cause="launch_failed", node=node, detail=agent.reason
            )
    return None


def _agent_gone(state: RunState, view: AttemptView) -> Detected | None:
    for node in state.seats:
        if node in view.vanished:
            return Detected(
                attempt=state.attempt,
                cause="agent_gone",
                node=node,
                detail="its agent ended without a word",
            )
    return None


def _all_ended(state: RunState, view: AttemptView) -> Detected | None:
    agents = [view.agents.get(node) for node in state.seats]
    ended = [agent for agent in agents if agent is not None and agent.phase is AgentPhase.ENDED]
    for agent in ended:
        if agent.launcher_code not in (0, None) and not agent.exits:
            return Detected(
                attempt=state.attempt,
                cause="launch_failed",
                node=agent.node,
                detail=f"the launcher ended with {agent.launcher_code} before any rank started",
            )
    if len(ended) == len(agents):
        return Detected(attempt=state.attempt, cause="all_exited")
    return None


def _never_heard(state: RunState, view: AttemptView) -> Detected | None:
    if view.age_ms < view.launch_limit_ms:
        return None
    for node in state.seats:
        if node not in view.agents:
            return Detected(
                attempt=state.attempt,
                cause="launch_failed",
                node=node,
                detail=f"its agent wrote nothing within {view.launch_limit_ms // 1000} s",
            )
    return None


def is_failure(exit_: RankExit) -> bool:
    """The rank ended otherwise than with 0, and not by our own kill."""
    return not exit_.by_us and (exit_.signal is not None or exit_.code not in (0, None))


def how_it_ended(exit_: RankExit) -> str:
    """`exit code 3` or `signal 9`."""
    return f"signal {exit_.signal}" if exit_.signal is not None else f"exit code {exit_.code}"


MAX_EXITS = 256
"""Of 16,384 ranks' ends so many go into the journal, the failures first."""


def findings_of(state: RunState, view: AttemptView, launch_error: str = "") -> Findings:
    """All that a view shows of an attempt that ends, in the shape that blame judges."""
    agents = [agent for node in state.seats if (agent := view.agents.get(node)) is not None]
    exits = [exit_ for agent in agents for exit_ in agent.exits]
    exits.sort(key=lambda exit_: (not is_failure(exit_), exit_.at_ms, exit_.rank))
    ranks_per_node = state.created.ranks_per_node if state.created else 1
    return Findings(
        attempt=state.attempt,
        seats=state.seats,
        ranks_per_node=ranks_per_node,
        stop=state.stop.value if state.stop else "",
        done_step=state.done_step,
        uses_train=any(rank.pid for agent in agents for rank in agent.ranks),
        exits=tuple(exits[:MAX_EXITS]),
        world=len(state.seats) * ranks_per_node,
        clean=sum(exit_.code == 0 for exit_ in exits),
        nodes_gone=tuple(node for node in state.seats if node in view.gone),
        silent=tuple(node for node in state.seats if node not in view.agents),
        launch_error=launch_error or _launch_error(agents),
        notes=tuple(_notes(state, view, agents)),
    )


def _launch_error(agents: Sequence[AgentState]) -> str:
    for agent in agents:
        if agent.phase is AgentPhase.REFUSED:
            return f"{agent.node}: {agent.reason}"
        if agent.launcher_code not in (0, None) and not agent.exits:
            return f"{agent.node}: the launcher ended with {agent.launcher_code}: {agent.reason}"
    return ""


def _notes(state: RunState, view: AttemptView, agents: Sequence[AgentState]) -> Iterator[Evidence]:
    for node in state.seats:
        if node in view.vanished and node not in view.gone:
            yield Evidence(
                source="cluster", node=node, text=f"the agent on {node} ended without a word"
            )
    for agent in agents:
        yield from agent.notes
