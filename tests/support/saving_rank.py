"""
One rank without torch that saves a step and exits 0 if it was committed, 1 if not.

usage: saving_rank.py STEP BYTES; where, and as which attempt, comes by the environment.
"""

from __future__ import annotations

import sys

from trainctl import train

step, size = int(sys.argv[1]), int(sys.argv[2])
checkpoints = train.Checkpoints()
with checkpoints.saving(step) as folder:
    for name in ("model.pt", "rank-0.pt"):
        (folder / name).write_bytes(bytes([step % 256]) * size)
sys.exit(checkpoints.committed_step != step)
