"""
What the supervisor does to the world: one bounded method an action, each yielding what happened.

Everything here runs in a thread of its own, so that neither the lease nor the look at the run waits
for it. Before a step that cannot be taken back it asks the lease once more; what may still slip
through (a holder stopped between that question and the step) is caught by the fences: the claimed
attempt number, and the control cell that an agent reads before it starts a rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainctl.model.events import (
    AnyEvent,
    GangRequested,
    LaunchIntended,
    ReplacementIntended,
)
from trainctl.policy import actions as do
from trainctl.policy.state import RunState
from trainctl.usecases.attempt_effects import AttemptEffects
from trainctl.usecases.kit import Kit, page
from trainctl.usecases.node_effects import NodeEffects


class Effects:
    """Performs the actions of `policy.actions` for one term of one run."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.attempt = AttemptEffects(kit)
        self._nodes = NodeEffects(kit)
        self.files = kit.files

    def perform(self, action: do.Action, state: RunState) -> Iterator[AnyEvent]:
        """Do it; yields the events of what happened. Bounded; raises only on a defect of ours."""
        match action:
            case do.Launch():
                return self.attempt.launch(action, state)
            case do.Gather():
                return self.attempt.gather(state)
            case do.TearDown():
                return self.attempt.tear_down(state)
            case do.Recover():
                return self._recover(action.intent, state)
            case do.Page():
                return page(self._kit, action.key, action.message)
            case _:
                return self._on_nodes(action, state)

    def _on_nodes(self, action: do.Action, state: RunState) -> Iterator[AnyEvent]:
        match action:
            case do.RequestGang():
                return self._nodes.request_gang(action.name, action.nodes, action.exclude)
            case do.RequestReplacement():
                return self._nodes.request_replacement(action.name, action.exclude)
            case do.Preflight():
                return self._nodes.preflight(action, state)
            case do.Quarantine():
                return self._nodes.quarantine(action, state)
            case do.Release():
                return self._nodes.release(action.nodes, action.reason, state)
            case _:
                raise AssertionError(f"{action} is not an effect")

    def _recover(self, intent: AnyEvent, state: RunState) -> Iterator[AnyEvent]:
        """A launch is looked up; all else is asked for by name or is the same done twice."""
        if isinstance(intent, LaunchIntended):
            return self.attempt.recover_launch(intent, state)
        action = do.action_of(intent)
        if action is None:
            raise AssertionError(f"{intent.kind} is not an intent")
        return self.perform(action, state)

    def settle(self, intent: AnyEvent, state: RunState) -> Iterator[AnyEvent]:
        """
        Undo what an ousted holder may have begun after it lost the run: its attempt number is made
        void, nodes that it asked for are given back. A quarantine entry or a release stands.
        """
        match intent:
            case LaunchIntended():
                self.attempt.void_foreign(intent, state)
            case GangRequested() | ReplacementIntended():
                yield from self._nodes.give_back(intent.name, state)
            case _:
                return
