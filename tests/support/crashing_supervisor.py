"""
A supervisor that is killed (or stopped) at one instant: before an effect, after it, or at a Cluster
call.

usage: crashing_supervisor.py RUN AT WHEN SIGNAL
AT is an action's class name (`Launch`) with WHEN `before` (its intent is on disk, nothing was done)
or `after` (done, no event of it on disk), or `cluster.launch` with WHEN `before` or `after`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainctl.base.rundir import RunDir
from trainctl.model.events import AnyEvent
from trainctl.policy import actions as do
from trainctl.policy.state import RunState
from trainctl.usecases.effects import Effects
from trainctl.usecases.supervisor import Tools, supervise
from trainctl.usecases.worlds import make_cluster

run, at, when, signame = sys.argv[1:5]
SIGNUM = signal.Signals[signame]
done = False


def strike() -> None:
    global done
    if not done:
        done = True
        os.kill(os.getpid(), SIGNUM)
        time.sleep(0.5)  # this thread may run on for a moment before the signal stops it


class CrashingEffects(Effects):
    """Strikes before or after the action `at`."""

    def perform(self, action: do.Action, state: RunState) -> Iterator[AnyEvent]:
        mine = type(action).__name__ == at
        if mine and when == "before":
            strike()
        if mine and when == "after":
            events = list(super().perform(action, state))
            strike()
            yield from events
        else:
            yield from super().perform(action, state)


class CrashingCluster:
    """Strikes before or after a call of the Cluster port."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if at != f"cluster.{name}":
            return method

        def call(*args: Any) -> Any:
            if when == "before":
                strike()
            result = method(*args)
            if when == "after":
                strike()
            return result

        return call


sys.exit(
    supervise(
        RunDir(Path(run)),
        tools=Tools(
            effects_of=CrashingEffects,
            cluster_of=lambda *args: CrashingCluster(make_cluster(*args)),
        ),
    )
)
