"""
What a rank is told by its agent, as environment variables; each name is spelled here alone.

All are absent outside trainctl. torchrun's own RANK, LOCAL_RANK and WORLD_SIZE come beside them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

BEATS = "TRAINCTL_BEATS"
"""Node-local folder of beats and flags; that it is set is what "under trainctl" means."""

ATTEMPT = "TRAINCTL_ATTEMPT"
"""The attempt's number, in decimal."""

RUN = "TRAINCTL_RUN"
RUN_DIR = "TRAINCTL_RUN_DIR"

NODE = "TRAINCTL_NODE"
"""The node's name, as the run knows it."""

TRAINER_LOG = "TRAINCTL_TRAINER_LOG"
"""trainer.jsonl of this attempt; global rank 0 appends to it."""

CHECKPOINT_DIR = "TRAINCTL_CHECKPOINT_DIR"

RESUME = "TRAINCTL_RESUME"
"""The committed checkpoint to start from, as the supervisor chose; set and empty: from scratch."""

RESUME_STEP = "TRAINCTL_RESUME_STEP"
"""Its step, in decimal; needed only where the path's name does not say it."""

INJECT = "TRAINCTL_INJECT"
"""A plan of faults, for tests and the demo alone; see `trainctl.train.inject`."""

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""torchelastic's: where a rank leaves its last words."""


@dataclass(frozen=True, slots=True)
class Rank:
    """Who this process is. Alone and outside trainctl: rank 0 of 1, attempt 0."""

    rank: int = 0
    local_rank: int = 0
    world: int = 1
    attempt: int = 0
    supervised: bool = False


def rank() -> Rank:
    """Who this process is, by its environment."""
    return Rank(
        rank=_number("RANK", 0),
        local_rank=_number("LOCAL_RANK", 0),
        world=_number("WORLD_SIZE", 1),
        attempt=_number(ATTEMPT, 0),
        supervised=bool(os.environ.get(BEATS)),
    )


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else default
