"""`trainctl logs`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from trainctl.cli.options import AsJson, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainctl.base.rundir import RunDir
    from trainctl.usecases.logs import LogFile


def command(
    run: Run = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", help="Of this attempt; else the latest.")
    ] = None,
    node: Annotated[str, typer.Option("--node", metavar="NODE", help="Only of this node.")] = "",
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", help="Only of this rank.")
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="The last N lines of each.")
    ] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")
    ] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Only name the files.")] = False,
    as_json: AsJson = False,
) -> int:
    """
    Show what the ranks of an attempt printed: of the rank that failed first, else of rank 0.

    --node shows the agent's and the launcher's logs of that node too. --json names the files.
    """
    from trainctl.cli.output import print_json, print_line, print_table, utc
    from trainctl.cli.runs import find_run
    from trainctl.usecases.logs import all_logs_of, logs_of

    found = find_run(run)
    everything = show_list and not node and rank is None
    logs = (
        all_logs_of(found, attempt)
        if everything
        else logs_of(found, attempt=attempt, node=node, rank=rank)
    )
    if as_json:
        print_json(logs)
        return 0
    if show_list:
        print_table(
            (("attempt", "right"), ("bytes", "right"), ("changed", "left"), ("file", "left")),
            [
                (str(f.attempt), str(f.bytes), utc(f.at_ms), _below(f.path, found))
                for f in logs.files
            ],
        )
        return 0
    if logs.why:
        print_line(f"attempt {logs.attempt}: {logs.why}")
    _tail(logs.files, lines)
    if follow:
        _follow(found, logs.files)
    return 0


def _below(path: str, run: RunDir) -> str:
    return os.path.relpath(path, run.root)


def _tail(files: Sequence[LogFile], lines: int) -> None:
    from pathlib import Path

    from trainctl.cli.output import print_line
    from trainctl.usecases.logs import last_lines

    for file in files:
        print_line(f"==> {file.path} <==")
        for line in last_lines(Path(file.path), lines):
            print_line(line)


def _follow(run: RunDir, files: Sequence[LogFile]) -> None:
    import sys

    from trainctl.base.clock import SystemClock
    from trainctl.cli.output import print_line
    from trainctl.usecases.logs import follow

    shown = ""
    for file, text in follow(files, SystemClock()):
        if shown != file.path:
            print_line(f"==> {file.path} <==")
            shown = file.path
        sys.stdout.write(text)
        sys.stdout.flush()
