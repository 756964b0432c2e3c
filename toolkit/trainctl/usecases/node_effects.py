"""Effects on nodes: ask for them, check them, keep them out, give them back."""

from __future__ import annotations

from collections.abc import Iterator

from trainctl.adapters.cluster import NodeLife, Span
from trainctl.adapters.quarantine import Entry, QuarantineDir
from trainctl.model.errors import ClusterError
from trainctl.model.events import (
    AnyEvent,
    GangGranted,
    GangLost,
    NodeQuarantined,
    NodeReleased,
    NodeVerdict,
    PreflightFinished,
    ReplacementGranted,
)
from trainctl.policy import actions as do
from trainctl.policy.state import RunState
from trainctl.usecases.kit import Kit, grants, run_id


class NodeEffects:
    """What is done to nodes; each method yields the events of what happened."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._quarantine = QuarantineDir(kit.run.root / "quarantine", kit.files)

    def request_gang(self, name: str, count: int, exclude: tuple[str, ...]) -> Iterator[AnyEvent]:
        """Ask for the nodes; asked again under the same name, the cluster grants the same."""
        self._kit.still_mine()
        try:
            yield GangGranted(name=name, nodes=self._kit.cluster.allocate(name, count, exclude))
        except ClusterError as error:
            yield GangLost(name=name, reason=str(error))

    def request_replacement(self, name: str, exclude: tuple[str, ...]) -> Iterator[AnyEvent]:
        """Ask for one node more."""
        self._kit.still_mine()
        try:
            granted = self._kit.cluster.allocate(name, 1, exclude)
        except ClusterError as error:
            yield GangLost(name=name, reason=str(error))
            return
        for grant in granted:
            yield ReplacementGranted(name=name, node=grant)
        if not granted:
            yield GangLost(name=name, reason="the cluster has no such node")

    def preflight(self, action: do.Preflight, state: RunState) -> Iterator[AnyEvent]:
        """
        Ask the cluster whether the nodes live: what it cannot say is `unsure` and condemns none.
        """
        held = grants(state, action.nodes)
        try:
            lives = self._kit.cluster.observe(held)
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

    def quarantine(self, action: do.Quarantine, state: RunState) -> Iterator[AnyEvent]:
        """Write the entry, once."""
        self._kit.still_mine()
        self._quarantine.add(
            Entry(
                node=action.node,
                reason=action.reason,
                evidence=action.evidence,
                run=self._kit.config.name,
                run_id=run_id(state),
                attempt=state.attempt,
                at_ms=self._kit.clock.utc_ms(),
            )
        )
        yield NodeQuarantined(node=action.node, reason=action.reason)

    def release(self, nodes: tuple[str, ...], reason: str, state: RunState) -> Iterator[AnyEvent]:
        """Give the nodes back, with the cluster's own record of how long each was held."""
        self._kit.still_mine()
        held = grants(state, nodes)
        spans = {span.node: span for span in self._kit.cluster.release(held)}
        for grant in held:
            span = spans.get(grant.node) or Span(grant.node, grant.start_ms, 0)
            yield NodeReleased(
                node=grant.node, start_ms=span.start_ms, end_ms=span.end_ms, reason=reason
            )
        for node in nodes:
            if node not in state.nodes:  # given back before: what was intended is done
                yield NodeReleased(node=node, reason=reason)

    def give_back(self, name: str, state: RunState) -> Iterator[AnyEvent]:
        """Nodes that an ousted holder was granted under `name`, unless they are in the gang."""
        strangers = [g for g in self._kit.cluster.find(name) if g.node not in state.nodes]
        if not strangers:
            return
        self._kit.still_mine()
        for span in self._kit.cluster.release(strangers):
            yield NodeReleased(
                node=span.node,
                start_ms=span.start_ms,
                end_ms=span.end_ms,
                reason=f"asked for as {name} by a supervisor that had lost the run",
            )
