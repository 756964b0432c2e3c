"""`trainctl events`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainctl.cli.options import AsJson, Run

if TYPE_CHECKING:
    from trainctl.base.rundir import RunDir
    from trainctl.usecases.events import Choice, EventLine


def command(
    run: Run = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only this kind; may be given again."),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", help="Only of this attempt.")
    ] = None,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=0, help="Only the last N; 0: all.")
    ] = 0,
    why: Annotated[
        bool, typer.Option("--why", help="Only how attempts ended, with the reasons.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new ones until the run has ended.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """
    Show the journal of a run, oldest first, times in UTC.

    With --follow, --json prints one object a line.
    """
    from trainctl.cli.output import print_json, print_line
    from trainctl.cli.runs import find_run
    from trainctl.usecases.events import choose, events_of

    found = find_run(run)
    choice = choose(kind or (), attempt, last, why=why)
    if follow:
        return _follow(found, choice, as_json=as_json, why=why)
    events = events_of(found, choice)
    if as_json:
        print_json(events)
        return 0
    if events.left_out:
        print_line(f"({events.left_out} earlier ones)")
    for line in events.events:
        _show(line, why=why)
    if not events.events:
        print_line("no such events")
    for warning in events.warnings:
        print_line(f"warning: {warning}")
    return 0


def _follow(run: RunDir, choice: Choice, *, as_json: bool, why: bool) -> int:
    import msgspec

    from trainctl.base.clock import SystemClock
    from trainctl.cli.output import print_line
    from trainctl.usecases.events import follow

    for line in follow(run, choice, SystemClock()):
        if as_json:
            print_line(msgspec.json.encode(line).decode())
        else:
            _show(line, why=why)
    return 0


def _show(line: EventLine, *, why: bool) -> None:
    from trainctl.cli.output import print_line, utc

    print_line(f"{utc(line.at_ms)}  {line.kind:<21} {line.text}")
    if why:
        for sentence in line.why:
            if not line.text.endswith(sentence):
                print_line(f"    {sentence}")
