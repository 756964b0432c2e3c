"""`trainctl stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.options import AsJson, DryRun, Run

COULD_NOT_TELL = 21


def command(
    run: Run = None,
    now: Annotated[
        bool, typer.Option("--now", help="End at once: what is not committed is lost.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long for the run to end."),
    ] = 0.0,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """
    Ask a run to save and stop. Returns at once unless --wait is given.

    A run that has ended already is no error: it is said, and the exit code is 0. With --wait: 0
    when the run has ended in time, 21 when it has not.
    """
    from trainctl.cli.output import print_json, print_line
    from trainctl.cli.runs import find_run
    from trainctl.usecases.endings import ending_line
    from trainctl.usecases.requests import ask_stop, wait_for_stop

    found = find_run(run)
    asked = ask_stop(found, now=now, dry_run=dry_run)
    if as_json:
        print_json(asked)
    else:
        print_line(asked.text)
    if not wait or asked.ended or dry_run:
        return 0
    state = wait_for_stop(found, wait)
    if not as_json:
        print_line(ending_line(state, found.root))
    return 0 if state.end is not None else COULD_NOT_TELL
