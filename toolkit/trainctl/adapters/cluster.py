"""
The port behind which a cluster lies: allocate, launch, observe, tear down, release.

Everything is asked by a name that the caller chose and journaled first (a gang, a step), so that a
new supervisor can look up what the old one may have done. Every call is bounded by the adapter and
raises `ClusterError` when the cluster cannot be asked; *cannot ask* is no answer about a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from trainctl.model.events import NodeGrant


class NodeLife(StrEnum):
    """What the cluster says of a node."""

    UP = "up"
    #: The cluster is sure: the node is dead or was taken away.
    GONE = "gone"
    #: The cluster could not say. Never treated as dead, never as healthy.
    UNKNOWN = "unknown"


class StepLife(StrEnum):
    """What the cluster says of our step on a node."""

    RUNNING = "running"
    #: It was there and has ended.
    ENDED = "ended"
    #: The cluster has never heard of it.
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Step:
    """One agent a node: `argv` is started on each node of `nodes` under the unique name `name`."""

    name: str
    nodes: tuple[NodeGrant, ...]
    argv: tuple[str, ...]
    env: dict[str, str]
    #: A folder of the run directory; the agent's own output goes to `<node>/log/agent.log` in it.
    output: Path


@dataclass(frozen=True, slots=True)
class Span:
    """
    The allocated time of a node, by the cluster's own record, in UTC ms. `end_ms` 0: still held.
    """

    node: str
    start_ms: int
    end_ms: int


class Cluster(Protocol):
    """A place to run on. See docs/adapters.md for what each adapter does behind each call."""

    def allocate(self, name: str, count: int, exclude: Sequence[str]) -> tuple[NodeGrant, ...]:
        """
        Ask for `count` nodes under `name`; asked again under the same name it grants the same
        nodes.
        """

    def find(self, name: str) -> tuple[NodeGrant, ...]:
        """
        The nodes granted under `name`, whole or in part; empty when the name was never asked for.
        """

    def observe(self, nodes: Sequence[NodeGrant]) -> dict[str, NodeLife]:
        """
        The life of each node, by its name. Cheap: called several times a second on a local cluster.
        """

    def launch(self, step: Step) -> None:
        """
        Start the step on all its nodes; raises ClusterError, naming the nodes, where it could not.
        """

    def find_step(self, name: str, nodes: Sequence[NodeGrant]) -> dict[str, StepLife]:
        """Where the step `name` is, by node."""

    def tear_down(self, name: str, nodes: Sequence[NodeGrant], timeout_s: float) -> tuple[str, ...]:
        """
        Kill all processes of the step; the names of the nodes that could not be asked or still have
        some.
        """

    def release(self, nodes: Sequence[NodeGrant]) -> tuple[Span, ...]:
        """Give the nodes back, dead ones included, and say how long each was held. Idempotent."""
