"""What effects work with: one term's hold on one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainctl.adapters.cluster import Cluster
from trainctl.adapters.pager import Pager, PagerError
from trainctl.base.clock import Clock
from trainctl.base.config import RunConfig
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model.events import AnyEvent, NodeGrant, Paged, PageFailed
from trainctl.policy.state import RunState


@dataclass(frozen=True, slots=True)
class Kit:
    """
    `still_mine` raises LeaseLost where the run is not ours; asked before what has no way back.
    """

    run: RunDir
    config: RunConfig
    cluster: Cluster
    pager: Pager
    term: int
    still_mine: Callable[[], None]
    clock: Clock
    files: Files


def run_id(state: RunState) -> str:
    """The run's id; "" in a journal that lost its first line."""
    return state.created.run_id if state.created else ""


def grants(state: RunState, nodes: tuple[str, ...]) -> tuple[NodeGrant, ...]:
    """The grants of these nodes, in this order; a node that is not held is left out."""
    return tuple(state.nodes[node].grant for node in nodes if node in state.nodes)


def page(kit: Kit, key: str, message: str) -> Iterator[AnyEvent]:
    """Tell whoever is on call; a page that fails is an event and stops nothing."""
    try:
        kit.pager.page(message)
    except PagerError as error:
        yield PageFailed(key=key, error=str(error))
    else:
        yield Paged(key=key, message=message)
