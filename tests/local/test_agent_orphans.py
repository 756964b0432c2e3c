"""Nothing of an attempt lives 5 s after its agent, its guards or its launcher were killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from support.node_bench import RANK, Bench, bench, wait_for
from trainctl.base.processes import Identity, send_signal
from trainctl.model.agent import Launcher

COMMAND = (sys.executable, str(RANK), "helper=1", "deaf=1")


def parts(one: Bench) -> dict[str, list[Identity]]:
    """The living processes of the bench by what they are."""
    found: dict[str, list[Identity]] = {}
    for each in one.alive():
        argv = Path(f"/proc/{each.pid}/cmdline").read_bytes().split(b"\0")
        kind = "rank"
        if any(part.endswith(b"guard.py") for part in argv[:5]):
            kind = "inner guard" if b"--start-file" in argv[:12] else "outer guard"
        elif b"trainctl.node.agent" in argv[:4]:
            kind = "agent"
        elif b"torch.distributed.run" in argv[:4]:
            kind = "torchrun"
        elif b"time.sleep(600)" in argv[-2]:
            kind = "helper"
        found.setdefault(kind, []).append(each)
    return found


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped rank"])
@pytest.mark.parametrize(
    "victims",
    [
        ("agent",),
        ("outer guard",),
        ("agent", "outer guard"),
        ("inner guard",),
        ("agent", "inner guard"),
    ],
    ids="+".join,
)
def test_nothing_outlives(tmp_path: Path, victims: tuple[str, ...], stopped: bool) -> None:
    with bench(tmp_path, command=COMMAND, env={"TRAINCTL_FAILED_GRACE_S": "1"}) as one:
        ranks = one.launch().wait_steps().ranks
        wait_for(lambda: len(parts(one).get("helper", [])) == 2)
        if stopped:
            os.kill(ranks[0].pid, signal.SIGSTOP)
        for each in [identity for kind in victims for identity in parts(one)[kind]]:
            assert send_signal(each, signal.SIGKILL)
        one.wait_nothing_alive(5.0)


@pytest.mark.torch
@pytest.mark.timeout(120)
def test_nothing_outlives_agent_guard_and_torchrun_under_a_real_torchrun(tmp_path: Path) -> None:
    with bench(tmp_path, command=COMMAND, launcher=Launcher.TORCHRUN) as one:
        one.launch().wait_state(lambda s: sum(r.step > 0 for r in s.ranks) == 2, bound_s=40)
        state = one.state()
        assert state is not None
        os.kill(state.ranks[1].pid, signal.SIGSTOP)
        found = parts(one)
        assert len(found["torchrun"]) == 1
        assert len(found["outer guard"]) == 2
        for each in (*found["agent"], *found["outer guard"]):
            send_signal(each, signal.SIGKILL)
        one.wait_nothing_alive(5.0)
