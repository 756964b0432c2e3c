"""Cells: whole or torn, never a value that nobody wrote."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.hostile_files import HostileFiles, HostileStore
from support.simulated_time import ManualClock
from trainctl.base.cells import (
    DEFAULT_SIZE,
    HEADER_SIZE,
    Cell,
    CellWriter,
    create_cell,
    decode_cell,
    encode_cell,
    read_cell,
)
from trainctl.model.errors import CellError

PAYLOADS = st.binary(max_size=200)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cell"


def hostile() -> HostileFiles:
    return HostileStore(ManualClock()).observer("a")


def test_a_cell_that_was_created_reads_as_never_written(path: Path) -> None:
    create_cell(path)
    assert path.stat().st_size == DEFAULT_SIZE
    assert read_cell(path) is None


def test_a_cell_is_created_once(path: Path) -> None:
    create_cell(path)
    with pytest.raises(FileExistsError):
        create_cell(path)


def test_what_was_written_is_read_and_the_number_grows(path: Path) -> None:
    create_cell(path)
    writer = CellWriter(path, 7)
    assert writer.write(b"one") == 1
    assert writer.write(b"two") == 2
    assert read_cell(path) == Cell(7, 2, b"two")


def test_a_shorter_payload_over_a_longer_one_leaves_nothing_of_it(path: Path) -> None:
    create_cell(path)
    writer = CellWriter(path, 1)
    writer.write(b"x" * 5000)
    writer.write(b"")
    assert read_cell(path) == Cell(1, 2, b"")


def test_the_file_never_changes_its_size(path: Path) -> None:
    create_cell(path, 512)
    writer = CellWriter(path, 1)
    writer.write(b"x" * writer.capacity)
    assert path.stat().st_size == 512


def test_a_payload_that_is_too_long_says_by_how_much_and_changes_nothing(path: Path) -> None:
    create_cell(path, 100)
    writer = CellWriter(path, 1)
    writer.write(b"old")
    with pytest.raises(CellError, match=f"{path}: .* 3 bytes too long"):
        writer.write(b"x" * (writer.capacity + 3))
    assert read_cell(path) == Cell(1, 1, b"old")


def test_a_new_writer_goes_on_after_the_number_in_the_file(path: Path) -> None:
    create_cell(path)
    CellWriter(path, 1).write(b"a")
    assert CellWriter(path, 2).write(b"b") == 2


def test_a_writer_that_died_in_mid_write_can_be_started_again(path: Path) -> None:
    create_cell(path)
    CellWriter(path, 1).write(b"aaaaaaaa")
    torn = encode_cell(1, 2, b"bbbbbbbb")[:-3]
    path.write_bytes(torn + path.read_bytes()[len(torn) :])
    with pytest.raises(CellError, match="torn"):
        read_cell(path)
    assert CellWriter(path, 1).write(b"c") == 3
    assert read_cell(path) == Cell(1, 3, b"c")


def test_a_write_that_failed_is_an_error_with_the_path_and_can_be_repeated(path: Path) -> None:
    files = hostile()
    create_cell(path, files=files)
    writer = CellWriter(path, 1, files)
    writer.write(b"a")
    files.failing, files.torn_at = (1, OSError(errno.EIO, "Input/output error")), 20
    with pytest.raises(CellError, match=f"{path}: cannot write the cell: Input/output error"):
        writer.write(b"b")
    assert writer.write(b"c") == 3, "a number is never used twice, whatever landed under it"
    assert read_cell(path) == Cell(1, 3, b"c")


def test_a_missing_cell_is_an_error_with_the_path(path: Path) -> None:
    with pytest.raises(CellError, match=f"{path}: cannot read the cell: No such file"):
        read_cell(path)


def test_another_file_in_its_place_is_not_a_cell(path: Path) -> None:
    path.write_bytes(b"#!/bin/sh\n" * 100)
    with pytest.raises(CellError, match="not a cell"):
        read_cell(path)


def test_a_pipe_in_its_place_does_not_block(path: Path) -> None:
    import os

    os.mkfifo(path)
    with pytest.raises(CellError, match="not a regular file"):
        read_cell(path)


def test_a_cell_whose_creator_died_before_filling_it_is_never_written(path: Path) -> None:
    path.write_bytes(b"")
    assert read_cell(path) is None
    with pytest.raises(CellError, match="not created at full size"):
        CellWriter(path, 1)


@given(old=PAYLOADS, new=PAYLOADS, cut=st.integers(0, 400), written=st.booleans())
def test_a_write_torn_at_any_byte_is_never_read_as_another_value(
    old: bytes, new: bytes, cut: int, written: bool
) -> None:
    before = (encode_cell(3, 8, old) if written else b"").ljust(400, b"\0")
    after = encode_cell(3, 9, new)
    raw = after[:cut] + before[len(after[:cut]) :]
    try:
        cell = decode_cell(raw, Path("cell"))
    except CellError:
        return
    assert cell in (Cell(3, 8, old) if written else None, Cell(3, 9, new))


@given(payload=PAYLOADS, at=st.integers(0, HEADER_SIZE + 199), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_read_as_another_value(payload: bytes, at: int, bit: int) -> None:
    raw = bytearray(encode_cell(3, 9, payload))
    raw[at % len(raw)] ^= 1 << bit
    with pytest.raises(CellError):
        decode_cell(bytes(raw), Path("cell"))


def test_importing_it_imports_the_standard_library_alone() -> None:
    code = (
        "import sys, trainctl.base.cells, trainctl.base.terms; "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('msgspec', 'torch', 'typer')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
