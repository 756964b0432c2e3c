"""The lease between real processes: started at once, killed, stopped and continued."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "lease_process.py"
ROUNDS = 20


class Process:
    """One `lease_process.py hold`; what it did goes to files."""

    def __init__(self, run: Path, folder: Path, name: str) -> None:
        self._acts = folder / f"{name}.out"
        self._err = folder / f"{name}.err"
        with self._acts.open("wb") as out, self._err.open("wb") as err:
            argv = [sys.executable, str(PROGRAM), "hold", str(run)]
            self.popen = subprocess.Popen(argv, stdout=out, stderr=err)

    def acts(self) -> list[tuple[int, int]]:
        """(term, CLOCK_MONOTONIC in ms) of each act."""
        whole = self._acts.read_text().rpartition("\n")[0]
        lines = [line.split() for line in whole.splitlines() if line != "ready"]
        return [(int(term), int(at_ms)) for term, at_ms in lines]

    def wait_for_acts(self, timeout_s: float, after: int = 0) -> list[tuple[int, int]]:
        deadline = time.monotonic() + timeout_s
        while len(acts := self.acts()) <= after:
            assert time.monotonic() < deadline, f"no act within {timeout_s} s: {self.stderr()}"
            time.sleep(0.05)
        return acts

    def wait_for_ready(self) -> None:
        deadline = time.monotonic() + 20
        while not self._acts.read_text().startswith("ready"):
            assert time.monotonic() < deadline, self.stderr()
            time.sleep(0.05)

    def stderr(self) -> str:
        return self._err.read_text()

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()


class Two:
    """A holder that acts, and a standby."""

    def __init__(self, folder: Path) -> None:
        run = folder / "run"
        run.mkdir()
        self.holder = Process(run, folder, "holder")
        self.holder.wait_for_acts(20)
        self.standby = Process(run, folder, "standby")
        self.standby.wait_for_ready()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    both = Two(tmp_path)
    yield both
    both.holder.end()
    both.standby.end()


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@pytest.mark.timeout(60)
def test_of_two_started_at_the_same_instant_exactly_one_owns_the_run(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        (tmp_path / str(number)).mkdir()
    argv = [sys.executable, str(PROGRAM), "race", str(tmp_path), str(now_ms() + 3000), str(ROUNDS)]
    pair = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    won = [process.communicate(timeout=50)[0].split() for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert sorted(map(int, won[0] + won[1])) == list(range(ROUNDS))


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_a_killed_holder_is_replaced_within_15_s(two: Two) -> None:
    killed_ms = now_ms()
    two.holder.end()
    term, at_ms = two.standby.wait_for_acts(30)[0]
    assert term == 2
    assert 9_000 < at_ms - killed_ms <= 15_000


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_a_stopped_holder_that_is_continued_loses_the_run_before_it_acts(two: Two) -> None:
    two.holder.popen.send_signal(signal.SIGSTOP)
    acts_before = len(two.standby.wait_for_acts(30))
    continued_ms = now_ms()
    two.holder.popen.send_signal(signal.SIGCONT)
    assert two.holder.popen.wait(10) == 7
    assert "term 1 is lost" in two.holder.stderr()
    assert all(at_ms < continued_ms for _, at_ms in two.holder.acts())
    more = two.standby.wait_for_acts(10, after=acts_before + 100)
    assert {term for term, _ in more} == {2}, "what the old holder still wrote changed nothing"
    assert two.standby.popen.poll() is None


@pytest.mark.timeout(60)
def test_a_holder_that_is_stopped_for_7_s_has_lost_it_though_nobody_took_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "run").mkdir()
    alone = Process(tmp_path / "run", tmp_path, "alone")
    try:
        alone.wait_for_acts(20)
        alone.popen.send_signal(signal.SIGSTOP)
        time.sleep(7)
        continued_ms = now_ms()
        alone.popen.send_signal(signal.SIGCONT)
        assert alone.popen.wait(10) == 7
        assert "it was not renewed for" in alone.stderr()
        assert all(at_ms < continued_ms for _, at_ms in alone.acts())
    finally:
        alone.end()
