"""`trainctl status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainctl.cli.options import AsJson, Run

if TYPE_CHECKING:
    from trainctl.usecases.status import Holder, Status


def command(run: Run = None, as_json: AsJson = False) -> int:
    """Say where a run stands: phase, attempt, steps, who owns it, its nodes, failures and end."""
    from trainctl.cli.output import print_json
    from trainctl.cli.runs import find_run
    from trainctl.usecases.status import status_of

    status = status_of(find_run(run))
    if as_json:
        print_json(status)
    else:
        _show(status)
    return 0


def _show(status: Status) -> None:
    from trainctl.cli.output import print_line, print_table, utc

    rows = [
        ("run", f"{status.run} on {status.cluster or '?'}: {status.run_dir}"),
        ("phase", status.phase + (f", {status.stop} asked" if status.stop else "")),
        ("attempt", _attempt(status)),
        ("committed", _step(status.committed)),
        ("owner", _holder(status.holder)),
        ("failures", _failures(status)),
    ]
    if status.quarantined:
        rows.append(("quarantine", ", ".join(status.quarantined)))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print_line(f"{name:{width}}  {text}")
    if status.nodes:
        print_line("")
        print_table(
            (("node", "left"), ("role", "left"), ("seat", "right"), ("address", "left")),
            [
                (one.node, one.role, "-" if one.seat is None else str(one.seat), one.address)
                for one in status.nodes
            ],
        )
    if status.failures or status.last_events:
        print_line("")
    for failure in status.failures:
        print_line(f"attempt {failure.attempt} failed: {failure.outcome}: {failure.why}")
    for event in status.last_events:
        print_line(f"{utc(event.at_ms)}  {event.text}")
    for warning in status.warnings:
        print_line(f"warning: {warning}")
    if status.ending:
        print_line("")
        print_line(status.ending)


def _attempt(status: Status) -> str:
    if not status.attempt:
        return "none yet"
    return f"{status.attempt}, at {_step(status.step)}"


def _step(step: int) -> str:
    return f"step {step}" if step >= 0 else "no step yet"


def _failures(status: Status) -> str:
    from trainctl.cli.output import counted

    stops = f", {counted(status.stops_total, 'planned stop')}" if status.stops_total else ""
    return f"{status.failures_total}, {status.failures_since_progress} since the last commit{stops}"


def _holder(holder: Holder | None) -> str:
    if holder is None:
        return "nobody yet"
    who = f"pid {holder.pid} on {holder.host}, term {holder.term}"
    if holder.life == "released":
        return f"nobody; last was {who}"
    return {"dead": f"{who}, which is dead", "alive": who}.get(
        holder.life, f"{who} (on another machine)"
    )
