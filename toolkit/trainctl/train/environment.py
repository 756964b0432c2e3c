"""
What a rank is told by its agent, as environment variables; each name is spelled here alone.

All are absent outside trainctl. torchrun's own RANK, LOCAL_RANK and WORLD_SIZE come beside them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

#: Node-local folder of beats and flags; its presence is what "under trainctl" means.
BEATS = "TRAINCTL_BEATS"
#: The attempt's number, in decimal.
ATTEMPT = "TRAINCTL_ATTEMPT"
#: The run's name or id, and the run directory.
RUN = "TRAINCTL_RUN"
RUN_DIR = "TRAINCTL_RUN_DIR"
#: The node's name, as the run knows it.
NODE = "TRAINCTL_NODE"
#: trainer.jsonl of this attempt; global rank 0 appends to it.
TRAINER_LOG = "TRAINCTL_TRAINER_LOG"
#: Where checkpoints go.
CHECKPOINT_DIR = "TRAINCTL_CHECKPOINT_DIR"
#: The committed checkpoint to start from, by the supervisor's choice; set and empty: from scratch.
RESUME = "TRAINCTL_RESUME"
#: A plan of faults, for tests and the demo only; see `trainctl.train.inject`.
INJECT = "TRAINCTL_INJECT"


@dataclass(frozen=True, slots=True)
class Rank:
    """Who this process is. Alone and outside trainctl: rank 0 of 1, attempt 0."""

    rank: int = 0
    local_rank: int = 0
    world: int = 1
    attempt: int = 0


def rank() -> Rank:
    """Who this process is, by its environment."""
    return Rank(
        rank=_number("RANK", 0),
        local_rank=_number("LOCAL_RANK", 0),
        world=_number("WORLD_SIZE", 1),
        attempt=_number(ATTEMPT, 0),
    )


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
