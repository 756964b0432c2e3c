"""
Who or what ended an attempt: facts in, verdict out.

    seen facts ──▶ rules, in order; the first that has an answer ──▶ Verdict

The rules go from what is certain (the cluster says a node is dead) to what is weak (only consequences
were seen). One idea carries most of them: a rank that lost its peer, was told to end, or waited in vain
is a *consequence*; the *lead* is the rank whose end is none, and time only breaks ties, by whole seconds,
since error files are no finer and hosts' clocks differ.

A verdict names a suspect only in the domains hardware, platform and unknown, and only `certain` and
`likely` ones can lead to a quarantine. A crash in native code (SIGSEGV, SIGABRT, …) is `app_error`: far more
often the program than the machine, and a bad machine shows itself by failing again after a trade.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from trainctl.model.evidence import Evidence, Findings, RankExit, Role
from trainctl.model.outcome import (
    DOMAIN_OF,
    STOPS,
    Confidence,
    Domain,
    Fingerprint,
    Outcome,
    Seat,
    Suspect,
    Verdict,
)
from trainctl.policy import wording
from trainctl.policy.signs import (
    CONSEQUENCES,
    SOFT,
    STRENGTH,
    Sign,
    exception_of,
    hardware_xid,
    is_oom_record,
    sign_of,
    signal_of,
)
from trainctl.policy.stop_lines import STOP_SIGNAL_MISROUTED, misrouted, stop_in

PLANNED_AND_TAKEN = frozenset(
    {
        Outcome.STOP_TIME_LIMIT,
        Outcome.STOP_PREEMPTED,
        Outcome.STOP_DRAIN,
        Outcome.STOP_MAINTENANCE,
    }
)
"""Stops at whose end the cluster itself kills ranks and takes nodes away: neither is a failure then."""

TOGETHER_MS = 1_000
"""SIGKILLs further apart than this are not one event: torchrun kills its other ranks later."""

_NEVER_MS = 1 << 62


@dataclass(frozen=True)
class Seen:
    """The findings with each rank's sign, read once; `left` in the order of ranks."""

    findings: Findings

    @cached_property
    def signs(self) -> tuple[tuple[RankExit, Sign], ...]:
        """Every rank's end that was reported, once a rank."""
        ends = {end.rank: end for end in reversed(self.findings.exits)}
        return tuple((ends[rank], sign_of(ends[rank])) for rank in sorted(ends))

    @cached_property
    def stop(self) -> Outcome | None:
        """The stop that had been asked of this attempt."""
        return next((stop for stop in STOPS if stop.value == self.findings.stop), None)

    @cached_property
    def failed(self) -> tuple[tuple[RankExit, Sign], ...]:
        """Ranks that were seen to end otherwise than with 0."""
        quiet = (Sign.CLEAN, Sign.UNSEEN)
        return tuple((end, sign) for end, sign in self.signs if sign not in quiet)

    @cached_property
    def own(self) -> tuple[tuple[RankExit, Sign], ...]:
        """Ends that follow from no other: soft ones, and ranks that spoke after our kill, only alone."""
        taken = self.stop in PLANNED_AND_TAKEN
        ends = [
            (end, sign)
            for end, sign in self.failed
            if sign not in CONSEQUENCES and not (taken and sign is Sign.KILLED)
        ]
        hard = [(end, sign) for end, sign in ends if sign not in SOFT] or ends
        return tuple([(end, sign) for end, sign in hard if not end.by_us] or hard)

    @cached_property
    def leads(self) -> tuple[tuple[RankExit, Sign], ...]:
        """The earliest of `own`, by whole seconds, and all that failed in the same way."""
        if not self.own:
            return ()
        first, sign = min(self.own, key=_precedence)
        like = _alike(first, sign)
        return tuple(
            (end, other)
            for end, other in self.failed
            if other is sign and _alike(end, other) == like and _together(first, end, sign)
        )

    @cached_property
    def clean(self) -> int:
        """How many ranks exited with 0."""
        return max(self.findings.clean, sum(sign is Sign.CLEAN for _, sign in self.signs))

    @cached_property
    def stepped(self) -> bool:
        """Whether any rank reached a step: after that the launch is not to blame."""
        return any(end.step >= 1 for end in self.findings.exits)

    @cached_property
    def gone(self) -> tuple[str, ...]:
        """Nodes of this attempt that the cluster says are dead."""
        return tuple(node for node in self.findings.seats if node in self.findings.nodes_gone)

    @cached_property
    def silent(self) -> tuple[str, ...]:
        """Nodes of this attempt whose agent never wrote."""
        return tuple(node for node in self.findings.seats if node in self.findings.silent)


