"""
The run journal, followed: only what was appended since the last look is read.

For commands that watch, and for a holder that reads an ousted one's file again until its longest
bound has passed.
"""

from __future__ import annotations

from trainctl.adapters.journal_lines import Line, decode
from trainctl.adapters.journal_read import CHUNK, cannot_read, terms_among
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model.events import SupervisorStarted

_FILES = Files()


class JournalTail:
    """
    Follows the journal of a run from the event after `after`, a pair (term, seq), or from the
    start.

    With `void` also what ousted holders append after the takeover. (A line that was read before the
    takeover was seen cannot be taken back; `read_journal` is what to fold.) New terms are found by
    listing, which may be a minute late on NFS.
    """

    def __init__(
        self,
        run: RunDir,
        files: Files = _FILES,
        *,
        after: tuple[int, int] = (0, 0),
        void: bool = False,
    ) -> None:
        self._run = run
        self._files = files
        self._after = after
        self._void = void
        self._offsets: dict[int, int] = {}
        #: Of each term that says so: how far it had read.
        self._said: dict[int, tuple[int, int]] = {}

    def poll(self) -> list[Line]:
        """What is new, in the order of terms; lines that cannot be read are left out."""
        fresh: list[Line] = []
        for term in self._terms():
            fresh += self._read(term)
        for line in fresh:
            if isinstance(line, SupervisorStarted) and line.read_term < line.term:
                self._said.setdefault(line.term, (line.read_term, line.read_seq))
        return [line for line in fresh if self._counts(line)]

    def _terms(self) -> list[int]:
        try:
            names = self._files.listdir(self._run.events)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise cannot_read(str(self._run.events), error) from error
        return sorted(term for term in terms_among(names) if term >= self._after[0])

    def _read(self, term: int) -> list[Line]:
        path = self._run.journal(term)
        lines: list[Line] = []
        offset = self._offsets.get(term, 0)
        try:
            while chunk := self._files.read_from(path, offset, CHUNK):
                whole = chunk.rfind(b"\n") + 1
                if not whole:
                    break  # a line that is being written, or was torn
                lines += decode(chunk[:whole]).lines
                offset += whole
        except OSError as error:
            raise cannot_read(str(path), error) from error
        self._offsets[term] = offset
        return lines

    def _counts(self, line: Line) -> bool:
        where = (line.term, line.seq)
        if where <= self._after:
            return False
        return self._void or all(
            where <= read for term, read in self._said.items() if term > line.term
        )
