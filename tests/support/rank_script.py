"""
A rank of the standard library alone: it beats, and does as its arguments say, until it is stopped.

    rank_script.py [RANK:]DEED=VALUE …

Deeds, for all ranks or the one named: `raise=STEP`, `exit=CODE` (at step 5), `save=SECONDS` (one
save at step 5), `helper=1` (a daemonised child), `steps=N` (end by itself), `deaf=1` (sees no
stop), `silent=1` (never beats), `stand=STEP` (beats no more).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from trainctl.train.beats import BeatWriter, Phase

HELPER = "import os,time; os.setsid(); os.fork() and os._exit(0); time.sleep(600)"


def deeds() -> dict[str, str]:
    found = {}
    for arg in sys.argv[1:]:
        who, _, deed = arg.rpartition(":")
        if who in ("", os.environ["RANK"]):
            key, _, value = deed.partition("=")
            found[key] = value
    return found


def save(beats: BeatWriter, seconds: float) -> None:
    beats.enter(Phase.SAVE)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05)
        beats.enter(Phase.SAVE)
    (Path(os.environ["TRAINCTL_RUN_DIR"]) / f"saved-{os.environ['RANK']}").touch()
    beats.enter(Phase.STEP)


def explode(step: int) -> None:
    raise ValueError(f"a bug at step {step}")


def main() -> None:
    do = deeds()
    beats = BeatWriter(os.environ["TRAINCTL_BEATS"], int(os.environ["LOCAL_RANK"]))
    if "helper" in do:
        subprocess.run([sys.executable, "-I", "-S", "-c", HELPER], check=True)
    for step in range(1, int(do.get("steps", 100_000)) + 1):
        if "silent" not in do and step < int(do.get("stand", 1_000_000)):
            beats.beat(step)
        if step == 5 and "save" in do:
            save(beats, float(do["save"]))
        if step == int(do.get("raise", 0)):
            explode(step)
        if step == 5 and "exit" in do:
            sys.exit(int(do["exit"]))
        if beats.stop() and "deaf" not in do:
            print("stopped after", step)
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main()
