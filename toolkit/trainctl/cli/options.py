"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN",
        help="Run directory, or a name below runs/; else TRAINCTL_RUN_DIR, else this folder.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")]
Seat = Annotated[
    str, typer.Option(metavar="SEAT", help="Where the supervisor runs: here (this terminal).")
]
Detach = Annotated[bool, typer.Option("--detach", help="Leave the supervisor behind and return.")]
