"""
What happened in a run: every attempt, its outcome and evidence, and the steps that were kept and
lost.

All of it is read from the journal, whatever its state: an attempt without an exit is shown as
running or as `unknown_end`, and for every attempt steps done = kept + lost + pending.

A step is *kept* when a later attempt began at or beyond it, or when it is committed or the training
is done; it is *pending* while its attempt still runs and has not committed it; else it is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from trainctl.adapters.journal import Journal, read_journal
from trainctl.base.rundir import RunDir
from trainctl.model import events as ev
from trainctl.model.outcome import (
    END_EXIT_CODES,
    Domain,
    EndKind,
    Fingerprint,
    Outcome,
    Seat,
    Suspect,
)
from trainctl.usecases.endings import ending_text
from trainctl.usecases.history import AttemptFacts, RunFacts, gather

RUNNING = "running"
VOID = "void"


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """
    One attempt. `outcome` is an outcome's value, or `running`, or `void` (never started); `node`
    and `rank` are where the failure first appeared ("" and None where nobody is named). Steps
    count ended steps; `step_from` is where it began. Times are UTC in ms, 0 where unknown.
    """

    attempt: int
    outcome: str
    domain: str
    node: str = ""
    rank: int | None = None
    step_from: int = 0
    step_to: int = 0
    kept: int = 0
    lost: int = 0
    pending: int = 0
    committed: int = -1
    started_ms: int = 0
    ended_ms: int = 0
    took_ms: int = 0
    seats: tuple[str, ...] = ()
    adopted: int = 0
    sentences: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    first: tuple[Seat, ...] = ()
    fingerprint: Fingerprint | None = None


class TermRow(msgspec.Struct, frozen=True, kw_only=True):
    """One supervisor's time. `ended` is `released`, `lost`, or "" for the last one."""

    term: int
    host: str = ""
    pid: int = 0
    seat: str = ""
    started_ms: int = 0
    ended: str = ""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the attempts; steps done = kept + lost + pending."""

    attempts: int = 0
    failures: int = 0
    stops: int = 0
    steps_done: int = 0
    steps_kept: int = 0
    steps_lost: int = 0
    steps_pending: int = 0
    takeovers: int = 0
    checkpoints: int = 0
    failed_saves: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `trainctl report` says; `ending` is the line that a run ends with."""

    run: str
    run_id: str
    run_dir: str
    cluster: str
    end: str
    end_reason: str
    end_evidence: tuple[str, ...]
    exit_code: int | None
    ending: str
    committed: int
    done_step: int | None
    result: dict[str, str | int | float]
    attempts: tuple[AttemptRow, ...]
    totals: Totals
    quarantined: tuple[str, ...]
    supervisors: tuple[TermRow, ...]
    #: Lines of ousted supervisors, which changed nothing.
    void_events: int
    #: Lines of kinds that this version does not know.
    unknown_events: int
    warnings: tuple[str, ...]


def report_of(run: RunDir) -> Report:
    """The report on the run at `run`, as far as its journal tells."""
    return report_from(read_journal(run), run)


def report_from(journal: Journal, run: RunDir) -> Report:
    """The report that a journal gives."""
    facts = gather(journal.events)
    rows = _rows(facts)
    created = facts.created
    kept_step = facts.done_step if facts.end is EndKind.FINISHED else facts.committed
    return Report(
        run=created.run if created else run.root.name,
        run_id=created.run_id if created else "",
        run_dir=str(run.root),
        cluster=created.cluster if created else "",
        end=facts.end.value if facts.end else "",
        end_reason=facts.end_reason,
        end_evidence=facts.end_evidence,
        exit_code=END_EXIT_CODES[facts.end] if facts.end else None,
        ending=ending_text(
            facts.end,
            run.root,
            reason=facts.end_reason,
            evidence=facts.end_evidence,
            step=facts.committed if kept_step is None else kept_step,
            phase=RUNNING if any(row.outcome == RUNNING for row in rows) else "between attempts",
        ),
        committed=facts.committed,
        done_step=facts.done_step,
        result=facts.result,
        attempts=rows,
        totals=_totals(facts, rows),
        quarantined=tuple(sorted(facts.quarantined)),
        supervisors=_supervisors(facts),
        void_events=len(journal.void),
        unknown_events=len(journal.unknown),
        warnings=tuple(journal.warnings),
    )


# --- rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Span:
    """The steps of one attempt, and up to where they were kept."""

    begin: int
    end: int
    bound: int = 0

    @property
    def kept(self) -> int:
        """Steps of this attempt that were built upon."""
        return max(0, min(self.end, self.bound) - self.begin)


def _rows(facts: RunFacts) -> tuple[AttemptRow, ...]:
    ordered = [facts.attempts[number] for number in sorted(facts.attempts)]
    last = ordered[-1].number if ordered else 0
    spans = _spans(facts, ordered)
    return tuple(
        _row(facts, one, span, is_last=one.number == last)
        for one, span in zip(ordered, spans, strict=True)
    )


