"""
The run journal, written: one JSON object a line, appended, never rewritten.

One file a term, written by that term's holder alone; the journal is their concatenation, in the
order of (term, seq). A line is one write, durable before its effect, so a crash leaves whole
lines and at most one torn tail. A torn tail was never a fact: readers drop it, and the next term
writes a file of its own. The reading side is adapters/journal_read.py.
"""

from __future__ import annotations

import contextlib
from typing import TypeVar

import msgspec

from trainctl.adapters.journal_read import INTENTS, Journal, read_journal
from trainctl.adapters.journal_tail import JournalTail
from trainctl.base.clock import Clock
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model.errors import StorageError
from trainctl.model.events import JOURNAL_VERSION, Event

__all__ = ["INTENTS", "Journal", "JournalTail", "JournalWriter", "read_journal"]

E = TypeVar("E", bound=Event)
_FILES = Files()


class JournalWriter:
    """
    The holder's side of its term's file; creates it. Not for several threads at once.

    A StorageError from `append` means that the event is no fact. The same event may be appended
    again when storage is back: what may have landed of the first try is cut off, or closed by a
    newline.
    """

    def __init__(
        self, run: RunDir, term: int, clock: Clock, boot: str, files: Files = _FILES
    ) -> None:
        self.path = run.journal(term)
        self._term = term
        self._clock = clock
        self._boot = boot
        self._files = files
        self._encoder = msgspec.json.Encoder()
        self._seq = 0
        #: Where the last durable line ends, and its number: what a failed write is cut back to.
        self._whole_size = self._whole_seq = 0
        self._is_torn = False
        try:
            self._fd = files.open_append(self.path)
        except FileExistsError:
            raise StorageError(
                f"{self.path}: exists already, so somebody else wrote term {term}; "
                "start the supervisor again, and it takes a term of its own"
            ) from None
        except OSError as error:
            raise StorageError(f"{self.path}: cannot create it: {_why(error)}") from error

    @property
    def seq(self) -> int:
        """The number of the last event that is a fact; 0 for none."""
        return self._whole_seq

    def append(self, event: E) -> E:
        """Stamp the event and make it a fact; the stamped event."""
        self._mend()
        seq = self._seq + 1
        stamped = msgspec.structs.replace(
            event,
            v=JOURNAL_VERSION,
            term=self._term,
            seq=seq,
            at_ms=self._clock.utc_ms(),
            boot=self._boot,
            mono_ms=self._clock.mono_ms(),
        )
        line = self._encoder.encode(stamped) + b"\n"
        try:
            self._files.append(self._fd, b"\n" + line if self._is_torn else line)
        except OSError as error:
            self._is_torn, self._seq = True, seq
            self._mend()
            raise StorageError(
                f"{self.path}: cannot write {event.kind}: {_why(error)}; the event is no fact"
            ) from error
        if self._is_torn:
            self._is_torn, self._whole_size = False, self._files.size(self._fd)
        else:
            self._whole_size += len(line)
        self._seq = self._whole_seq = seq
        return stamped

    def close(self) -> None:
        """Close the file; nothing can be appended after it."""
        with contextlib.suppress(OSError):
            self._files.close(self._fd)

    def _mend(self) -> None:
        """
        Cut off what failed writes left. While even that fails, the next line begins with a
        newline, so that it never glues to a torn one, and with a number of its own, since a whole
        line may stand there that was never made durable.
        """
        if self._is_torn:
            with contextlib.suppress(OSError):
                self._files.truncate(self._fd, self._whole_size)
                self._is_torn, self._seq = False, self._whole_seq


def _why(error: OSError) -> str:
    return error.strerror or str(error)
