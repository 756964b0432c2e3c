"""`trainctl resume`."""

from __future__ import annotations

from trainctl.cli.options import Detach, DryRun, Run, Seat


def command(
    run: Run = None, seat: Seat = "here", detach: Detach = False, dry_run: DryRun = False
) -> int:
    """
    Take an ended run up again at its last committed checkpoint; failures are counted anew.

    A run that has not ended and has lost its supervisor is supervised again.
    """
    from trainctl.cli.runs import find_run
    from trainctl.usecases.submit import resume

    return resume(find_run(run), seat=seat, detach=detach, dry_run=dry_run)
