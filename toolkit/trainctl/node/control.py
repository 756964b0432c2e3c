"""
The agent's ear: the control cells of its attempt, of which the highest valid term is obeyed.

A cell that cannot be read may be the one that voids the attempt, so before a rank is started *all*
cells must have been read. While ranks run, what cannot be read changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from trainctl.base.cells import read_cell
from trainctl.base.rundir import CONTROL_CELLS, RunDir
from trainctl.model.agent import Control
from trainctl.model.errors import CellError

_decode = msgspec.json.Decoder(Control).decode


@dataclass(frozen=True, slots=True)
class Word:
    """A supervisor's word, with the (term, seq) of its cell, which the agent echoes."""

    said: Control
    term: int
    seq: int


class ControlCells:
    """The control cells of one attempt. Not for several threads."""

    def __init__(self, run: RunDir, attempt: int) -> None:
        self._paths = run.controls(attempt)
        self._attempt = attempt
        self._best: Word | None = None
        self._turn = 0

    def read_all(self) -> Word | None:
        """Read every cell; the word to obey, None where none was said. CellError: try again."""
        for number in range(CONTROL_CELLS):
            self._read(number)
        return self._best

    def read_some(self) -> Word | None:
        """
        Read the cell that is obeyed, that of the term after it, and one of the others in turn.

        Three reads instead of eight, on each of thousands of nodes: a takeover is seen at once, a
        second one within seconds. CellError when one of them cannot be read.
        """
        term = self._best.term if self._best else 0
        self._turn += 1
        for number in dict.fromkeys(each % CONTROL_CELLS for each in (term, term + 1, self._turn)):
            self._read(number)
        return self._best

    def _read(self, number: int) -> None:
        path = self._paths[number]
        cell = read_cell(path)
        if cell is None:
            return
        try:
            said = _decode(cell.payload)
        except msgspec.DecodeError as error:
            raise CellError(f"{path}: not a word to an agent: {error}") from error
        if said.attempt != self._attempt or said.term != cell.term:
            raise CellError(
                f"{path}: a word of term {said.term} to attempt {said.attempt}, "
                f"in a cell of term {cell.term} of attempt {self._attempt}"
            )
        word = Word(said, cell.term, cell.seq)
        if self._best is None or (word.term, word.seq) >= (self._best.term, self._best.seq):
            self._best = word
