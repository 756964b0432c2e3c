"""The findings of one attempt, read once: each rank's sign, and which ends are leads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trainctl.model.evidence import Findings, RankExit
from trainctl.model.outcome import (
    DOMAIN_OF,
    STOPS,
    Domain,
    Fingerprint,
    Outcome,
    Seat,
    Suspect,
    Verdict,
)
from trainctl.policy import sentences
from trainctl.policy.signs import (
    CONSEQUENCES,
    SOFT,
    STRENGTH,
    Sign,
    exception_of,
    sign_of,
    signal_of,
)

PLANNED_AND_TAKEN = frozenset(
    {
        Outcome.STOP_TIME_LIMIT,
        Outcome.STOP_PREEMPTED,
        Outcome.STOP_DRAIN,
        Outcome.STOP_MAINTENANCE,
    }
)
"""Stops at whose end the cluster itself kills ranks and takes nodes away: no failures then."""

TOGETHER_MS = 1_000
"""SIGKILLs further apart than this are not one event: torchrun kills its other ranks later."""

_NEVER_MS = 1 << 62


@dataclass(frozen=True)
class Seen:
    """The findings with each rank's sign, each property worked out once."""

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
        """Ends that follow from no other; soft ones, and words said after our kill, only alone."""
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
        first, sign = min(self.own, key=precedence)
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


def _second(end: RankExit) -> int:
    stamp = end.error.at_ms if end.error and end.error.at_ms else end.at_ms
    return (stamp or _NEVER_MS) // 1000


def precedence(one: tuple[RankExit, Sign]) -> tuple[int, int, int, int]:
    """Sorts by what explains more: the second, the sign's strength, the guard's clock, the rank."""
    end, sign = one
    return (_second(end), STRENGTH.get(sign, len(STRENGTH)), end.at_ms or _NEVER_MS, end.rank)


def name_of(end: RankExit) -> str:
    """What a fingerprint calls this end: the exception, else `signal 9` or `exit code 3`."""
    if end.error is not None and (name := exception_of(end.error)):
        return name
    signal = signal_of(end)
    if signal is not None:
        return f"signal {signal}"
    return "" if end.code is None else f"exit code {end.code}"


def place_of(end: RankExit) -> str:
    """Where in the program it ended: the innermost frame, else the phase of the last beat."""
    return end.error.place if end.error and end.error.place else end.phase


def _alike(end: RankExit, sign: Sign) -> tuple[Sign, str, str]:
    return (sign, name_of(end), place_of(end))


def _together(first: RankExit, end: RankExit, sign: Sign) -> bool:
    apart = abs(end.at_ms - first.at_ms) if end.at_ms and first.at_ms else 0
    return sign is not Sign.KILLED or (apart <= TOGETHER_MS and not end.by_us)


def seats_on(seen: Seen, nodes: tuple[str, ...]) -> tuple[Seat, ...]:
    """The ranks of these nodes, as the launch seated them."""
    per_node = max(1, seen.findings.ranks_per_node)
    return tuple(
        Seat(rank=index * per_node + local, node=node)
        for index, node in enumerate(seen.findings.seats)
        if node in nodes
        for local in range(per_node)
    )


def not_failed(seen: Seen) -> tuple[Seat, ...]:
    """Ranks that were not seen to fail; empty when there may be more ends than were kept."""
    if not seen.findings.world or len(seen.findings.exits) >= 256 or seen.clean:
        return ()
    reported = {end.rank for end, sign in seen.failed if sign is not Sign.STOPPED}
    seats = seats_on(seen, seen.findings.seats)
    return tuple(seat for seat in seats if seat.rank not in reported)


def lead_verdict(
    seen: Seen, outcome: Outcome, *more: str, suspects: tuple[Suspect, ...] = ()
) -> Verdict:
    """A verdict on the leads: their own words, then `more`, then what became of the others."""
    end = seen.leads[0][0]
    return verdict(
        seen,
        outcome,
        sentences.led([end for end, _ in seen.leads]),
        *(sentence for sentence in more if sentence != sentences.ended(end)),
        suspects=suspects,
        first=tuple(Seat(rank=end.rank, node=end.node) for end, _ in seen.leads),
        exception=name_of(end),
        place=place_of(end),
    )


def verdict(
    seen: Seen,
    outcome: Outcome,
    *told: str,
    suspects: tuple[Suspect, ...] = (),
    first: tuple[Seat, ...] = (),
    exception: str = "",
    place: str = "",
) -> Verdict:
    """A verdict in the domain of its outcome; a planned one has no fingerprint, no first."""
    domain = DOMAIN_OF[outcome]
    planned = domain is Domain.PLANNED
    leads = {seat.rank for seat in first}
    others = [end for end, sign in seen.failed if end.rank not in leads]
    tail = () if planned or not first else sentences.followed(others, seen.gone)
    return Verdict(
        outcome=outcome,
        domain=domain,
        sentences=(*told, *tail),
        suspects=suspects,
        fingerprint=None if planned else Fingerprint(outcome, exception, place),
        first=() if planned else first,
    )
