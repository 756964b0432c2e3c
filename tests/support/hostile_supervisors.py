"""
Two supervisors of one run in one process, each seeing the run directory through a hostile layer.

usage: hostile_supervisors.py RUN HIDE_S STALE_S FREEZE_AFTER_S FREEZE_S
New names are hidden from the other one for HIDE_S, reads are up to STALE_S old, and some seconds
after the start every call of both blocks for FREEZE_S. Prints what each says, and the exit codes.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from support.hostile_files import HostileStore
from trainctl.base.clock import SystemClock
from trainctl.base.rundir import RunDir
from trainctl.usecases.supervisor import Tools, supervise

run = RunDir(Path(sys.argv[1]))
hide_s, stale_s, freeze_after_s, freeze_s = (float(word) for word in sys.argv[2:6])
store = HostileStore(SystemClock(), hide_s=hide_s, stale_s=stale_s)
codes: dict[str, int] = {}


def supervisor(name: str) -> None:
    codes[name] = supervise(
        run,
        say=lambda line: print(f"{name}: {line}", flush=True),
        tools=Tools(files=store.observer(name)),
    )


threads = [threading.Thread(target=supervisor, args=(name,), daemon=True) for name in ("a", "b")]
for thread in threads:
    thread.start()
    time.sleep(1.0)
if freeze_s:
    time.sleep(freeze_after_s)
    print("frozen", flush=True)
    store.freeze(freeze_s)
for thread in threads:
    thread.join()
print(f"codes {codes}", flush=True)
sys.exit(max(codes.values()))