def judge(findings: Findings) -> Verdict:
    """The verdict on an attempt that ended: the answer of the first rule that has one."""
    seen = Seen(findings)
    verdict = next(filter(None, (rule(seen) for rule in RULES)), None)
    return verdict or _verdict(
        seen,
        Outcome.UNKNOWN_END,
        "the attempt ended and nothing says how: no rank was seen to fail",
    )


def evidence(findings: Findings) -> tuple[Evidence, ...]:
    """Every rank's failure, lead or consequence, then the notes: what the journal keeps beside the verdict."""
    seen = Seen(findings)
    leads = {end.rank for end, _ in seen.leads}
    ends = tuple(
        Evidence(
            source="exit" if end.error is None else "error_file",
            text=wording.ended(end),
            role=Role.LEAD if end.rank in leads else Role.CONSEQUENCE,
            node=end.node,
            rank=end.rank,
        )
        for end, _ in seen.failed
    )
    return (*sorted(ends, key=lambda one: one.role is not Role.LEAD), *findings.notes)


# --- rules: each answers or passes ------------------------------------------------------------


def done_is_done(seen: Seen) -> Verdict | None:
    """The done marker counts when no rank failed short of the last step."""
    done = seen.findings.done_step
    if done is None or any(end.step < done - 1 for end, _ in seen.own):
        return None
    if not seen.failed and not seen.gone:
        return _verdict(seen, Outcome.FINISHED, f"the trainer reached its own end at step {done}")
    return _verdict(
        seen,
        Outcome.FINISHED,
        f"the trainer reached its own end at step {done}",
        "note: after that, while the processes ended, "
        + wording.afterwards(seen.failed, seen.gone),
    )


def node_is_gone(seen: Seen) -> Verdict | None:
    """The cluster is sure that a node is dead: whatever the other ranks say follows from it."""
    if not seen.gone or seen.stop in PLANNED_AND_TAKEN:
        return None
    suspects = tuple(
        Suspect(node=node, confidence=Confidence.CERTAIN, reason="the cluster says it is dead")
        for node in seen.gone
    )
    return _verdict(
        seen,
        Outcome.NODE_LOST,
        f"the cluster says that {wording.nodes(seen.gone)} died under the attempt",
        suspects=suspects,
        first=_seats_on(seen, seen.gone),
    )


def launch_failed(seen: Seen) -> Verdict | None:
    """No rank was ever started."""
    if not (why := seen.findings.launch_error):
        return None
    if _port_taken(why):
        return _port_verdict(seen, why)
    return _verdict(seen, Outcome.LAUNCH_FAILED, f"the launch failed: {wording.cut(why)}")


def port_in_use(seen: Seen) -> Verdict | None:
    """The rendezvous port was taken: a later RendezvousClosedError only follows from it."""
    if seen.stepped:
        return None
    for end, sign in seen.failed:
        if sign is Sign.PORT_IN_USE:
            return _port_verdict(seen, wording.ended(end))
    if seen.own:
        return None
    taken = (note.text for note in seen.findings.notes if _port_taken(note.text))
    return next((_port_verdict(seen, text) for text in taken), None)


def stop_was_asked(seen: Seen) -> Verdict | None:
    """A stop was asked and no rank failed on its own: planned, whoever was killed at its end."""
    if seen.stop is None or seen.own:
        return None
    if not seen.failed:
        how = "every rank that was seen ended in order"
    elif all(sign is Sign.STOPPED for _, sign in seen.failed):
        how = "some ranks did not end in time and were ended by force"
    else:
        how = "some ranks lost each other while they ended"
    return _verdict(seen, seen.stop, f"a stop was asked ({seen.stop}); {how}")


