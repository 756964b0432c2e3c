"""Histories of a run, told event by event: what the stories of the policy begin from."""

from __future__ import annotations

import msgspec

from support.world import START_MS
from trainctl.model.events import (
    AnyEvent,
    AttemptExited,
    AttemptLaunched,
    BackoffStarted,
    CheckpointCommitted,
    Detected,
    GangGranted,
    GangRequested,
    Gathered,
    LaunchIntended,
    Loaded,
    NodeGrant,
    NodeQuarantined,
    NodeReleased,
    NodeTraded,
    Progressed,
    QuarantineIntended,
    ReleaseIntended,
    RunCreated,
    SpareUsed,
    StopRequested,
    SupervisorStarted,
    TeardownIntended,
    TornDown,
)
from trainctl.model.evidence import Findings
from trainctl.model.outcome import (
    DOMAIN_OF,
    Confidence,
    Domain,
    Fingerprint,
    Outcome,
    Seat,
    Suspect,
)


def grant(node: str) -> NodeGrant:
    """A node as a cluster grants it."""
    return NodeGrant(node=node, address=f"10.0.0.{node[1:]}", start_ms=START_MS)


class History:
    """Builds a journal; each method adds what a supervisor would have written; returns self."""

    def __init__(self, nodes: int = 3, spares: int = 1, ranks_per_node: int = 2) -> None:
        self.events: list[AnyEvent] = []
        self.now_ms = START_MS
        self.attempt = 0
        self.committed = -1
        self.ranks_per_node = ranks_per_node
        self.seats = tuple(f"n{i}" for i in range(1, nodes + 1))
        names = [f"n{i}" for i in range(1, nodes + spares + 1)]
        self.add(
            RunCreated(
                run="run",
                run_id="run-1",
                cluster="local",
                nodes=nodes,
                spares=spares,
                ranks_per_node=ranks_per_node,
            ),
            SupervisorStarted(term=1),
            GangRequested(name="run-g001", nodes=nodes + spares),
            GangGranted(name="run-g001", nodes=tuple(grant(name) for name in names)),
        )

    def add(self, *events: AnyEvent, term: int = 1) -> History:
        """These events, a second apart."""
        for event in events:
            self.now_ms += 1000
            self.events.append(
                msgspec.structs.replace(
                    event, v=1, term=term, seq=len(self.events) + 1, at_ms=self.now_ms
                )
            )
        return self

    def wait(self, seconds: float) -> History:
        """Nothing happens for a while."""
        self.now_ms += round(seconds * 1000)
        return self

    def intended(self) -> History:
        """The next launch is about to happen."""
        self.attempt += 1
        resume = self.committed if self.committed >= 0 else None
        return self.add(
            LaunchIntended(
                attempt=self.attempt,
                step_name=f"run-a{self.attempt:04d}",
                seats=self.seats,
                resume_step=resume,
                resume=f"step-{resume}" if resume is not None else "",
            )
        )

    def running(self, steps: int = 5, commit: int | None = None) -> History:
        """The next attempt is launched and does `steps` steps."""
        self.intended().add(AttemptLaunched(attempt=self.attempt))
        start = max(self.committed, 0)
        self.add(Loaded(attempt=self.attempt, step=start))
        if steps:
            self.add(Progressed(attempt=self.attempt, step=start + steps))
        if commit is not None:
            self.committed = commit
            self.add(CheckpointCommitted(attempt=self.attempt, step=commit, path=f"step-{commit}"))
        return self

    def seat_of(self, rank: int) -> Seat:
        """A rank and the node on which it runs."""
        return Seat(rank, self.seats[rank // self.ranks_per_node])

    def torn_down(self, cause: str = "rank_failed") -> History:
        """The attempt ends and is torn down; nothing was gathered that tells."""
        findings = Findings(attempt=self.attempt, seats=self.seats)
        return self.add(
            Detected(attempt=self.attempt, cause=cause),
            Gathered(attempt=self.attempt, findings=findings),
            TeardownIntended(attempt=self.attempt),
            TornDown(attempt=self.attempt),
        )

    def exited(
        self,
        outcome: Outcome,
        *ranks: int,
        suspects: tuple[Suspect, ...] = (),
        domain: Domain | None = None,
        place: str = "train.py:step",
        steps: int = 5,
    ) -> History:
        """The verdict: first at `ranks`, after `steps` new steps."""
        planned = DOMAIN_OF[outcome] is Domain.PLANNED
        start = max(self.committed, 0)
        return self.torn_down().add(
            AttemptExited(
                attempt=self.attempt,
                outcome=outcome,
                domain=domain or DOMAIN_OF[outcome],
                sentences=("it ended",),
                suspects=suspects,
                fingerprint=None if planned else Fingerprint(outcome, "ValueError", place),
                first=tuple(self.seat_of(rank) for rank in ranks),
                step_from=start,
                step_to=start + steps,
                committed=self.committed,
            )
        )

    def failed(
        self, outcome: Outcome, *ranks: int, steps: int = 5, place: str = "x.py:f"
    ) -> History:
        """A whole attempt that ends so."""
        return self.running(steps).exited(outcome, *ranks, steps=steps, place=place)

    def launch_failed(self) -> History:
        """A whole attempt of which no rank started."""
        self.intended().add(AttemptLaunched(attempt=self.attempt))
        return self.exited(Outcome.LAUNCH_FAILED, steps=0)

    def lost(self, node: str) -> History:
        """A whole attempt that a node's death ends."""
        suspect = Suspect(node, Confidence.CERTAIN, "the cluster says it is dead")
        rank = self.seats.index(node) * self.ranks_per_node
        return self.running().exited(Outcome.NODE_LOST, rank, suspects=(suspect,))

    def traded(self, node: str, other: str) -> History:
        """One swap."""
        swap = {node: other, other: node}
        self.seats = tuple(swap.get(seat, seat) for seat in self.seats)
        return self.add(NodeTraded(node=node, with_node=other))

    def quarantined(self, node: str) -> History:
        """The node is in quarantine."""
        return self.add(
            QuarantineIntended(node=node, reason="bad"), NodeQuarantined(node=node, reason="bad")
        )

    def spare(self, node: str, instead_of: str) -> History:
        """A spare takes the seat."""
        seat = self.seats.index(instead_of)
        self.seats = tuple(node if name == instead_of else name for name in self.seats)
        return self.add(SpareUsed(node=node, instead_of=instead_of, seat=seat))

    def released(self, *nodes: str) -> History:
        """The nodes are given back."""
        return self.add(
            ReleaseIntended(nodes=nodes), *(NodeReleased(node=node, end_ms=1) for node in nodes)
        )

    def backed_off(self, seconds: float = 10.0) -> History:
        """The wait before the next attempt begins."""
        wait_ms = round(1000 * seconds)
        until_ms = self.now_ms + 1000 + wait_ms
        return self.add(
            BackoffStarted(attempt=self.attempt + 1, wait_ms=wait_ms, until_ms=until_ms)
        )

    def stop(self, reason: Outcome = Outcome.STOP_OPERATOR, attempt: int | None = None) -> History:
        """A planned end is asked for."""
        number = self.attempt if attempt is None else attempt
        return self.add(StopRequested(attempt=number, reason=reason, request=f"r{self.now_ms}"))
