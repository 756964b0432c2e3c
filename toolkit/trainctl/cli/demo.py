"""`trainctl demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainctl.cli.options import AsJson, DryRun

if TYPE_CHECKING:
    from trainctl.usecases.demo import DemoReport


def command(
    inject: Annotated[
        list[str] | None,
        typer.Option(
            "--inject", metavar="FAULT", help="Inject only this; may be given again; or none."
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="The folder to make for the two runs."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Steps to train.")
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """
    Train twice on this machine, undisturbed and under injected faults, and compare, bit for bit.

    Needs torch. Exits with 0 when every fault was dealt with as it should be.
    """
    import sys

    from trainctl.cli.output import print_json, print_line
    from trainctl.usecases.demo import demo, plan_of

    if dry_run:
        print_line(plan_of(tuple(inject or ()), run_dir, steps))
        return 0

    def tell(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    result = demo(inject=tuple(inject or ()), run_dir=run_dir, steps=steps, tell=tell)
    if as_json:
        print_json(result)
    else:
        print_line("")
        _show(result)
    return 0 if result.ok else 1


def _show(result: DemoReport) -> None:
    from trainctl.cli.output import print_line, print_table
    from trainctl.cli.report import show_attempts

    show_attempts(result.attempts)
    print_line("")
    print_table(
        (
            ("injected", "left"),
            ("attempt", "right"),
            ("expected", "left"),
            ("found", "left"),
            ("", "left"),
        ),
        [
            (one.fault, str(one.attempt), one.expected, one.outcome, one.wrong or "right")
            for one in result.faults
        ],
    )
    print_line("")
    for name, run in result.runs.items():
        print_line(
            f"{name}: {run.end} at step {run.steps}, loss {run.loss}, "
            f"parameters {run.parameters_sha256[:16]}, {run.seconds} s: {run.run_dir}"
        )
    print_line(f"loss identical: {'yes' if result.loss_identical else 'NO'}")
    print_line(f"parameters identical: {'yes' if result.parameters_identical else 'NO'}")
    for problem in result.problems:
        print_line(f"problem: {problem}")
    print_line("all as it should be" if result.ok else "NOT as it should be")