def _spans(facts: RunFacts, ordered: Sequence[AttemptFacts]) -> list[_Span]:
    """From the last attempt back: what an attempt did is kept up to where all later ones began."""
    bound = max(facts.committed, 0)
    if facts.end is EndKind.FINISHED and facts.done_step is not None:
        bound = max(bound, facts.done_step)
    spans: list[_Span] = []
    for one in reversed(ordered):
        span = _Span(*_steps(one))
        spans.append(replace(span, bound=bound))
        if not one.voided:
            bound = min(bound, span.begin)
    return spans[::-1]


def _steps(one: AttemptFacts) -> tuple[int, int]:
    """
    Where the attempt began, and its highest step that is known; nothing done where it is void.
    """
    if one.loaded is not None:
        begin = one.loaded
    elif one.launched is not None:
        begin = -1 if one.launched.resume_step is None else one.launched.resume_step
    elif one.exited is not None and one.exited.step_from >= 0:
        begin = one.exited.step_from
    else:
        begin = one.committed_before
    begin = max(begin, 0)
    said = one.exited.step_to if one.exited is not None else -1
    end = begin if one.voided else max(begin, said, one.highest, one.committed)
    return begin, end


def _row(facts: RunFacts, one: AttemptFacts, span: _Span, *, is_last: bool) -> AttemptRow:
    done = span.end - span.begin
    outcome, domain = _outcome(facts, one, is_last=is_last)
    left = done - span.kept
    pending = left if outcome == RUNNING else 0
    exited, launched = one.exited, one.launched
    first = exited.first if exited else ()
    suspects = exited.suspects if exited else ()
    node = first[0].node if first else suspects[0].node if suspects else ""
    rank = first[0].rank if first else suspects[0].rank if suspects else None
    return AttemptRow(
        attempt=one.number,
        outcome=outcome,
        domain=domain,
        node=node,
        rank=rank,
        step_from=span.begin,
        step_to=span.end,
        kept=span.kept,
        lost=left - pending,
        pending=pending,
        committed=one.committed,
        started_ms=launched.at_ms if launched else one.first_ms,
        ended_ms=exited.at_ms if exited else 0,
        took_ms=_took_ms(launched, exited),
        seats=launched.seats if launched else (),
        adopted=one.adopted,
        sentences=exited.sentences if exited else _no_exit(outcome),
        suspects=suspects,
        first=first,
        fingerprint=exited.fingerprint if exited else None,
    )


def _outcome(facts: RunFacts, one: AttemptFacts, *, is_last: bool) -> tuple[str, str]:
    if one.exited is not None:
        return one.exited.outcome.value, one.exited.domain.value
    if one.voided:
        return VOID, ""
    if is_last and facts.end is None:
        return RUNNING, ""
    return Outcome.UNKNOWN_END.value, Domain.UNKNOWN.value


def _no_exit(outcome: str) -> tuple[str, ...]:
    return () if outcome in (RUNNING, VOID) else ("the journal holds no exit of this attempt",)


def _took_ms(launched: ev.LaunchIntended | None, exited: ev.AttemptExited | None) -> int:
    """By the monotonic clock where both were written in one boot: a clock step changes nothing."""
    if launched is None or exited is None:
        return 0
    if launched.boot and launched.boot == exited.boot:
        return max(0, exited.mono_ms - launched.mono_ms)
    return max(0, exited.at_ms - launched.at_ms)


def _totals(facts: RunFacts, rows: Sequence[AttemptRow]) -> Totals:
    begun = [row for row in rows if row.outcome != VOID]
    planned = sum(row.domain == Domain.PLANNED for row in begun)
    finished = sum(row.outcome == Outcome.FINISHED for row in begun)
    running = sum(row.outcome == RUNNING for row in begun)
    kept, lost, pending = (
        sum(getattr(row, name) for row in rows) for name in ("kept", "lost", "pending")
    )
    return Totals(
        attempts=len(begun),
        failures=len(begun) - planned - running,
        stops=planned - finished,
        steps_done=kept + lost + pending,
        steps_kept=kept,
        steps_lost=lost,
        steps_pending=pending,
        takeovers=len(facts.lost),
        checkpoints=facts.checkpoints,
        failed_saves=facts.failed_saves,
    )


def _supervisors(facts: RunFacts) -> tuple[TermRow, ...]:
    def ended(term: int) -> str:
        if term in facts.released:
            return "released"
        return "lost" if term in facts.lost else ""

    return tuple(
        TermRow(
            term=term,
            host=started.host,
            pid=started.pid,
            seat=started.seat,
            started_ms=started.at_ms,
            ended=ended(term),
        )
        for term, started in sorted(facts.terms.items())
    )
