"""The one line that a run ends with: what ended it, why, the evidence, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from trainctl.model.outcome import EndKind
from trainctl.policy.state import RunState

_WHAT: dict[EndKind, str] = {
    EndKind.FINISHED: "finished",
    EndKind.OPERATOR: "stopped by the operator",
    EndKind.CRASH_LOOP: "stopped: crash loop",
    EndKind.BUDGET: "stopped: budget exhausted",
    EndKind.NEEDS_HUMAN: "stopped: needs a human",
}


def ending_line(state: RunState, root: Path) -> str:
    """The line for a folded journal; for a run that has not ended, where it stands."""
    return ending_text(
        state.end,
        root,
        reason=state.end_reason,
        evidence=state.end_evidence or _last_words(state),
        step=state.done_step if state.done_step is not None else state.committed,
        phase=state.phase,
    )


def ending_text(
    end: EndKind | None,
    root: Path,
    *,
    reason: str = "",
    evidence: Sequence[str] = (),
    step: int = -1,
    phase: str = "",
) -> str:
    """
    The line itself. `step` is the last step that is kept: the done one, else the committed one; -1
    for none.
    """
    run = shlex.quote(str(root))
    if end is None:
        return f"{root}: not ended ({phase}) · next: trainctl status {run}"
    at = f" at step {step}" if end is EndKind.FINISHED and step >= 0 else ""
    what, why = _WHAT[end], _line(reason)
    if end is not EndKind.FINISHED and why.startswith(what):
        what, why = why, ""
    parts = [f"{root}: {what}{at}"]
    if end is not EndKind.FINISHED:
        if why:
            parts.append(f"why: {why}")
        if evidence:
            more = f" (and {len(evidence) - 1} more)" if len(evidence) > 1 else ""
            parts.append(f"evidence: {_line(evidence[0])}{more}")
        parts.append(f"committed: step {step}" if step >= 0 else "committed: nothing")
    parts.append(f"next: {next_command(end, run)}")
    return " · ".join(parts)


def next_command(end: EndKind, run: str) -> str:
    """What to type after such an end; `run` as it is typed."""
    match end:
        case EndKind.FINISHED:
            return f"trainctl report {run}"
        case EndKind.OPERATOR:
            return f"trainctl resume {run}"
        case _:
            return f"trainctl events {run} --why, then trainctl resume {run}"


def _last_words(state: RunState) -> tuple[str, ...]:
    """What the last failure's verdict says, for an end whose event names no evidence."""
    if state.end in (None, EndKind.FINISHED, EndKind.OPERATOR) or state.last_exit is None:
        return ()
    return state.last_exit.sentences[:1]


def _line(text: str) -> str:
    return " ".join(text.split())
