"""Three ranks that are asked to stop: each scenario of tests/local/test_stop_agreement.py."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from support.forked_ranks import run_ranks
from trainctl import train
from trainctl.train.beats import set_flag

STEPS = 40


def loop(save_every: int, at: dict[int, int], in_save: int = 0) -> dict[str, object]:
    """
    The loop of a trainer. At step `at[rank]` the agent's flag is set by that rank (its own node's
    agent would); `in_save`: rank 1 sets it while it saves that step. Says where it ended.
    """
    rank = int(os.environ["RANK"])
    beats = os.environ["TRAINCTL_BEATS"]
    checkpoints = train.Checkpoints()
    saves = []

    def save(step: int) -> None:
        with checkpoints.saving(step) as folder:
            (folder / f"rank-{rank}.pt").write_text(f"{rank} {step}")
            if step == in_save and rank == 1:
                set_flag(beats, stop=1)
        saves.append(step)

    for step in range(1, STEPS + 1):
        time.sleep(0.002 * rank)  # the ranks are never at one place at one time
        train.beat(step)
        if at.get(rank) == step:
            set_flag(beats, stop=1)
        if step % save_every == 0:
            save(step)
        if train.stop_agreed():
            if checkpoints.committed_step != step:
                save(step)
            assert train.stop_agreed()
            return {"step": step, "saves": saves}
    return {"step": None, "saves": saves}


def main() -> None:
    """One JSON object: what each rank of each scenario said."""
    root = Path(sys.argv[1])
    plan = root / "plan.json"
    hold = [{"id": f"h{r}", "action": "hold_stop", "rank": r, "step": 10 * (r + 1)} for r in (1, 2)]
    plan.write_text(json.dumps({"faults": hold}))
    said = {"never": run_ranks(root / "never", 3, lambda rank: loop(15, {}))}
    said["in_step"] = run_ranks(root / "in_step", 3, lambda rank: loop(100, {2: 7}))
    said["in_save"] = run_ranks(root / "in_save", 3, lambda rank: loop(10, {}, in_save=20))
    os.environ["TRAINCTL_INJECT"] = str(plan)
    said["late"] = run_ranks(root / "late", 3, lambda rank: loop(100, {0: 5}))
    hold[:0] = [{"id": "h0", "action": "hold_stop", "rank": 0, "step": 15}]
    plan.write_text(json.dumps({"faults": hold}))
    said["later"] = run_ranks(root / "later", 3, lambda rank: loop(100, {0: 5}))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
