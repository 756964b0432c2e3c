"""Ranks asked to stop at different moments end after the same step, with one checkpoint of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainctl.adapters.checkpoints import latest_committed
from trainctl.model.agent import AnyTrainerLine, StopAgreedLine

TESTS = Path(__file__).parents[1]
PYTHONPATH = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What the ranks of all scenarios said, and where they worked."""
    root = tmp_path_factory.mktemp("stop")
    env = {key: value for key, value in os.environ.items() if not key.startswith("TRAINCTL_")}
    done = subprocess.run(
        [sys.executable, str(TESTS / "support" / "stop_ranks.py"), str(root)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**env, "PYTHONPATH": PYTHONPATH},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), root


def ends(said: dict[str, Any], scenario: str) -> set[int | None]:
    ranks = said[scenario]
    assert ranks["codes"] == [0, 0, 0], ranks
    return {ranks[rank]["step"] for rank in "012"}


def committed(root: Path, scenario: str) -> list[int]:
    folder = root / scenario / "checkpoints"
    found = latest_committed(folder)
    assert not found.refused
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in folder.iterdir())


def stop_lines(root: Path, scenario: str) -> list[int]:
    decoder = msgspec.json.Decoder(AnyTrainerLine)
    lines = (root / scenario / "trainer.jsonl").read_bytes().splitlines()
    return [line.step for line in map(decoder.decode, lines) if isinstance(line, StopAgreedLine)]


def test_nobody_stops_unasked(said: tuple[dict[str, Any], Path]) -> None:
    assert ends(said[0], "never") == {None}
    assert committed(said[1], "never") == [15, 30]
    assert stop_lines(said[1], "never") == []


def test_a_stop_that_comes_within_a_step_ends_all_ranks_after_the_same_one(
    said: tuple[dict[str, Any], Path],
) -> None:
    (step,) = ends(said[0], "in_step")
    assert step is not None
    assert 7 <= step <= 9
    assert committed(said[1], "in_step") == [step]
    assert stop_lines(said[1], "in_step") == [step]


def test_a_stop_in_the_middle_of_a_save_ends_in_exactly_that_checkpoint(
    said: tuple[dict[str, Any], Path],
) -> None:
    assert ends(said[0], "in_save") == {20}
    assert committed(said[1], "in_save") == [10, 20]
    assert stop_lines(said[1], "in_save") == [20]
    assert {tuple(said[0]["in_save"][rank]["saves"]) for rank in "012"} == {(10, 20)}


def test_one_rank_that_sees_the_stop_is_enough_however_late_the_others_see_it(
    said: tuple[dict[str, Any], Path],
) -> None:
    (step,) = ends(said[0], "late")
    assert step in (6, 7)
    assert committed(said[1], "late") == [step]


def test_a_stop_that_no_rank_sees_yet_is_agreed_on_when_the_first_one_does(
    said: tuple[dict[str, Any], Path],
) -> None:
    (step,) = ends(said[0], "later")
    assert step in (16, 17)
    assert committed(said[1], "later") == [step]
