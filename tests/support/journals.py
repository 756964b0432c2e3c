"""Run directories with a journal that a test wrote by hand, line by line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from trainctl.base.rundir import RunDir
from trainctl.model import events as ev
from trainctl.model.events import AnyEvent
from trainctl.model.evidence import Findings
from trainctl.model.outcome import DOMAIN_OF, Fingerprint, Outcome, Seat

BOOT = "b0071"
BEGAN_MS = 1_796_087_400_000


def lay_out(root: Path, *terms: Iterable[AnyEvent]) -> RunDir:
    """A run directory whose journal holds the events of each term, a second apart."""
    run = RunDir(root)
    for folder in (run.leases, run.events, run.requests, run.attempts):
        folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for term, events in enumerate(terms, start=1):
        lines = []
        for seq, event in enumerate(events, start=1):
            count += 1
            lines.append(line(event, term, seq, count))
        run.journal(term).write_bytes(b"".join(lines))
    return run


def line(event: AnyEvent, term: int, seq: int, count: int) -> bytes:
    """A line of the journal: the `count`-th in all."""
    stamped = msgspec.structs.replace(
        event,
        v=1,
        term=term,
        seq=seq,
        at_ms=BEGAN_MS + 1000 * count,
        boot=BOOT,
        mono_ms=1000 * count,
    )
    return msgspec.json.encode(stamped) + b"\n"


def created(**more: object) -> list[AnyEvent]:
    """The first term, as `submit` writes it."""
    fields = {"run": "demo", "run_id": "r1", "cluster": "local", "nodes": 2, "spares": 1, **more}
    return [
        ev.SupervisorStarted(host="h", pid=7, seat="cli"),
        ev.RunCreated(**fields),  # type: ignore[arg-type]
        ev.LeaseReleased(reason="submitted"),
    ]


def granted() -> list[AnyEvent]:
    """Two nodes and a spare."""
    nodes = tuple(ev.NodeGrant(f"node-{i}", f"127.0.0.{i}", BEGAN_MS) for i in (1, 2, 3))
    return [
        ev.GangRequested(name="demo-g001", nodes=3),
        ev.GangGranted(name="demo-g001", nodes=nodes),
    ]


def launched(attempt: int, resume_step: int | None = None) -> list[AnyEvent]:
    """An attempt begins."""
    return [
        ev.LaunchIntended(
            attempt=attempt,
            step_name=f"demo-a{attempt:04d}",
            seats=("node-1", "node-2"),
            resume_step=resume_step,
        ),
        ev.AttemptLaunched(attempt=attempt),
        ev.Loaded(attempt=attempt, step=resume_step or 0),
    ]


def ended(
    attempt: int,
    outcome: Outcome,
    *,
    step_from: int,
    step_to: int,
    first: tuple[Seat, ...] = (),
    sentences: tuple[str, ...] = (),
    **more: object,
) -> list[AnyEvent]:
    """An attempt ends, with all that the supervisor writes of it."""
    fields: dict[str, object] = {
        "fingerprint": Fingerprint(outcome, "RuntimeError", "train.py:step"),
        **more,
    }
    exited = ev.AttemptExited(
        attempt=attempt,
        outcome=outcome,
        domain=DOMAIN_OF[outcome],
        sentences=sentences,
        first=first,
        step_from=step_from,
        step_to=step_to,
        **fields,  # type: ignore[arg-type]
    )
    return [
        ev.Detected(attempt=attempt, cause="rank_failed"),
        ev.Gathered(attempt=attempt, findings=Findings(attempt, ("node-1", "node-2"))),
        ev.TeardownIntended(attempt=attempt),
        ev.TornDown(attempt=attempt),
        exited,
    ]


def commit(attempt: int, step: int) -> AnyEvent:
    """A checkpoint."""
    return ev.CheckpointCommitted(attempt=attempt, step=step, path=f"step-{step}.a{attempt:04d}")
