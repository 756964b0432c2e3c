"""Where a run stands now, read from its journal and its lease without disturbing either."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from trainctl.adapters.journal import read_journal
from trainctl.adapters.lease import LeaseView, read_lease
from trainctl.base.clock import boot_id
from trainctl.base.processes import stat_of
from trainctl.base.rundir import RunDir
from trainctl.model.errors import CellError
from trainctl.model.events import AnyEvent
from trainctl.policy.evolve import fold
from trainctl.policy.state import Failure, RunState
from trainctl.usecases.endings import ending_line
from trainctl.usecases.narrate import line_of

LAST_EVENTS = 5
LAST_FAILURES = 5


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """
    Who owns the run. `life` is `alive` or `dead` where the holder is a process of this machine,
    `released` where it gave the run up in order, and `unknown` on another machine.
    """

    term: int
    host: str
    pid: int
    seat: str
    life: str


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is held for the run; `seat` is its node rank in the attempt, None beside it."""

    node: str
    role: str
    address: str = ""
    seat: int | None = None


class FailureStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A failure since the last progress."""

    attempt: int
    at_ms: int
    outcome: str
    domain: str
    node: str = ""
    rank: int | None = None
    why: str = ""


class LastEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A notable event; `at_ms` is UTC."""

    at_ms: int
    kind: str
    text: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """
    What `trainctl status` says. `step` and `committed` count ended steps, -1 for none; `stop` is
    the stop that was asked for and not yet obeyed.
    """

    run: str
    run_id: str
    run_dir: str
    cluster: str
    phase: str
    attempt: int
    step: int
    committed: int
    committed_path: str
    done_step: int | None
    holder: Holder | None
    nodes: tuple[NodeStatus, ...]
    failures: tuple[FailureStatus, ...]
    failures_since_progress: int
    failures_total: int
    stops_total: int
    quarantined: tuple[str, ...]
    stop: str
    last_events: tuple[LastEvent, ...]
    end: str
    end_reason: str
    #: What ended the run and what to type next; "" while it has not ended.
    ending: str
    warnings: tuple[str, ...]


def status_of(run: RunDir) -> Status:
    """The status of the run at `run`, as far as its journal and its lease can be read."""
    journal = read_journal(run)
    state = fold(journal.events)
    created = state.created
    holder, warnings = _holder(run)
    return Status(
        run=created.run if created else run.root.name,
        run_id=created.run_id if created else "",
        run_dir=str(run.root),
        cluster=created.cluster if created else "",
        phase=state.phase.value,
        attempt=state.attempt,
        step=state.step,
        committed=state.committed,
        committed_path=state.committed_path,
        done_step=state.done_step,
        holder=holder,
        nodes=_nodes(state),
        failures=tuple(_failure(one) for one in state.failures[-LAST_FAILURES:]),
        failures_since_progress=len(state.failures),
        failures_total=state.failures_total,
        stops_total=state.stops_total,
        quarantined=tuple(sorted(state.quarantined)),
        stop=state.stop.value if state.stop and not state.end else "",
        last_events=_last(journal.events),
        end=state.end.value if state.end else "",
        end_reason=state.end_reason,
        ending=ending_line(state, run.root) if state.end else "",
        warnings=(*journal.warnings, *warnings),
    )


def _holder(run: RunDir) -> tuple[Holder | None, tuple[str, ...]]:
    """The holder, and a warning where the lease cannot be read."""
    try:
        view = read_lease(run)
    except CellError as error:
        return None, (f"lease: {error}",)
    return (None if view is None else _holder_of(view)), ()


def _holder_of(view: LeaseView) -> Holder:
    info = view.info
    if view.released:
        life = "released"
    elif info.host != os.uname().nodename or info.boot != boot_id():
        life = "unknown"
    else:
        stat = stat_of(info.pid)
        life = "dead" if stat is None or stat.is_dead else "alive"
    return Holder(term=view.term, host=info.host, pid=info.pid, seat=info.seat, life=life)


def _nodes(state: RunState) -> tuple[NodeStatus, ...]:
    seats = {node: seat for seat, node in enumerate(state.seats) if node}
    return tuple(
        NodeStatus(
            node=name, role=held.role.value, address=held.grant.address, seat=seats.get(name)
        )
        for name, held in sorted(state.nodes.items())
    )


def _failure(failure: Failure) -> FailureStatus:
    exited = failure.exited
    first = exited.first[0] if exited.first else None
    return FailureStatus(
        attempt=failure.attempt,
        at_ms=failure.at_ms,
        outcome=exited.outcome.value,
        domain=exited.domain.value,
        node=first.node if first else "",
        rank=first.rank if first else None,
        why=exited.sentences[0] if exited.sentences else "",
    )


def _last(events: Sequence[AnyEvent]) -> tuple[LastEvent, ...]:
    told: list[LastEvent] = []
    for event in reversed(events):
        if len(told) == LAST_EVENTS:
            break
        if (text := line_of(event)) is not None:
            told.append(LastEvent(at_ms=event.at_ms, kind=event.kind, text=text))
    return tuple(reversed(told))
