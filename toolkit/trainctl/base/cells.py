"""
The cell: a small file of fixed size that is rewritten in place, so that nothing is detected by a
file appearing.

    magic 8 | term 8 | seq 8 | length 4 | crc32 4 | payload … | whatever was there before

Integers are big-endian. The check covers all that stands before the payload, and the payload; so
a write that was torn at any byte reads as torn, never as a value that nobody wrote. A cell has
one writer in its life, is created at full size before anybody polls it (zeros: never written), is
opened O_DSYNC, rewritten by one pwrite, and read by open + read + close, which is what makes NFS
look at the server.

Standard library only: node agents import this.
"""

from __future__ import annotations

import contextlib
import struct
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from trainctl.base.files import Files
from trainctl.model.errors import CellError

MAGIC = b"TRAINCL1"
DEFAULT_SIZE = 16 * 1024
"""Bytes of a cell unless its creator asks for more."""

_FIELDS = struct.Struct(">8sQQI")
_CRC = struct.Struct(">I")
HEADER_SIZE = _FIELDS.size + _CRC.size

_READ_TRIES = 6
_FIRST_PAUSE_S = 0.001  # doubles; a torn read is over as soon as the writer's one pwrite is

_FILES = Files()


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell says: `seq` grows by at least one with every write of its writer."""

    term: int
    seq: int
    payload: bytes


def create_cell(
    path: Path, size: int = DEFAULT_SIZE, files: Files = _FILES, *, durable: bool = True
) -> None:
    """
    Create a cell of `size` bytes that was never written. FileExistsError when the name is taken.

    `durable=False` saves two fsyncs, for the thousands of cells of one attempt: a crash of the
    storage may lose the cell, which its writer then reports.
    """
    if size < HEADER_SIZE:
        raise CellError(f"{path}: a cell needs at least {HEADER_SIZE} bytes, not {size}")
    try:
        files.create_exclusive(path, bytes(size), durable=durable)
    except FileExistsError:
        raise
    except OSError as error:
        raise CellError(f"{path}: cannot create the cell: {_why(error)}") from error


def encode_cell(term: int, seq: int, payload: bytes) -> bytes:
    """The bytes of a cell, without the rest of the file."""
    fields = _FIELDS.pack(MAGIC, term, seq, len(payload))
    return fields + _CRC.pack(zlib.crc32(payload, zlib.crc32(fields))) + payload


def decode_cell(raw: bytes, path: Path) -> Cell | None:
    """The cell in a file's bytes; None when it was never written, CellError when torn."""
    header = raw[:HEADER_SIZE]
    if not any(header):
        return None
    if len(header) < HEADER_SIZE or not header.startswith(MAGIC):
        raise CellError(f"{path}: not a cell, or torn in its first bytes")
    _, term, seq, length = _FIELDS.unpack_from(raw)
    (crc,) = _CRC.unpack_from(raw, _FIELDS.size)
    payload = raw[HEADER_SIZE : HEADER_SIZE + length]
    if len(payload) < length or crc != zlib.crc32(payload, zlib.crc32(raw[: _FIELDS.size])):
        raise CellError(f"{path}: the cell is torn")
    return Cell(term, seq, payload)


def read_cell(path: Path, files: Files = _FILES) -> Cell | None:
    """
    Read a cell; None when it was created but never written.

    CellError when it cannot be read or stays torn (about 30 ms later): that is "cannot read", which
    says nothing about its writer.
    """
    pause_s = _FIRST_PAUSE_S
    for tries_left in reversed(range(_READ_TRIES)):
        raw = _read(path, files)
        try:
            return decode_cell(raw, path)
        except CellError:
            if not tries_left:
                raise
        time.sleep(pause_s)
        pause_s *= 2
    raise AssertionError("the last try returns or raises")


class CellWriter:
    """
    The one writer of a cell that exists. Not for several threads at once.

    All that goes wrong is a CellError with the path; after one, `write` may be tried again.
    """

    def __init__(self, path: Path, term: int, files: Files = _FILES) -> None:
        self.path = path
        self._term = term
        self._files = files
        raw = _read(path, files)
        self.capacity = len(raw) - HEADER_SIZE
        if self.capacity < 0:
            raise CellError(f"{path}: the cell was not created at full size, only {len(raw)} bytes")
        self._seq = _last_seq(raw, path)
        self._fd: int | None = None

    def write(self, payload: bytes) -> int:
        """Rewrite the cell, durably; the new `seq`."""
        if len(payload) > self.capacity:
            raise CellError(
                f"{self.path}: a payload of {len(payload)} bytes is "
                f"{len(payload) - self.capacity} bytes too long for this cell"
            )
        # The number is spent even if the write fails: some of it may have landed, and two payloads
        # under one number would hide a change from whoever compares numbers.
        self._seq += 1
        data = encode_cell(self._term, self._seq, payload)
        try:
            if self._fd is None:
                self._fd = self._files.open_in_place(self.path)
            self._files.write_in_place(self._fd, data)
        except OSError as error:
            self.close()  # a stale handle (the server moved) is cured by opening again
            raise CellError(f"{self.path}: cannot write the cell: {_why(error)}") from error
        return self._seq

    def close(self) -> None:
        """Close the file; a later `write` opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                self._files.close(fd)


def _last_seq(raw: bytes, path: Path) -> int:
    try:
        cell = decode_cell(raw, path)
    except CellError:
        if not raw.startswith(MAGIC):
            return 0
        # An earlier life of this writer died in mid-write. Big-endian, so whatever mixture of the
        # old and the new number stands there is not below the old one, and the next is above
        # both.
        return int(_FIELDS.unpack_from(raw)[2])
    return cell.seq if cell else 0


def _read(path: Path, files: Files) -> bytes:
    try:
        return files.read(path, fresh=True)
    except OSError as error:
        raise CellError(f"{path}: cannot read the cell: {_why(error)}") from error


def _why(error: OSError) -> str:
    return error.strerror or str(error)
