"""The demonstration itself, whole: real torch, every fault, and its own comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainctl.usecases.demo import FAULTS, NODES


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_names_every_fault_and_ends_with_the_undisturbed_run_s_bits(
    tmp_path: Path,
) -> None:
    base = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "trainctl", "demo", "--json", "--run-dir", str(base)],
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
        env={**os.environ, "COLUMNS": "80"},
    )
    told = json.loads(done.stdout)
    assert done.returncode == 0, (told["problems"], done.stderr[-6000:])
    assert told["ok"]
    assert told["loss_identical"]
    assert told["parameters_identical"]
    undisturbed, faulted = told["runs"]["undisturbed"], told["runs"]["faulted"]
    assert undisturbed["parameters_sha256"] == faulted["parameters_sha256"] != ""
    assert undisturbed["loss"] == faulted["loss"]
    assert [fault["fault"] for fault in told["faults"]] == [fault.value for fault in FAULTS]
    outcomes = [row["outcome"] for row in told["attempts"]]
    assert outcomes == [
        "app_error",
        "killed_unknown",
        "node_lost",
        "killed_unknown",
        "stop_operator",
        "finished",
    ]
    assert told["left_running"] == []
    assert told["healthy_quarantined"] == []
    assert all(len(row["seats"]) == NODES for row in told["attempts"])
