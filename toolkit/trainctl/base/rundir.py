"""
Every file name of a run, in one class; nothing else spells one.

    run.toml                        as submitted, never rewritten
    lease/NNNN  lease/NNNN.ousted   cells, see adapters/lease.py
    events/NNNN.jsonl               the journal, one file a term
    requests/NAME                   one file a request, written by whoever asks
    attempts/NNNN/
        launch.json                 the claim on the number, and what the agents start
        control.0 … control.7       cells, supervisor of term t writes t mod 8
        trainer.jsonl               global rank 0
        verdict.json                the verdict, for people and other tools
        nodes/HOST/state            cell, the agent
        nodes/HOST/{log,flight,stacks}/
    checkpoints/                    unless run.toml says otherwise
    cluster/                        the local cluster's own record of its nodes
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CONTROL_CELLS = 8
"""A new term writes another cell than the last seven, so a slow old writer tears nothing."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """The run directory at `root`."""

    root: Path

    @property
    def config(self) -> Path:
        """run.toml."""
        return self.root / "run.toml"

    @property
    def leases(self) -> Path:
        """The folder of lease cells."""
        return self.root / "lease"

    def lease(self, term: int) -> Path:
        """The renewals of the holder of `term`."""
        return self.leases / f"{term:04d}"

    def ousted(self, term: int) -> Path:
        """Written by whoever took over from the holder of `term`."""
        return self.leases / f"{term:04d}.ousted"

    @property
    def events(self) -> Path:
        """The folder of the journal."""
        return self.root / "events"

    def journal(self, term: int) -> Path:
        """The events that the holder of `term` wrote."""
        return self.events / f"{term:04d}.jsonl"

    @property
    def requests(self) -> Path:
        """What anybody may ask of the supervisor: a file of its own name each."""
        return self.root / "requests"

    @property
    def attempts(self) -> Path:
        """The folder of attempts."""
        return self.root / "attempts"

    def attempt(self, number: int) -> Path:
        """One attempt; creating it claims the number."""
        return self.attempts / f"{number:04d}"

    def launch(self, number: int) -> Path:
        """launch.json of an attempt."""
        return self.attempt(number) / "launch.json"

    def control(self, number: int, term: int) -> Path:
        """One term's word to the agents of one attempt: a cell with a single writer."""
        return self.attempt(number) / f"control.{term % CONTROL_CELLS}"

    def controls(self, number: int) -> tuple[Path, ...]:
        """All control cells of an attempt."""
        return tuple(self.attempt(number) / f"control.{i}" for i in range(CONTROL_CELLS))

    def trainer_log(self, number: int) -> Path:
        """trainer.jsonl of an attempt."""
        return self.attempt(number) / "trainer.jsonl"

    def verdict(self, number: int) -> Path:
        """verdict.json of an attempt."""
        return self.attempt(number) / "verdict.json"

    def nodes(self, number: int) -> Path:
        """The folder of an attempt's nodes."""
        return self.attempt(number) / "nodes"

    def node(self, number: int, node: str) -> Path:
        """What one node of an attempt wrote."""
        return self.nodes(number) / node

    def state(self, number: int, node: str) -> Path:
        """The agent's cell."""
        return self.node(number, node) / "state"

    def logs(self, number: int, node: str) -> Path:
        """agent.log, launcher.log, and rank-N.{out,err} of each rank."""
        return self.node(number, node) / "log"

    def flight(self, number: int, node: str) -> Path:
        """Flight-recorder dumps."""
        return self.node(number, node) / "flight"

    def stacks(self, number: int, node: str) -> Path:
        """Stacks of stuck ranks."""
        return self.node(number, node) / "stacks"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go unless run.toml says otherwise."""
        return self.root / "checkpoints"

    @property
    def cluster(self) -> Path:
        """The local cluster's record of its nodes: who was granted, when each was given back."""
        return self.root / "cluster"

    @property
    def supervisor_log(self) -> Path:
        """What a detached supervisor prints; append only."""
        return self.root / "supervisor.log"
