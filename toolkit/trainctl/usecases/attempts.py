"""
The supervisor's side of one attempt's files: claim the number, speak to its agents, hear them.

A number is claimed by creating its folder: whoever finds it there is not the one that launches. All that
is polled later (control and state cells, trainer.jsonl) is created here, before the first agent starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from trainctl.base.cells import Cell, CellWriter, create_cell, read_cell
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model.agent import AgentState, AnyTrainerLine, Control, LaunchSpec
from trainctl.model.errors import CellError

STATE_CELL_BYTES = 64 * 1024
CONTROL_CELL_BYTES = 4 * 1024

_encode = msgspec.json.encode
_state = msgspec.json.Decoder(AgentState)
_control = msgspec.json.Decoder(Control)
_line = msgspec.json.Decoder(AnyTrainerLine)
_spec = msgspec.json.Decoder(LaunchSpec)


def claim(run: RunDir, spec: LaunchSpec, files: Files) -> bool:
    """
    Claim the attempt number of `spec` and lay out its folder; False where it was claimed before.

    The folder comes first (its creation is the claim) and launch.json last, so that a half-made claim
    is told by the want of launch.json.
    """
    number = spec.attempt
    if not files.mkdir_exclusive(run.attempt(number)):
        return False
    lay_out(run, number, [seat.node for seat in spec.seats], files)
    files.replace(run.launch(number), msgspec.json.format(_encode(spec), indent=1) + b"\n")
    return True


def lay_out(run: RunDir, number: int, nodes: Iterable[str], files: Files) -> None:
    """Create what will be polled; what is there already stays (a half-made claim is completed to void it)."""
    for path in run.controls(number):
        _create_once(path, CONTROL_CELL_BYTES, files)
    files.mkdir_exclusive(run.nodes(number))
    for node in nodes:
        files.mkdir_exclusive(run.node(number, node))
        for folder in (run.logs, run.flight, run.stacks):
            files.mkdir_exclusive(folder(number, node))
        _create_once(run.state(number, node), STATE_CELL_BYTES, files)
    files.create_exclusive(run.trainer_log(number), b"")


def _create_once(path: os.PathLike[str], size: int, files: Files) -> None:
    try:
        create_cell(path, size=size, files=files)
    except FileExistsError:
        return


def read_launch(run: RunDir, number: int) -> LaunchSpec | None:
    """launch.json of an attempt; None where the claim was never completed."""
    try:
        return _spec.decode(run.launch(number).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None


class Voice:
    """This term's control cell of one attempt: the word is kept, so that saying it again is cheap."""

    def __init__(self, run: RunDir, attempt: int, term: int, files: Files) -> None:
        self._cell = CellWriter(run.control(attempt, term), term, files=files)
        self._said = Control(attempt=attempt, term=term)
        self._first = True

    def say(self, **words: bool | str | int) -> None:
        """Add words (`stop`, `kill`, `now`, `void`, `report`) to what was said; none is ever taken back."""
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
    _offset: int = 0

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
            return read_cell(self.run.state(self.attempt, node), files=self.files)
        except (OSError, CellError):
            return None

    def hear_trainer(self) -> list[AnyTrainerLine]:
        """The whole new lines of trainer.jsonl; a line that is not ours is passed over."""
        try:
            with open(self.run.trainer_log(self.attempt), "rb") as log:
                log.seek(self._offset)
                data = log.read(1 << 20)
        except OSError:
            return []
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        lines = []
        for line in whole.splitlines():
            try:
                lines.append(_line.decode(line))
            except msgspec.DecodeError:
                continue
        return lines
