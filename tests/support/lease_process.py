"""
A process that wants a run, for tests of the lease with real signals.

    python lease_process.py race FOLDER BEGIN_MS ROUNDS
        At BEGIN_MS, and every 250 ms after, try for FOLDER/0, FOLDER/1, …; prints the rounds won.
    python lease_process.py hold FOLDER
        Stand by, then act every 20 ms while it is ours: prints `TERM MONO_MS` for each act.

Times are CLOCK_MONOTONIC, the same for all processes of a host. `hold` exits with 7 on LeaseLost.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from trainctl.adapters.lease import LeaseInfo, Standby
from trainctl.base.rundir import RunDir
from trainctl.model.errors import LeaseLost

ROUND_MS = 250


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def race(folder: Path, begin_ms: int, rounds: int) -> None:
    won = []
    for number in range(rounds):
        standby = Standby(RunDir(folder / str(number)), LeaseInfo(pid=os.getpid()))
        while now_ms() < begin_ms + number * ROUND_MS:
            pass  # sleeping would not wake both at one instant
        leases = [standby.poll() for _ in range(3)]
        won += [number for lease in leases if lease is not None]
    print(*won)


def hold(folder: Path) -> int:
    standby = Standby(RunDir(folder), LeaseInfo(pid=os.getpid()))
    print("ready", flush=True)
    while (lease := standby.poll()) is None:
        time.sleep(0.2)
    lease.start()
    while True:
        lease.tick()
        try:
            lease.check()
        except LeaseLost as lost:
            print(lost, file=sys.stderr)
            return 7
        print(lease.term, now_ms(), flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[1] == "race":
        race(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(hold(Path(sys.argv[2])))
