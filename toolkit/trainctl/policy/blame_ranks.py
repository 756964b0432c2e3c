"""Rules of blame about the ranks that failed: what the lead says, and what is left without one."""

from __future__ import annotations

from trainctl.model.outcome import Confidence, Outcome, Seat, Suspect, Verdict
from trainctl.policy import sentences
from trainctl.policy.seen import (
    Seen,
    lead_verdict,
    name_of,
    not_failed,
    place_of,
    precedence,
    verdict,
)
from trainctl.policy.signs import Sign, hardware_xid, is_oom_record, signal_of, speaks_of_network
from trainctl.policy.stop_lines import STOP_SIGNAL_MISROUTED, misrouted


def stop_signal_misrouted(seen: Seen) -> Verdict | None:
    """SIGUSR1 reached torchrun or a rank, which do not handle it: the stop went astray."""
    ranks = [(end, sign) for end, sign in seen.leads if sign is Sign.MISROUTED]
    note = next((note for note in seen.findings.notes if misrouted(note.text)), None)
    if not ranks and (note is None or seen.leads):
        return None
    signal = (signal_of(ranks[0][0]) if ranks else misrouted(note.text if note else "")) or 10
    name = sentences.signal_name(signal).removeprefix("SIG")
    whom = f"rank {ranks[0][0].rank}" if ranks else "torchrun"
    return verdict(
        seen,
        seen.stop or Outcome.KILLED_UNKNOWN,
        f"{STOP_SIGNAL_MISROUTED}: {name} reached {whom} and killed it; "
        f"use B:, as in --signal=B:{name}@300",
        exception=STOP_SIGNAL_MISROUTED,
    )


def hardware_spoke(seen: Seen) -> Verdict | None:
    """The driver says that a GPU or its memory is broken: the node of that rank is likely bad."""
    told: dict[str, str] = {}
    for end, sign in seen.leads:
        if sign is Sign.GPU_FAULT:
            told.setdefault(end.node, sentences.ended(end))
    for note in seen.findings.notes if seen.leads else ():
        xid = hardware_xid(note)
        if xid is not None and any(end.node == note.node for end, _ in seen.leads):
            told.setdefault(note.node, f"the kernel of {note.node} reports Xid {xid}")
    if not told:
        return None
    suspects = tuple(
        Suspect(node=node, confidence=Confidence.LIKELY, reason=why) for node, why in told.items()
    )
    return lead_verdict(seen, Outcome.GPU_FAULT, *told.values(), suspects=suspects)


def host_ran_out_of_memory(seen: Seen) -> Verdict | None:
    """A kernel's or the cluster's record of it, or the allocator's own words."""
    for end, sign in seen.leads:
        note = next((note for note in seen.findings.notes if is_oom_record(note, end)), None)
        if note and sign in (Sign.KILLED, Sign.HOST_OOM):
            return lead_verdict(
                seen,
                Outcome.HOST_OOM,
                f"the memory of {end.node} ran out: {sentences.cut(note.text)}",
            )
        if sign is Sign.HOST_OOM:
            return lead_verdict(seen, Outcome.HOST_OOM)
    return None


def storage_failed(seen: Seen) -> Verdict | None:
    """Reads or writes failed. Under many ranks at once that is the storage: nobody is named."""
    storage = [end for end, sign in seen.leads if sign is Sign.STORAGE]
    if not storage:
        return None
    hosts = {end.node for end in storage}
    if len(hosts) > 1 or len(seen.findings.seats) < 2:
        return lead_verdict(seen, Outcome.STORAGE_FAULT)
    node = storage[0].node
    return lead_verdict(
        seen, Outcome.STORAGE_FAULT, f"only {node} was hit: look at its own disks and mounts too"
    )


