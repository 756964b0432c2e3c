"""`trainctl supervise`."""

from __future__ import annotations

from trainctl.cli.options import DryRun, Run, Seat


def command(run: Run = None, seat: Seat = "here", dry_run: DryRun = False) -> int:
    """
    Own a run until it ends, or stand by for whoever owns it. Any number may be started: one acts.

    Exits with the run's own code: 0, or 10 to 13.
    """
    from trainctl.cli.runs import find_run
    from trainctl.usecases.supervisor import supervise

    return supervise(find_run(run), seat=seat, dry_run=dry_run)
