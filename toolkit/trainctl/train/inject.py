"""
Faults on demand, for tests and the demo: a plan file says which rank fails where.

A no-op unless TRAINCTL_INJECT names a plan. The plan is read at every point, and may be replaced
(by rename) at any time:

    {"faults": [{"id": "kill-2", "point": "step", "rank": 2, "attempt": 1, "step": 40,
                 "action": "sigkill"}]}

`rank`, `attempt` and `step` may be left out: any. A fault fires at the first point of its name at
or after `step`, once in the run's life: whoever creates PLAN.ID.fired does it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trainctl.train.environment import INJECT, Rank, rank


class InjectedFault(RuntimeError):
    """The exception that a fault of action `exception` raises."""


class Point(StrEnum):
    """Where a fault may fire; the shipped library passes the save points, the trainer `step`."""

    STEP = "step"
    SAVE_BEGIN = "save.begin"
    SAVE_SHARD_WRITTEN = "save.shard_written"
    #: From here on rank 0 alone passes.
    SAVE_ALL_RANKS_DONE = "save.all_ranks_done"
    SAVE_MANIFEST_WRITTEN = "save.manifest_written"
    SAVE_RENAMED = "save.renamed"
    SAVE_MARKED = "save.marked"


class Action(StrEnum):
    """What happens at the point."""

    #: Raise InjectedFault(message).
    EXCEPTION = "exception"
    SIGKILL = "sigkill"
    #: sys.exit(code).
    EXIT = "exit"
    #: Wait `seconds`.
    SLEEP = "sleep"
    SIGSTOP = "sigstop"
    #: No point: the rank does not see a stop flag before `step`.
    HOLD_STOP = "hold_stop"


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault; None is any."""

    id: str
    action: Action
    point: str = Point.STEP
    rank: int | None = None
    attempt: int | None = None
    step: int | None = None
    message: str = "injected fault"
    seconds: float = 0.0
    code: int = 3

    def is_for(self, who: Rank) -> bool:
        """Whether this rank of this attempt is meant."""
        return self.rank in (None, who.rank) and self.attempt in (None, who.attempt)


def point(name: str, step: int | None = None) -> None:
    """A fault planned for this place fires here."""
    plan = os.environ.get(INJECT)
    if not plan:
        return
    who = rank()
    for fault in read_plan(Path(plan)):
        if fault.action is Action.HOLD_STOP or fault.point != name or not fault.is_for(who):
            continue
        if fault.step is not None and (step is None or step < fault.step):
            continue
        if _claim(Path(plan), fault, who, step):
            _fire(fault)


def holds_stop(step: int) -> bool:
    """Whether this rank is to overlook a stop flag at `step`."""
    plan = os.environ.get(INJECT)
    if not plan:
        return False
    who = rank()
    return any(
        fault.action is Action.HOLD_STOP and fault.is_for(who) and step < (fault.step or 0)
        for fault in read_plan(Path(plan))
    )


def read_plan(path: Path) -> tuple[Fault, ...]:
    """The faults of a plan; none where there is no plan yet. ValueError where it makes no sense."""
    try:
        data = json.loads(path.read_bytes())
        return tuple(
            Fault(**{**fault, "action": Action(fault["action"])}) for fault in data["faults"]
        )
    except FileNotFoundError:
        return ()
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a plan of faults: {type(error).__name__} {error}") from error


def fired_file(plan: Path, fault_id: str) -> Path:
    """Created by the rank in which the fault fires, just before it does."""
    return plan.with_name(f"{plan.name}.{fault_id}.fired")


def _claim(plan: Path, fault: Fault, who: Rank, step: int | None) -> bool:
    try:
        with fired_file(plan, fault.id).open("x", encoding="utf-8") as file:
            at_ms = time.time_ns() // 1_000_000
            said = {"rank": who.rank, "attempt": who.attempt, "step": step}
            json.dump({**said, "pid": os.getpid(), "at_ms": at_ms}, file)
    except FileExistsError:
        return False
    return True


def _fire(fault: Fault) -> None:
    match fault.action:
        case Action.EXCEPTION:
            raise InjectedFault(fault.message)
        case Action.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Action.SIGSTOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        case Action.EXIT:
            sys.exit(fault.code)
        case Action.SLEEP:
            time.sleep(fault.seconds)
        case Action.HOLD_STOP:  # no point of the program: see holds_stop
            return
