"""`trainctl submit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli.options import Detach, DryRun, Seat


def command(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="run.toml",
            help="The run's configuration; run.toml of this folder where none is named.",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. size.nodes=4."),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="The run directory to make; else runs/NAME."),
    ] = None,
    seat: Seat = "here",
    detach: Detach = False,
    dry_run: DryRun = False,
) -> int:
    """
    Start a run: check the configuration, make the run directory, supervise until the run has ended.

    What follows a bare `--` is the program to run and its arguments, in place of `command`:
    trainctl submit -- train.py --lr 3e-4
    """
    from trainctl.model.errors import UsageError
    from trainctl.usecases.submit import submit

    words = ctx.obj if isinstance(ctx.obj, tuple) else ()
    if config is None and not words:
        config = Path("run.toml")
        if not config.exists():
            raise UsageError(
                "no run.toml here: `trainctl init` writes one, "
                "`trainctl submit -- train.py ARGS` needs none"
            )
    return submit(
        config,
        overrides=tuple(overrides or ()),
        command=words,
        run_dir=run_dir,
        seat=seat,
        detach=detach,
        dry_run=dry_run,
    )
