"""
What an earlier attempt left on this node: processes of our own user whose environment names this
run, this node and a lower attempt.

A parent-death signal follows a parent's thread, not the parent, and a guard can be killed:
something may slip through, and then holds the GPUs' memory.
"""

from __future__ import annotations

import os

from trainctl.base.processes import Identity, ancestors, kill_all, own_processes_with

KILL_BOUND_S = 5.0


def sweep_strays(run_id: str, node: str, attempt: int) -> tuple[Identity, ...]:
    """KILL what lower attempts of this run left on this node; what was found."""
    spared = ancestors(os.getpid()) | {os.getpid()}
    mine = own_processes_with({"TRAINCTL_RUN_ID": run_id, "TRAINCTL_NODE": node})
    strays = tuple(
        identity
        for identity, environment in mine
        if identity.pid not in spared and _is_lower(environment.get("TRAINCTL_ATTEMPT"), attempt)
    )
    if strays:
        kill_all(strays, KILL_BOUND_S)
    return strays


def _is_lower(value: str | None, attempt: int) -> bool:
    return value is not None and value.isdecimal() and int(value) < attempt
