"""Rules of blame about an attempt as a whole: its end, its stop, its nodes and its launch."""

from __future__ import annotations

from trainctl.model.evidence import Evidence, Role
from trainctl.model.outcome import Confidence, Outcome, Suspect, Verdict
from trainctl.policy import sentences
from trainctl.policy.seen import PLANNED_AND_TAKEN, Seen, seats_on, verdict
from trainctl.policy.signs import Sign
from trainctl.policy.stop_lines import stop_in


def done_is_done(seen: Seen) -> Verdict | None:
    """The done marker counts when no rank failed short of the last step."""
    done = seen.findings.done_step
    if done is None or any(end.step < done - 1 for end, _ in seen.own):
        return None
    if not seen.failed and not seen.gone:
        return verdict(seen, Outcome.FINISHED, f"the trainer reached its own end at step {done}")
    return verdict(
        seen,
        Outcome.FINISHED,
        f"the trainer reached its own end at step {done}",
        "note: after that, while the processes ended, "
        + sentences.afterwards(seen.failed, seen.gone),
    )


def node_is_gone(seen: Seen) -> Verdict | None:
    """The cluster is sure that a node is dead: whatever the other ranks say follows from it."""
    if not seen.gone or seen.stop in PLANNED_AND_TAKEN:
        return None
    suspects = tuple(
        Suspect(node=node, confidence=Confidence.CERTAIN, reason="the cluster says it is dead")
        for node in seen.gone
    )
    return verdict(
        seen,
        Outcome.NODE_LOST,
        f"the cluster says that {sentences.nodes(seen.gone)} died under the attempt",
        suspects=suspects,
        first=seats_on(seen, seen.gone),
    )


def launch_failed(seen: Seen) -> Verdict | None:
    """No rank was ever started."""
    if not (why := seen.findings.launch_error):
        return None
    said = (why, *(note.text for note in seen.findings.notes))
    if port := next((text for text in said if _port_taken(text)), None):
        return _port_verdict(seen, port)
    return verdict(seen, Outcome.LAUNCH_FAILED, f"the launch failed: {sentences.cut(why)}")


def port_in_use(seen: Seen) -> Verdict | None:
    """The rendezvous port was taken: a later RendezvousClosedError only follows from it."""
    if seen.stepped:
        return None
    for end, sign in seen.failed:
        if sign is Sign.PORT_IN_USE:
            return _port_verdict(seen, sentences.ended(end))
    if seen.own:
        return None
    taken = (note.text for note in seen.findings.notes if _port_taken(note.text))
    return next((_port_verdict(seen, text) for text in taken), None)


def stop_was_asked(seen: Seen) -> Verdict | None:
    """A stop was asked and no rank failed on its own: planned, whoever was killed at its end."""
    if seen.stop is None or seen.own:
        return None
    if not seen.failed and seen.clean:
        how = "the ranks ended in order"
    elif not seen.failed:
        how = "no rank had ended by itself; what is left is ended by force"
    elif all(sign is Sign.STOPPED for _, sign in seen.failed):
        how = "some ranks did not end in time and were ended by force"
    else:
        how = "some ranks lost each other while they ended"
    return verdict(seen, seen.stop, f"a stop was asked ({seen.stop}); {how}")


def cluster_ended_it(seen: Seen) -> Verdict | None:
    """Nothing failed on its own, and the cluster's own line says that it ended the step."""
    for note in seen.findings.notes:
        if (outcome := stop_in(note.text)) is not None:
            return verdict(seen, outcome, f"the cluster ended it: {sentences.cut(note.text)}")
    return None


def agent_vanished(seen: Seen) -> Verdict | None:
    """
    An agent or a launcher was killed, and its guard killed the ranks with it: others lost them.
    """
    notes = seen.findings.notes
    killed = tuple(note.node for note in notes if _is_launcher_killed(note))
    gone = tuple(note.node for note in notes if _is_vanished(note))
    what = "the agent ended without a word" if gone else "the launcher was killed"
    gone = gone or killed
    if not gone:
        return None
    return verdict(
        seen,
        Outcome.KILLED_UNKNOWN,
        f"{what} on {sentences.nodes(gone)}, and its ranks ended with it",
        "the node is up; nothing says who killed it",
        first=seats_on(seen, gone),
        exception=what,
    )


def node_is_silent(seen: Seen) -> Verdict | None:
    """
    An agent never wrote while others did: that node. None wrote: the launch, nobody's node. Where
    ranks took steps every agent had written, so that its cell only cannot be read now.
    """
    if not seen.silent or any(end.step >= 0 for end in seen.findings.exits):
        return None
    seats = len(seen.findings.seats)
    if len(seen.silent) == seats or len(seen.silent) > max(2, seats // 5):
        return verdict(
            seen,
            Outcome.LAUNCH_FAILED,
            f"the agents of {sentences.nodes(seen.silent)} never reported: "
            "so many at once have one common cause, the launch or the storage",
        )
    suspects = tuple(
        Suspect(
            node=node, confidence=Confidence.LIKELY, reason="its agent never reported, others did"
        )
        for node in seen.silent
    )
    return verdict(
        seen,
        Outcome.NODE_LOST,
        f"the agent of {sentences.nodes(seen.silent)} never reported while others did",
        suspects=suspects,
        first=seats_on(seen, seen.silent),
    )


def nothing_failed(seen: Seen) -> Verdict | None:
    """Exit 0 everywhere, and no done marker: the end only of a trainer that has none to write."""
    if not seen.findings.world or seen.clean < seen.findings.world:
        return None
    if not seen.findings.uses_train:
        return verdict(
            seen,
            Outcome.FINISHED,
            "every rank exited with 0; this trainer writes no done marker, so that is its end",
        )
    return verdict(
        seen,
        Outcome.UNKNOWN_END,
        "every rank exited with 0, but no stop was asked and no done marker was written: "
        "call trainctl.train.done() at the end of the training",
        exception="no done marker",
    )


def nothing_started(seen: Seen) -> Verdict | None:
    """No rank was ever seen, and something says why."""
    if seen.signs or seen.clean:
        return None
    note = next(
        (one for one in seen.findings.notes if one.role is Role.LEAD and one.text.strip()), None
    )
    if note is None:
        return None
    where = f" on {note.node}" if note.node else ""
    return verdict(
        seen, Outcome.LAUNCH_FAILED, f"no rank was seen to start{where}: {sentences.cut(note.text)}"
    )


def _is_launcher_killed(note: Evidence) -> bool:
    return note.role is Role.LEAD and "the launcher was killed by signal 9" in note.text


def _is_vanished(note: Evidence) -> bool:
    return note.source == "cluster" and note.text.endswith("ended without a word")


def _port_taken(text: str) -> bool:
    lowered = text.lower()
    return any(mark in lowered for mark in ("eaddrinuse", "errno: 98", "address already in use"))


def _port_verdict(seen: Seen, text: str) -> Verdict:
    return verdict(
        seen,
        Outcome.LAUNCH_FAILED,
        f"port_in_use: the rendezvous port was taken: {sentences.cut(text)}",
        exception="port_in_use",
    )
