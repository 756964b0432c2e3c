"""
Ranks of one gloo group for tests: torch is imported once, then each rank is forked from that.

A program imports this, defines `body(rank)` and calls `run_ranks`; every rank is a process of its
own, so it may be killed, stopped or told to exit.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from trainctl.train import this_rank
from trainctl.train.beats import create_beats


def run_ranks(folder: Path, world: int, body: Callable[[int], object]) -> dict[str, object]:
    """
    Run `body` in `world` forked ranks under what looks like an agent, and wait for them.

    → {"0": what body returned in rank 0, or {"error": …}, …, "codes": wait statuses}
    """
    folder.mkdir(parents=True, exist_ok=True)
    create_beats(folder / "beats", world)
    (folder / "trainer.jsonl").touch()
    pids = [_fork(folder, rank, world, body) for rank in range(world)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    said: dict[str, object] = {"codes": codes}
    for rank in range(world):
        path = folder / f"said.{rank}"
        said[str(rank)] = json.loads(path.read_text()) if path.exists() else None
    return said


def _fork(folder: Path, rank: int, world: int, body: Callable[[int], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world),
            GLOO_SOCKET_IFNAME="lo",
            TRAINCTL_BEATS=str(folder / "beats"),
            TRAINCTL_TRAINER_LOG=str(folder / "trainer.jsonl"),
            TRAINCTL_CHECKPOINT_DIR=str(folder / "checkpoints"),
        )
        os.environ.setdefault("TRAINCTL_ATTEMPT", "1")
        this_rank.made.clear()
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=20),
        )
        result = body(rank)
        (folder / f"said.{rank}").write_text(json.dumps(result))
        dist.barrier()
        code = 0
    except BaseException as error:  # noqa: BLE001 - the end of a forked process, whatever came
        traceback.print_exc()
        (folder / f"said.{rank}").write_text(json.dumps({"error": type(error).__name__}))
    finally:
        sys.stderr.flush()
        os._exit(code)
