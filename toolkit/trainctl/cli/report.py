"""`trainctl report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainctl.cli.options import AsJson, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainctl.usecases.report import AttemptRow, Report


def command(run: Run = None, as_json: AsJson = False) -> int:
    """Say what happened: every attempt, its outcome and evidence, the steps kept and lost."""
    from trainctl.cli.output import print_json
    from trainctl.cli.runs import find_run
    from trainctl.usecases.report import report_of

    report = report_of(find_run(run))
    if as_json:
        print_json(report)
    else:
        show(report)
    return 0


def show(report: Report) -> None:
    """The report as text: a table, the reasons, the sums, the ending."""
    from trainctl.cli.output import print_line

    print_line(f"{report.run} on {report.cluster or '?'}: {report.run_dir}")
    print_line("")
    show_attempts(report.attempts)
    _show_sums(report)
    for warning in report.warnings:
        print_line(f"warning: {warning}")
    print_line("")
    print_line(report.ending)


def show_attempts(rows: Sequence[AttemptRow]) -> None:
    """One line an attempt, then why each one ended."""
    from trainctl.cli.output import duration, print_line, print_table

    if not rows:
        print_line("no attempt yet")
        return
    print_table(
        (
            ("attempt", "right"),
            ("outcome", "left"),
            ("steps", "left"),
            ("kept", "right"),
            ("lost", "right"),
            ("took", "right"),
            ("first at", "left"),
        ),
        [
            (
                str(row.attempt),
                row.outcome,
                f"{row.step_from} to {row.step_to}",
                str(row.kept),
                str(row.lost),
                duration(row.took_ms) if row.ended_ms else "-",
                _where(row),
            )
            for row in rows
        ],
    )
    told = [row for row in rows if row.sentences]
    if told:
        print_line("")
    for row in told:
        print_line(f"attempt {row.attempt}: {row.sentences[0]}")
        for sentence in row.sentences[1:]:
            print_line(f"    {sentence}")
        for suspect in row.suspects:
            print_line(f"    suspect: {suspect.node} ({suspect.confidence}): {suspect.reason}")


def _where(row: AttemptRow) -> str:
    if not row.node:
        return "-"
    return row.node if row.rank is None else f"rank {row.rank} on {row.node}"


def _show_sums(report: Report) -> None:
    from trainctl.cli.output import counted, print_line

    sums = report.totals
    pending = f", {sums.steps_pending} pending" if sums.steps_pending else ""
    print_line("")
    print_line(
        f"{counted(sums.attempts, 'attempt')}: {counted(sums.failures, 'failure')}, "
        f"{counted(sums.stops, 'planned stop')}; {counted(sums.takeovers, 'takeover')}"
    )
    print_line(
        f"{counted(sums.steps_done, 'step')} done: {sums.steps_kept} kept, {sums.steps_lost} lost"
        f"{pending}; {counted(sums.checkpoints, 'checkpoint')} committed, "
        f"{sums.failed_saves} failed"
    )
    print_line(f"quarantined: {', '.join(report.quarantined) or 'nobody'}")
    if report.void_events or report.unknown_events:
        print_line(
            f"{report.void_events} lines of ousted supervisors and {report.unknown_events} of "
            "unknown kinds were left out"
        )
