"""
A trainer of the standard library alone, for tests of the supervisor: real processes, no torch
import.

Each rank counts steps and beats; rank 0 alone commits checkpoints. Every start and step is a line
`attempt rank step pid time_ns` in RUN_DIR/toy/rank-R.log, so that a test can see who trained when.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

RANK = int(os.environ.get("RANK", "0"))
os.environ["WORLD_SIZE"] = "1"  # rank 0 saves alone: there is no process group to ask the others

from trainctl import train  # noqa: E402
from trainctl.train import inject  # noqa: E402


def main() -> None:
    """Count to --steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--pace-s", type=float, default=0.02)
    parser.add_argument("--ballast-kb", type=int, default=0)
    parser.add_argument("--fail-at-start", action="store_true")
    args = parser.parse_args()
    log_dir = Path(os.environ["TRAINCTL_RUN_DIR"]) / "toy"
    log_dir.mkdir(exist_ok=True)
    log = os.open(log_dir / f"rank-{RANK}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    attempt = os.environ["TRAINCTL_ATTEMPT"]

    def note(step: int) -> None:
        os.write(log, f"{attempt} {RANK} {step} {os.getpid()} {time.monotonic_ns()}\n".encode())

    checkpoints = train.Checkpoints()
    found = checkpoints.latest()
    start = found.step if found else 0
    if RANK == 0:
        train.loaded(start, str(found.path) if found else "")
    note(start)
    if args.fail_at_start:
        raise RuntimeError("this program never works")
    for step in range(start + 1, args.steps + 1):
        inject.point("step", step)
        time.sleep(args.pace_s)
        train.beat(step)
        note(step)
        stop = train.stop_agreed()
        if RANK == 0 and (stop or step % args.save_every == 0):
            with checkpoints.saving(step) as folder:
                (Path(folder) / "state.txt").write_text(f"{step}\n" + "x" * 1024 * args.ballast_kb)
        if stop:
            return
    if RANK == 0:
        train.done(args.steps, steps=args.steps)


main()