_BY_SIGN: dict[Sign, Outcome] = {
    Sign.GPU_OOM: Outcome.GPU_OOM,
    Sign.DATA: Outcome.DATA_ERROR,
    Sign.RAISED: Outcome.APP_ERROR,
    Sign.CRASHED: Outcome.APP_ERROR,
    Sign.EXITED: Outcome.APP_ERROR,
    Sign.COLLECTIVE: Outcome.APP_ERROR,
    Sign.ABORTED: Outcome.APP_ERROR,
    Sign.PORT_IN_USE: Outcome.APP_ERROR,
    Sign.MISROUTED: Outcome.KILLED_UNKNOWN,
    Sign.KILLED: Outcome.KILLED_UNKNOWN,
}


def rank_failed(seen: Seen) -> Verdict | None:
    """A rank failed on its own: its sign says what it was."""
    if not seen.leads or (outcome := _BY_SIGN.get(seen.leads[0][1])) is None:
        return None
    hint = "no out-of-memory record was found; nothing says who killed it"
    return lead_verdict(seen, outcome, *([hint] if outcome is Outcome.KILLED_UNKNOWN else []))


def waited_in_vain(seen: Seen) -> Verdict | None:
    """All that failed had waited in a collective until its limit: a hang, or too short a limit."""
    waiting = [end for end, sign in seen.failed if sign is Sign.TIMED_OUT]
    if not waiting:
        return None
    saving = [end.rank for end in seen.findings.exits if end.phase == "save"]
    if saving:
        return verdict(
            seen,
            Outcome.TIMEOUT_TOO_SHORT,
            f"a collective timed out while {sentences.ranks(saving)} saved a checkpoint: "
            "make the time-out of the process group longer than a save",
            exception="save",
        )
    missing = not_failed(seen)
    few = 0 < len(missing) <= max(1, len(waiting) // 2)
    lead = f"{sentences.ranks(waiting)} waited in a collective until its time-out"
    if not few:
        return verdict(seen, Outcome.HANG, lead, exception="collective time-out")
    suspects = tuple(
        Suspect(
            node=seat.node,
            rank=seat.rank,
            confidence=Confidence.GUESS,
            reason=f"rank {seat.rank} reported no time-out while the ranks that waited for it did",
        )
        for seat in missing
    )
    return verdict(
        seen,
        Outcome.HANG,
        lead,
        f"{sentences.ranks([seat.rank for seat in missing])} reported none: probably awaited",
        suspects=suspects,
        first=missing,
        exception="collective time-out",
    )


def never_met(seen: Seen) -> Verdict | None:
    """The ranks did not find each other and none made a step: the launch, nobody's node."""
    lost = [end for end, sign in seen.failed if sign is Sign.RENDEZVOUS]
    if not lost or seen.stepped:
        return None
    return verdict(
        seen,
        Outcome.LAUNCH_FAILED,
        f"the ranks did not find each other: {sentences.ended(lost[0])}",
        exception="rendezvous",
    )


def network_failed(seen: Seen) -> Verdict | None:
    """
    The network's own words, and no rank that failed by itself: the peer they name may be a
    victim.
    """
    told = [end for end, sign in seen.failed if sign is Sign.PEER_LOST and speaks_of_network(end)]
    if not told:
        return None
    return verdict(
        seen,
        Outcome.NETWORK_FAULT,
        f"the network failed under {sentences.ranks(told)}: {sentences.ended(told[0])}",
        "nobody is named: such errors name the peer, which is as often the victim",
        exception="network",
    )


def only_consequences(seen: Seen) -> Verdict | None:
    """Every end that was seen follows from one that was not: the earliest is all we have."""
    if not seen.failed:
        return None
    end, _ = min(seen.failed, key=precedence)
    outside = all(sign is Sign.STOPPED for _, sign in seen.failed)
    why = (
        "every rank that failed was told to end, and no stop was asked"
        if outside
        else "every failure that was seen follows from another that was not; the earliest is"
    )
    return verdict(
        seen,
        Outcome.UNKNOWN_END,
        f"{why}: {sentences.ended(end)}",
        first=() if outside else (Seat(rank=end.rank, node=end.node),),
        exception=name_of(end),
        place=place_of(end),
    )
