"""
The supervisor's side of one attempt's files: claim the number, speak to its agents, hear them.

A number is claimed by creating its folder: whoever finds it there is not the one that launches. All
that is polled later (control and state cells, trainer.jsonl) is created here, before the first
agent starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from trainctl.base.cells import Cell, CellWriter, create_cell, read_cell
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model.agent import AgentState, AnyTrainerLine, Control, LaunchSpec
from trainctl.model.errors import CellError

STATE_CELL_BYTES = 64 * 1024
CONTROL_CELL_BYTES = 4 * 1024
TRAINER_LOG_CHUNK = 1 << 20

_encode = msgspec.json.encode
_state = msgspec.json.Decoder(AgentState)
_control = msgspec.json.Decoder(Control)
_line = msgspec.json.Decoder(AnyTrainerLine)
_spec = msgspec.json.Decoder(LaunchSpec)


def claim(run: RunDir, number: int, nodes: Iterable[str], files: Files) -> bool:
    """
    Claim an attempt number and lay out its folder; False where it was claimed before.

    launch.json comes last (`write_launch`), so that a half-made claim is told by the want of it.
    """
    try:
        files.mkdir_exclusive(run.attempt(number))
    except FileExistsError:
        return False
    lay_out(run, number, nodes, files)
    return True


def write_launch(run: RunDir, spec: LaunchSpec, files: Files) -> None:
    """Complete the claim: what the agents of this attempt start."""
    files.replace(run.launch(spec.attempt), msgspec.json.format(_encode(spec), indent=1) + b"\n")


def lay_out(run: RunDir, number: int, nodes: Iterable[str], files: Files) -> None:
    """
    Create what will be polled; what is there already stays (a half-made claim is completed to void
    it).
    """
    files.mkdir(run.attempt(number))
    for path in run.controls(number):
        _create_once(path, CONTROL_CELL_BYTES, files)
    for node in nodes:
        for folder in (run.logs, run.flight, run.stacks):
            files.mkdir(folder(number, node))
        _create_once(run.state(number, node), STATE_CELL_BYTES, files)
    with contextlib.suppress(FileExistsError):
        files.create_exclusive(run.trainer_log(number), durable=False)
    files.sync_dir(run.attempt(number))


def _create_once(path: Path, size: int, files: Files) -> None:
    # Not durable one by one: thousands of fsyncs stand between a failure and the next start, and
    # what a crash of the storage loses here is an attempt that never starts.
    with contextlib.suppress(FileExistsError):
        create_cell(path, size, files, durable=False)


def read_launch(run: RunDir, number: int) -> LaunchSpec | None:
    """launch.json of an attempt; None where the claim was never completed."""
    try:
        return _spec.decode(run.launch(number).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None


class Voice:
    """
    This term's control cell of one attempt: the word is kept, so that saying it again is cheap.
    """

    def __init__(self, run: RunDir, attempt: int, term: int, files: Files) -> None:
        self._cell = CellWriter(run.control(attempt, term), term, files)
        self._said = Control(attempt=attempt, term=term)
        self._first = True

    def say(self, **words: bool | str | int) -> None:
        """
        Add words (`stop`, `kill`, `now`, `void`, `report`) to what was said; none is ever taken
        back.
        """
        word = msgspec.structs.replace(self._said, **words)
        if word != self._said or self._first:
            self._cell.write(_encode(word))
            self._said, self._first = word, False

    def ask_for_reports(self) -> None:
        """Ask every agent to write its cell once more."""
        self.say(report=self._said.report + 1)

    def close(self) -> None:
        """Let the cell go."""
        self._cell.close()


@dataclass(slots=True)
class Ear:
    """What the agents and rank 0 of one attempt say; remembers what it has heard."""

    run: RunDir
    attempt: int
    nodes: tuple[str, ...]
    files: Files
    agents: dict[str, AgentState] = field(default_factory=dict)
    _heard: int = 0

    def hear_agents(self, only: Iterable[str] | None = None) -> Mapping[str, AgentState]:
        """Read the state cells; one that cannot be read keeps its last word. Raises nothing."""
        for node in self.nodes if only is None else only:
            cell = self._read(node)
            if cell is None:
                continue
            try:
                self.agents[node] = _state.decode(cell.payload)
            except msgspec.DecodeError:
                continue  # a newer agent's word that we do not know: keep the last one
        return self.agents

    def _read(self, node: str) -> Cell | None:
        try:
            return read_cell(self.run.state(self.attempt, node), self.files)
        except CellError:
            return None

    def hear_trainer(self) -> list[AnyTrainerLine]:
        """The whole new lines of trainer.jsonl; a line that is not ours is passed over."""
        try:
            path = self.run.trainer_log(self.attempt)
            data = self.files.read_from(path, self._heard, TRAINER_LOG_CHUNK)
        except OSError:
            return []
        whole, newline, _ = data.rpartition(b"\n")
        self._heard += len(whole) + len(newline)
        lines = []
        for line in whole.splitlines():
            try:
                lines.append(_line.decode(line))
            except msgspec.DecodeError:
                continue
        return lines