def stop_signal_misrouted(seen: Seen) -> Verdict | None:
    """SIGUSR1 reached torchrun or a rank, which do not handle it: a stop sent to the wrong process."""
    ranks = [(end, sign) for end, sign in seen.leads if sign is Sign.MISROUTED]
    note = next((note for note in seen.findings.notes if misrouted(note.text)), None)
    if not ranks and (note is None or seen.leads):
        return None
    signal = (signal_of(ranks[0][0]) if ranks else misrouted(note.text if note else "")) or 10
    name = wording.signal_name(signal).removeprefix("SIG")
    whom = f"rank {ranks[0][0].rank}" if ranks else "torchrun"
    return _verdict(
        seen,
        seen.stop or Outcome.KILLED_UNKNOWN,
        f"{STOP_SIGNAL_MISROUTED}: {name} reached {whom}, which it kills; use B: in --signal=B:{name}@SECONDS",
        exception=STOP_SIGNAL_MISROUTED,
    )


def hardware_spoke(seen: Seen) -> Verdict | None:
    """The driver says that a GPU or its memory is broken: the node of that rank is likely bad."""
    told: dict[str, str] = {}
    for end, sign in seen.leads:
        if sign is Sign.GPU_FAULT:
            told.setdefault(end.node, wording.ended(end))
    for note in seen.findings.notes if seen.leads else ():
        xid = hardware_xid(note)
        if xid is not None and any(end.node == note.node for end, _ in seen.leads):
            told.setdefault(note.node, f"the kernel of {note.node} reports Xid {xid}")
    if not told:
        return None
    suspects = tuple(
        Suspect(node=node, confidence=Confidence.LIKELY, reason=why) for node, why in told.items()
    )
    return _lead_verdict(seen, Outcome.GPU_FAULT, *told.values(), suspects=suspects)


def host_ran_out_of_memory(seen: Seen) -> Verdict | None:
    """A kernel's or the cluster's record of it, or the allocator's own words."""
    for end, sign in seen.leads:
        note = next((note for note in seen.findings.notes if is_oom_record(note, end)), None)
        if note and sign in (Sign.KILLED, Sign.HOST_OOM):
            return _lead_verdict(
                seen,
                Outcome.HOST_OOM,
                f"the host of rank {end.rank}, {end.node}, ran out of memory: {wording.cut(note.text)}",
            )
        if sign is Sign.HOST_OOM:
            return _lead_verdict(seen, Outcome.HOST_OOM)
    return None


