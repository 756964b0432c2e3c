"""One line a notable event, for whoever looks at a supervisor's output; pure text."""

from __future__ import annotations

from trainctl.model import events as ev
from trainctl.model.events import AnyEvent


def line_of(event: AnyEvent) -> str | None:
    """What happened, in a line; None for events that a reader need not see."""
    text = _text(event)
    if text is None:
        return None
    return f"would: {text}" if event.would else text


def _text(event: AnyEvent) -> str | None:  # noqa: C901, PLR0912 — one case an event
    match event:
        case ev.SupervisorStarted():
            return f"term {event.term}: supervisor {event.pid} on {event.host} owns the run"
        case ev.SupervisorLost():
            return f"the supervisor of term {event.lost_term} was lost: {event.why}"
        case ev.GangGranted():
            return f"nodes granted: {', '.join(grant.node for grant in event.nodes)}"
        case ev.GangLost():
            return f"no nodes: {event.reason}"
        case ev.LaunchIntended():
            start = f"step {event.resume_step}" if event.resume_step is not None else "the start"
            return f"attempt {event.attempt}: launching on {', '.join(event.seats)} from {start}"
        case ev.AttemptLaunched() if event.refused:
            start = f"step {event.resume_step}" if event.resume else "the start"
            return f"attempt {event.attempt}: starts from {start}; not taken: {event.refused[0]}"
        case ev.AttemptAdopted():
            return f"attempt {event.attempt}: found alive, adopted"
        case ev.AttemptVoided():
            return f"attempt {event.attempt}: void: {event.reason}"
        case ev.FirstStep():
            return f"attempt {event.attempt}: first step is {event.step}"
        case ev.Progressed():
            return f"attempt {event.attempt}: step {event.step}"
        case ev.CheckpointCommitted():
            return f"attempt {event.attempt}: checkpoint of step {event.step} committed"
        case ev.CheckpointFailed():
            return f"attempt {event.attempt}: save at step {event.step} failed: {event.reason}"
        case ev.StopRequested():
            when = "now" if event.now else "in order"
            return f"stop requested ({event.reason}, {when}) by {event.by}"
        case ev.Detected():
            at = f" on {event.node}" if event.node else ""
            return f"attempt {event.attempt}: {event.cause}{at} {event.detail}".rstrip()
        case ev.AttemptExited():
            why = event.sentences[0] if event.sentences else ""
            return f"attempt {event.attempt}: ended as {event.outcome}: {why}"
        case ev.NodeQuarantined():
            return f"{event.node} is in quarantine: {event.reason}"
        case ev.NodeReleased():
            return f"{event.node} given back"
        case ev.NodeTraded():
            return f"{event.node} trades places with {event.with_node}: {event.reason}"
        case ev.SpareUsed():
            return f"spare {event.node} takes the seat of {event.instead_of}"
        case ev.BackoffStarted():
            return f"waiting {event.wait_ms / 1000:.1f} s: {event.reason}"
        case ev.Paged():
            return f"paged: {event.message}"
        case ev.PageFailed():
            return f"the page could not be sent: {event.error}"
        case ev.RunFinished():
            return f"the run has finished at step {event.step}"
        case ev.RunStopped():
            return f"the run has stopped: {event.reason}"
        case ev.RunResumed():
            return f"resumed by {event.by or 'somebody'}"
        case _:
            return None
