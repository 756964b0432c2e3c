"""Lines by which a cluster says that it ended a step itself, and stop signals that went astray."""

from __future__ import annotations

import re

from trainctl.model.outcome import Outcome

STOP_SIGNAL_MISROUTED = "stop_signal_misrouted"
"""The cause named in verdicts and fingerprints."""

_LINES: tuple[tuple[Outcome, re.Pattern[str]], ...] = tuple(
    (outcome, re.compile(pattern, re.IGNORECASE))
    for outcome, pattern in (
        (Outcome.STOP_TIME_LIMIT, r"(CANCELLED|STEPD TERMINATED).*DUE TO TIME LIMIT"),
        (Outcome.STOP_PREEMPTED, r"(CANCELLED|STEPD TERMINATED).*DUE TO (PREEMPTION|JOB REQUEUE)"),
        (Outcome.NODE_LOST, r"(CANCELLED|STEPD TERMINATED).*DUE TO NODE FAILURE"),
    )
)

_MISROUTED = re.compile(
    r"SIGUSR([12])|\bsignal[ :=]+(10|12)\b|\b(?:rc|code|exitcode)\s*[:=]?\s*(-10|-12|138|140)\b"
    r"|\b0:(10|12)\b",
    re.IGNORECASE,
)


def stop_in(text: str) -> Outcome | None:
    """The outcome that slurmstepd's own line tells of; None for a bare CANCELLED."""
    return next((outcome for outcome, line in _LINES if line.search(text)), None)


def misrouted(text: str) -> int | None:
    """The number of SIGUSR1 or SIGUSR2 where `text` says that it killed a process, else None."""
    if (found := _MISROUTED.search(text)) is None:
        return None
    if found[1]:
        return 10 if found[1] == "1" else 12
    number = abs(int(found[2] or found[3] or found[4]))
    return number if number in (10, 12) else number - 128
