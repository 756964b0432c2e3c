"""
Does the failure follow the node or the program? Statistics over failures in a row.

Only *consecutive* failures of one fingerprint without progress are compared: the chain. A failure
that a node explains, one of network, storage or launcher, and one without a fingerprint are in no
chain. After each failure of the chain the node on which it first appeared has changed places with
another (`policy.placing.trade`), so the next one tells:

- first on another node, or on several nodes at once: no node explains it;
- first on the same node again, at another seat: it follows the node. The first failure of such a
  row only picks the node, whichever it is; it proves nothing. If the failures fell on the n nodes
  at random, the same node would come k times *more* with probability n^-k. At 5 % or less chance is
  ruled out and the node is `likely`; above, it is a `guess`, which never quarantines.

So one failure never names a node, two in a row do from 20 nodes on, three from 5 on; on 3 nodes it
takes four, and there a crash loop of three ends the run first.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from trainctl.model.events import AttemptExited
from trainctl.model.outcome import Confidence, Domain, Outcome, Seat, Suspect, Verdict
from trainctl.policy.state import Failure

CHANCE = 0.05
"""A coincidence of at most this probability is ruled out."""

#: Outcomes that name nobody by their symptom but may turn out to be a node's. Errors of the data,
#: the time-out and the GPU's memory are the program's wherever they appear.
_MOVABLE = frozenset(
    {
        Outcome.APP_ERROR,
        Outcome.KILLED_UNKNOWN,
        Outcome.HANG,
        Outcome.HOST_OOM,
        Outcome.SILENT_FAULT,
    }
)


def is_explained(exited: AttemptExited | Verdict) -> bool:
    """A node took the blame, by more than a guess: the failure needs no other explanation."""
    return bool(culprits(exited))


def culprits(exited: AttemptExited | Verdict) -> tuple[Suspect, ...]:
    """The suspects that may be quarantined: of a hardware fault, and more than a guess."""
    if exited.domain is not Domain.HARDWARE:
        return ()
    return tuple(s for s in exited.suspects if s.confidence is not Confidence.GUESS)


def only_node(first: tuple[Seat, ...]) -> str:
    """The one node on which the failure first appeared; "" where there are none or several."""
    nodes = {seat.node for seat in first}
    return nodes.pop() if len(nodes) == 1 else ""


def chain(failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
    """The longest row at the end of `failures` with one fingerprint that nothing explains."""
    row: list[Failure] = []
    for failure in reversed(failures):
        exited = failure.exited
        if not _in_chain(exited) or (row and exited.fingerprint != row[-1].exited.fingerprint):
            break
        row.append(failure)
    return tuple(reversed(row))


def _in_chain(exited: AttemptExited | Verdict) -> bool:
    comparable = exited.domain is not Domain.PLATFORM and exited.fingerprint is not None
    return comparable and not is_explained(exited)


def repetitions(row: tuple[Failure, ...]) -> int:
    """How often the node of the last failure was first *again*, each time at another seat."""
    node = only_node(row[-1].exited.first) if row else ""
    seats: list[int] = []
    for failure in reversed(row):
        if not node or only_node(failure.exited.first) != node or node not in failure.seats:
            break
        seats.append(failure.seats.index(node))
    return sum(later != earlier for later, earlier in pairwise(seats))


def weigh(verdict: Verdict, failures: tuple[Failure, ...], seats: tuple[str, ...]) -> Verdict:
    """`verdict` of the attempt on `seats`, with what the failures before say of its first node."""
    if verdict.outcome not in _MOVABLE or not _in_chain(verdict):
        return verdict
    node = only_node(verdict.first)
    this = Failure(0, 0, _as_exit(verdict), False, seats)
    times = repetitions(chain((*failures, this)))
    if not times:
        return verdict
    chance = float(len(seats)) ** -times
    what = (
        f"the same failure was first on {node} {times + 1} times in a row, at other ranks each"
        f" time; among {len(seats)} nodes chance does that with p = {chance:.2g}"
    )
    if chance > CHANCE:
        return _suspected(verdict, node, Confidence.GUESS, f"{what}: too likely to blame the node")
    named = _suspected(verdict, node, Confidence.LIKELY, f"{what}: it follows the node")
    return msgspec.structs.replace(named, domain=Domain.HARDWARE)


def _suspected(verdict: Verdict, node: str, confidence: Confidence, why: str) -> Verdict:
    others = tuple(suspect for suspect in verdict.suspects if suspect.node != node)
    suspect = Suspect(node, confidence, why, verdict.first[0].rank)
    sentences = (*verdict.sentences, why)
    return msgspec.structs.replace(verdict, suspects=(suspect, *others), sentences=sentences)


def _as_exit(verdict: Verdict) -> AttemptExited:
    return AttemptExited(
        attempt=0,
        outcome=verdict.outcome,
        domain=verdict.domain,
        suspects=verdict.suspects,
        fingerprint=verdict.fingerprint,
        first=verdict.first,
    )
