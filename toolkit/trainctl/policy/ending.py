"""The end of a run: who is paged, that no node stays held, and what to type next."""

from __future__ import annotations

from trainctl.model.events import RunFinished, RunStopped
from trainctl.model.outcome import EndKind
from trainctl.policy.actions import Action, Page, Record, Release
from trainctl.policy.limits import Limits
from trainctl.policy.naming import typed_name
from trainctl.policy.state import RunState

_QUIET = (EndKind.FINISHED, EndKind.OPERATOR)


def end(
    state: RunState,
    limits: Limits,
    kind: EndKind,
    reason: str,
    evidence: tuple[str, ...] = (),
) -> Action:
    """
    The next step towards the end `kind`: page, give all nodes back, then the run's last event.

    Whoever calls this must come to the same end again while nodes are given back: its reason may
    hang on nothing that the time or the leaving nodes change.
    """
    command = f"trainctl resume {typed_name(state, limits)}"
    key = f"end-{kind}-a{state.attempt:04d}"
    if kind not in _QUIET and key not in state.pages:
        lines = (f"{typed_name(state, limits)} stopped: {reason}", *evidence, f"next: {command}")
        return Page(key, "\n".join(lines))
    if state.nodes:
        return Release(state.held, f"the run ends: {kind}")
    if kind is EndKind.FINISHED:
        step = state.done_step if state.done_step is not None else state.committed
        return Record(RunFinished(step=step, result=state.done_result))
    return Record(RunStopped(end=kind, reason=reason, evidence=evidence, next_command=command))


def page_once(state: RunState, key: str, message: str) -> Action | None:
    """The page for the occasion `key`, unless it was sent."""
    return None if key in state.pages else Page(key, message)