def storage_failed(seen: Seen) -> Verdict | None:
    """Reads or writes failed. Under many ranks at once that is the storage: nobody is named."""
    storage = [end for end, sign in seen.leads if sign is Sign.STORAGE]
    if not storage:
        return None
    hosts = {end.node for end in storage}
    if len(hosts) > 1 or len(seen.findings.seats) < 2:
        return _lead_verdict(seen, Outcome.STORAGE_FAULT)
    node = storage[0].node
    return _lead_verdict(
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
    return _lead_verdict(seen, outcome, *([hint] if outcome is Outcome.KILLED_UNKNOWN else []))


def cluster_ended_it(seen: Seen) -> Verdict | None:
    """Nothing failed on its own, and the cluster's own line says that it ended the step."""
    for note in seen.findings.notes:
        if (outcome := stop_in(note.text)) is not None:
            return _verdict(seen, outcome, f"the cluster ended it: {wording.cut(note.text)}")
    return None


def node_is_silent(seen: Seen) -> Verdict | None:
    """An agent never wrote while others did: that node. None wrote: the launch, nobody's node."""
    if not seen.silent:
        return None
    seats = len(seen.findings.seats)
    if len(seen.silent) == seats or len(seen.silent) > max(2, seats // 5):
        return _verdict(
            seen,
            Outcome.LAUNCH_FAILED,
            f"the agents of {wording.nodes(seen.silent)} never reported: "
            "so many at once have one common cause, the launch or the storage",
        )
    suspects = tuple(
        Suspect(
            node=node, confidence=Confidence.LIKELY, reason="its agent never reported, others did"
        )
        for node in seen.silent
    )
    return _verdict(
        seen,
        Outcome.NODE_LOST,
        f"the agent of {wording.nodes(seen.silent)} never reported while others did",
        suspects=suspects,
        first=_seats_on(seen, seen.silent),
    )


def waited_in_vain(seen: Seen) -> Verdict | None:
    """All that failed had waited for somebody until the limit of a collective: a hang, or too short a limit."""
    waiting = [end for end, sign in seen.failed if sign is Sign.TIMED_OUT]
    if not waiting:
        return None
    saving = [end.rank for end in seen.findings.exits if end.phase == "save"]
    if saving:
        return _verdict(
            seen,
            Outcome.TIMEOUT_TOO_SHORT,
            f"a collective timed out while {wording.ranks(saving)} saved a checkpoint: "
            "make the time-out of the process group longer than a save",
            exception="save",
        )
    missing = _not_failed(seen)
    few = 0 < len(missing) <= max(1, len(waiting) // 2)
    lead = f"{wording.ranks(waiting)} waited in a collective until its time-out"
    if not few:
        return _verdict(seen, Outcome.HANG, lead, exception="collective time-out")
    suspects = tuple(
        Suspect(
            node=seat.node,
            rank=seat.rank,
            confidence=Confidence.GUESS,
            reason=f"rank {seat.rank} reported no time-out while the ranks that waited for it did",
        )
        for seat in missing
    )
    return _verdict(
        seen,
        Outcome.HANG,
        lead,
        f"{wording.ranks([seat.rank for seat in missing])} did not report: probably awaited by the others",
        suspects=suspects,
        first=missing,
        exception="collective time-out",
    )


def never_met(seen: Seen) -> Verdict | None:
    """The ranks did not find each other and none made a step: the launch, nobody's node."""
    lost = [end for end, sign in seen.failed if sign is Sign.RENDEZVOUS]
    if not lost or seen.stepped:
        return None
    return _verdict(
        seen,
        Outcome.LAUNCH_FAILED,
        f"the ranks did not find each other: {wording.ended(lost[0])}",
        exception="rendezvous",
    )


def only_consequences(seen: Seen) -> Verdict | None:
    """Every end that was seen follows from one that was not: the earliest is all we have."""
    if not seen.failed:
        return None
    end, _ = min(seen.failed, key=_precedence)
    outside = all(sign is Sign.STOPPED for _, sign in seen.failed)
    why = (
        "every rank that failed was told to end, and no stop was asked"
        if outside
        else "every failure that was seen follows from another that was not; the earliest is"
    )
    return _verdict(
        seen,
        Outcome.UNKNOWN_END,
        f"{why}: {wording.ended(end)}",
        first=() if outside else (Seat(rank=end.rank, node=end.node),),
        exception=_name_of(end),
        place=_place_of(end),
    )


def nothing_failed(seen: Seen) -> Verdict | None:
    """Exit 0 everywhere, and no done marker: the end only of a trainer that has none to write."""
    if not seen.findings.world or seen.clean < seen.findings.world:
        return None
    if not seen.findings.uses_train:
        return _verdict(
            seen,
            Outcome.FINISHED,
            "every rank exited with 0 (the trainer writes no done marker, so this counts as its end)",
        )
    return _verdict(
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
    telling = [note for note in seen.findings.notes if note.role is not Role.CONSEQUENCE]
    if not telling:
        return None
    note = min(telling, key=lambda one: one.role is not Role.LEAD)
    where = f" on {note.node}" if note.node else ""
    return _verdict(
        seen, Outcome.LAUNCH_FAILED, f"no rank was seen to start{where}: {wording.cut(note.text)}"
    )


RULES: tuple[Callable[[Seen], Verdict | None], ...] = (
    done_is_done,
    node_is_gone,
    launch_failed,
    port_in_use,
    stop_was_asked,
    stop_signal_misrouted,
    hardware_spoke,
    host_ran_out_of_memory,
    storage_failed,
    rank_failed,
    cluster_ended_it,
    node_is_silent,
    waited_in_vain,
    never_met,
    only_consequences,
    nothing_failed,
    nothing_started,
)
"""Tried in this order; the first answer is the verdict."""


# --- what the rules share ---------------------------------------------------------------------


def _second(end: RankExit) -> int:
    stamp = end.error.at_ms if end.error and end.error.at_ms else end.at_ms
    return (stamp or _NEVER_MS) // 1000


def _precedence(one: tuple[RankExit, Sign]) -> tuple[int, int, int, int]:
    end, sign = one
    return (_second(end), STRENGTH.get(sign, len(STRENGTH)), end.at_ms or _NEVER_MS, end.rank)


def _name_of(end: RankExit) -> str:
    if end.error is not None and (name := exception_of(end.error)):
        return name
    signal = signal_of(end)
    if signal is not None:
        return f"signal {signal}"
    return "" if end.code is None else f"exit code {end.code}"


def _place_of(end: RankExit) -> str:
    return end.error.place if end.error and end.error.place else end.phase


def _alike(end: RankExit, sign: Sign) -> tuple[Sign, str, str]:
    return (sign, _name_of(end), _place_of(end))


def _together(first: RankExit, end: RankExit, sign: Sign) -> bool:
    apart = abs(end.at_ms - first.at_ms) if end.at_ms and first.at_ms else 0
    return sign is not Sign.KILLED or (apart <= TOGETHER_MS and not end.by_us)


def _port_taken(text: str) -> bool:
    lowered = text.lower()
    return any(mark in lowered for mark in ("eaddrinuse", "errno: 98", "address already in use"))


def _port_verdict(seen: Seen, text: str) -> Verdict:
    return _verdict(
        seen,
        Outcome.LAUNCH_FAILED,
        f"port_in_use: the rendezvous port was taken: {wording.cut(text)}",
        exception="port_in_use",
    )


def _seats_on(seen: Seen, nodes: tuple[str, ...]) -> tuple[Seat, ...]:
    """The ranks of these nodes, as the launch seated them."""
    per_node = max(1, seen.findings.ranks_per_node)
    return tuple(
        Seat(rank=index * per_node + local, node=node)
        for index, node in enumerate(seen.findings.seats)
        if node in nodes
        for local in range(per_node)
    )


def _not_failed(seen: Seen) -> tuple[Seat, ...]:
    """Ranks that were not seen to fail; empty when there may be more ends than were kept."""
    if not seen.findings.world or len(seen.findings.exits) >= 256 or seen.clean:
        return ()
    reported = {end.rank for end, sign in seen.failed if sign is not Sign.STOPPED}
    seats = _seats_on(seen, seen.findings.seats)
    return tuple(seat for seat in seats if seat.rank not in reported)


def _lead_verdict(
    seen: Seen, outcome: Outcome, *more: str, suspects: tuple[Suspect, ...] = ()
) -> Verdict:
    end = seen.leads[0][0]
    return _verdict(
        seen,
        outcome,
        wording.led([end for end, _ in seen.leads]),
        *(sentence for sentence in more if sentence != wording.ended(end)),
        suspects=suspects,
        first=tuple(Seat(rank=end.rank, node=end.node) for end, _ in seen.leads),
        exception=_name_of(end),
        place=_place_of(end),
    )


def _verdict(
    seen: Seen,
    outcome: Outcome,
    *sentences: str,
    suspects: tuple[Suspect, ...] = (),
    first: tuple[Seat, ...] = (),
    exception: str = "",
    place: str = "",
) -> Verdict:
    domain = DOMAIN_OF[outcome]
    planned = domain is Domain.PLANNED
    leads = {seat.rank for seat in first}
    others = [end for end, sign in seen.failed if end.rank not in leads]
    tail = () if planned or not first else wording.followed(others, seen.gone)
    return Verdict(
        outcome=outcome,
        domain=domain,
        sentences=(*sentences, *tail),
        suspects=suspects,
        fingerprint=None if planned else Fingerprint(outcome, exception, place),
        first=() if planned else first,
    )
