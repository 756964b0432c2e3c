"""Two ranks whose saves fail on one of them: for tests/local/test_commit_stages.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from support.forked_ranks import run_ranks
from trainctl import train


def one_full_disk(rank: int) -> list[int]:
    """Step 2 fails on rank 1 alone; what each rank believes to be committed after each save."""
    checkpoints = train.Checkpoints()
    believed = []
    for step in (1, 2, 3):
        with checkpoints.saving(step) as folder:
            (folder / f"rank-{rank}.pt").write_text(str(step))
            if rank == 0:
                (folder / "notes").mkdir(exist_ok=True)
                (folder / "notes" / "shared.txt").write_text("x")
            if (step, rank) == (2, 1):
                raise OSError(28, "No space left on device")
        believed.append(checkpoints.committed_step)
    return believed


def killed(rank: int) -> None:
    """Saves once; a fault is planned for rank 1."""
    checkpoints = train.Checkpoints()
    with checkpoints.saving(9) as folder:
        (folder / f"rank-{rank}.pt").write_text("x")


def main() -> None:
    """One JSON object: what the ranks said."""
    root = Path(sys.argv[1])
    said = {"full": run_ranks(root / "full", 2, one_full_disk)}
    plan = root / "plan.json"
    fault = {"id": "k", "point": "save.shard_written", "rank": 1, "action": "sigkill"}
    plan.write_text(json.dumps({"faults": [fault]}))
    os.environ["TRAINCTL_INJECT"] = str(plan)
    said["killed"] = run_ranks(root / "killed", 2, killed)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
