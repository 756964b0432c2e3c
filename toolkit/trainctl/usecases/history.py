"""What a journal says of a run, attempt by attempt, gathered in one pass and judged by nobody."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trainctl.model import events as ev
from trainctl.model.events import AnyEvent
from trainctl.model.outcome import EndKind


@dataclass(slots=True)
class AttemptFacts:
    """What the journal says of one attempt, as it is read."""

    number: int
    launched: ev.LaunchIntended | None = None
    exited: ev.AttemptExited | None = None
    loaded: int | None = None
    highest: int = -1
    committed: int = -1
    #: The highest commit of the run when this attempt was first heard of.
    committed_before: int = -1
    voided: bool = False
    adopted: int = 0
    first_ms: int = 0


@dataclass(slots=True)
class RunFacts:
    """What the journal says of the run; `terms`, `released` and `lost` are of its supervisors."""

    created: ev.RunCreated | None = None
    attempts: dict[int, AttemptFacts] = field(default_factory=dict)
    terms: dict[int, ev.SupervisorStarted] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    quarantined: set[str] = field(default_factory=set)
    committed: int = -1
    checkpoints: int = 0
    failed_saves: int = 0
    done_step: int | None = None
    result: dict[str, str | int | float] = field(default_factory=dict)
    end: EndKind | None = None
    end_reason: str = ""
    end_evidence: tuple[str, ...] = ()


def gather(events: Iterable[AnyEvent]) -> RunFacts:
    """Read the events in order; what was only decided in observe-only mode is no fact."""
    facts = RunFacts()
    for event in events:
        if event.would:
            continue
        number = getattr(event, "attempt", 0)
        if number > 0 and not isinstance(event, _NOT_OF_ONE):
            _note_attempt(facts, number, event)
        _note_run(facts, event)
    return facts


_NOT_OF_ONE = ev.PreflightFinished | ev.BackoffStarted | ev.StopRequested
"""Events that carry the number of an attempt that need not have begun."""


def _note_attempt(facts: RunFacts, number: int, event: AnyEvent) -> None:
    one = facts.attempts.get(number)
    if one is None:
        one = AttemptFacts(number, committed_before=facts.committed, first_ms=event.at_ms)
        facts.attempts[number] = one
    match event:
        case ev.LaunchIntended():
            one.launched = one.launched or event
        case ev.AttemptExited():
            one.exited = one.exited or event
        case ev.AttemptVoided():
            one.voided = True
        case ev.AttemptAdopted():
            one.adopted += 1
        case ev.Loaded():
            one.loaded = event.step
        case ev.FirstStep() | ev.Progressed() | ev.TrainingDone():
            one.highest = max(one.highest, event.step)
        case ev.Gathered():
            # The last beats of the ranks that ended: later than the last `progressed`.
            steps = [end.step for end in event.findings.exits if end.step >= 0]
            one.highest = max(one.highest, min(steps, default=-1))
        case ev.CheckpointCommitted():
            one.committed = max(one.committed, event.step)
        case _:
            pass


def _note_run(facts: RunFacts, event: AnyEvent) -> None:
    match event:
        case ev.CheckpointCommitted():
            facts.committed = max(facts.committed, event.step)
            facts.checkpoints += 1
        case ev.CheckpointFailed():
            facts.failed_saves += 1
        case ev.TrainingDone():
            facts.done_step, facts.result = event.step, event.result
        case ev.NodeQuarantined():
            facts.quarantined.add(event.node)
        case ev.RunCreated():
            facts.created = facts.created or event
        case ev.SupervisorStarted():
            facts.terms.setdefault(event.term, event)
        case ev.SupervisorLost():
            facts.lost.add(event.lost_term)
        case ev.LeaseReleased():
            facts.released.add(event.term)
        case ev.RunFinished() | ev.RunStopped() | ev.RunResumed():
            _note_end(facts, event)
        case _:
            pass


def _note_end(facts: RunFacts, event: ev.RunFinished | ev.RunStopped | ev.RunResumed) -> None:
    facts.end, facts.end_reason, facts.end_evidence = None, "", ()
    if isinstance(event, ev.RunFinished):
        facts.end = EndKind.FINISHED
        facts.done_step = event.step if facts.done_step is None else facts.done_step
        facts.result = facts.result or event.result
    elif isinstance(event, ev.RunStopped):
        facts.end, facts.end_reason, facts.end_evidence = event.end, event.reason, event.evidence
