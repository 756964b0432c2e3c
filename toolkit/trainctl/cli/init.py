"""`trainctl init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli.options import DryRun


def command(
    path: Annotated[
        Path, typer.Argument(help="The file to write, or a folder to write run.toml in.")
    ] = Path("run.toml"),
    dry_run: DryRun = False,
) -> int:
    """Write a commented run.toml, every key in it with its meaning and default; overwrites none."""
    from trainctl.cli.output import print_line
    from trainctl.usecases.init import init

    written = init(path, dry_run=dry_run)
    if dry_run:
        print_line(written.text.rstrip())
        return 0
    print_line(f"wrote {written.path}: set `command`, then: trainctl submit {written.typed}")
    return 0
