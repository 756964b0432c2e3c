"""Beats and flags: what a rank writes is what the agent reads, whole or not at all."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from trainctl.train.beats import (
    Beat,
    BeatWriter,
    Flags,
    Phase,
    beat_file,
    create_beats,
    read_beat,
    read_flags,
    set_flag,
)


def read(folder: Path, local_rank: int = 0) -> Beat:
    beat = read_beat(folder, local_rank)
    assert beat is not None
    return beat


def test_a_rank_that_never_beat_reads_as_none(tmp_path: Path) -> None:
    create_beats(tmp_path, 2)
    assert read_beat(tmp_path, 0) is None
    with pytest.raises(FileNotFoundError):
        read_beat(tmp_path, 2)


def test_what_was_beaten_is_read(tmp_path: Path) -> None:
    create_beats(tmp_path, 2)
    before = time.monotonic_ns()
    writer = BeatWriter(tmp_path, 1)
    assert read(tmp_path, 1).phase == "init"
    assert read(tmp_path, 1).step == -1
    writer.beat(7)
    writer.committed(5)
    beat = read(tmp_path, 1)
    assert (beat.step, beat.committed, beat.pid, beat.phase) == (7, 5, os.getpid(), "step")
    assert before <= beat.phase_ns <= beat.beat_ns <= time.monotonic_ns()
    assert read_beat(tmp_path, 0) is None


def test_every_write_is_a_sign_of_life_with_a_higher_number(tmp_path: Path) -> None:
    create_beats(tmp_path, 1)
    writer = BeatWriter(tmp_path, 0)
    seen = [read(tmp_path)]
    for act in (
        lambda: writer.beat(1),
        lambda: writer.enter(Phase.EVAL),
        lambda: writer.committed(1),
    ):
        act()
        seen.append(read(tmp_path))
    assert [beat.seq for beat in seen] == [1, 3, 4, 5]  # the first step begins a phase, too
    assert [beat.phase for beat in seen] == ["init", "step", "eval", "eval"]
    assert seen[3].phase_ns == seen[2].phase_ns > seen[1].phase_ns


def test_a_beat_within_a_phase_does_not_end_it_but_the_first_one_ends_init(tmp_path: Path) -> None:
    create_beats(tmp_path, 1)
    writer = BeatWriter(tmp_path, 0)
    writer.beat(1)
    assert read(tmp_path).phase == "step"
    writer.enter(Phase.SAVE)
    writer.beat(2)
    assert read(tmp_path).phase == "save"


@pytest.mark.parametrize("cut", range(0, 32, 8))
def test_a_rank_that_dies_in_the_middle_of_a_beat_leaves_the_one_before(
    tmp_path: Path, cut: int
) -> None:
    create_beats(tmp_path, 1)
    writer = BeatWriter(tmp_path, 0)
    writer.beat(1)
    whole = beat_file(tmp_path, 0).read_bytes()
    writer.beat(2)
    later = beat_file(tmp_path, 0).read_bytes()
    slot = next(i for i in (0, 32) if whole[i : i + 32] != later[i : i + 32])
    # pack_into clears the slot and fills it from its beginning: dead after `cut` bytes of it
    torn = later[: slot + cut] + bytes(32 - cut) + later[slot + 32 :]
    beat_file(tmp_path, 0).write_bytes(torn)
    assert read(tmp_path).step == 1
    BeatWriter(tmp_path, 0).beat(3)
    assert read(tmp_path).step == 3


def test_a_folder_taken_up_again_goes_on_counting(tmp_path: Path) -> None:
    create_beats(tmp_path, 1)
    BeatWriter(tmp_path, 0).beat(4)
    again = BeatWriter(tmp_path, 0)
    assert read(tmp_path).seq == 4
    again.beat(5)
    assert read(tmp_path).step == 5


def test_a_phase_of_a_newer_library_reads_as_nothing(tmp_path: Path) -> None:
    create_beats(tmp_path, 1)
    writer = BeatWriter(tmp_path, 0)
    writer.beat(1)
    writer._phase = 99
    writer.committed(1)
    assert read(tmp_path).phase == ""


def test_a_rank_that_beats_as_fast_as_it_can_is_never_read_torn(tmp_path: Path) -> None:
    create_beats(tmp_path, 1)
    BeatWriter(tmp_path, 0).beat(0)
    first = read(tmp_path)
    pid = os.fork()
    if pid == 0:
        writer = BeatWriter(tmp_path, 0)
        step = 0
        while True:
            step += 1
            writer.beat(step)
    try:
        seen, end = 0, time.monotonic() + 2.0
        last = 0
        while seen < 2_000 and time.monotonic() < end:
            beat = read_beat(tmp_path, 0)
            if beat is None or beat.pid != pid or beat.step < 1:
                continue
            assert beat.seq == first.seq + 2 + beat.step  # two states, then a number a beat
            assert beat.seq >= last
            last = beat.seq
            seen += 1
        assert seen > 10
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_flags_reach_a_rank_that_mapped_them_before(tmp_path: Path) -> None:
    create_beats(tmp_path, 1)
    writer = BeatWriter(tmp_path, 0)
    assert not writer.stop()
    assert writer.dump() == 0
    set_flag(tmp_path, dump=300)
    assert not writer.stop()
    assert writer.dump() == 300
    set_flag(tmp_path, stop=1)
    assert writer.stop()
    assert read_flags(tmp_path) == Flags(stop=1, dump=300)
    set_flag(tmp_path, stop=0)
    assert not writer.stop()
    assert read_flags(tmp_path) == Flags(stop=0, dump=300)


@pytest.mark.parametrize("cut", range(0, 48, 8))
def test_a_rank_that_dies_as_a_phase_begins_leaves_the_phase_before(
    tmp_path: Path, cut: int
) -> None:
    create_beats(tmp_path, 1)
    writer = BeatWriter(tmp_path, 0)
    writer.enter(Phase.EVAL)
    whole = beat_file(tmp_path, 0).read_bytes()
    writer.enter(Phase.SAVE)
    later = beat_file(tmp_path, 0).read_bytes()
    slot = next(i for i in (64, 112) if whole[i : i + 48] != later[i : i + 48])
    torn = later[: slot + cut] + bytes(48 - cut) + later[slot + 48 :]
    beat_file(tmp_path, 0).write_bytes(torn)
    assert read(tmp_path).phase == "eval"
