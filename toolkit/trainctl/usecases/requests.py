"""
Asking a run to stop: a request is written for its supervisor, and waited for where that is
wanted.
"""

from __future__ import annotations

import getpass
import os
import shlex

import msgspec

from trainctl.adapters.journal import read_journal
from trainctl.adapters.requests import Request, write_request
from trainctl.base.clock import Clock, SystemClock
from trainctl.base.rundir import RunDir
from trainctl.model.errors import ConfigError
from trainctl.policy.evolve import fold
from trainctl.policy.state import Phase, RunState
from trainctl.usecases.endings import ending_line
from trainctl.usecases.status import Holder, status_of

WAIT_S = 0.25


class StopAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What `trainctl stop` did. `request` is "" where there was nothing to ask for."""

    run_dir: str
    request: str
    attempt: int
    now: bool
    ended: bool
    text: str


def ask_stop(
    run: RunDir, *, now: bool = False, dry_run: bool = False, clock: Clock | None = None
) -> StopAsked:
    """
    Ask the run to stop: in order, with a save, or at once. A run that has ended is left alone,
    which is no error.
    """
    clock = clock or SystemClock()
    state = fold(read_journal(run).events)
    if state.created is None:
        raise ConfigError(f"{run.root}: the journal has no run_created; nothing to stop")
    if state.phase is Phase.ENDED:
        return StopAsked(
            run_dir=str(run.root),
            request="",
            attempt=state.attempt,
            now=now,
            ended=True,
            text=f"nothing to stop: {ending_line(state, run.root)}",
        )
    name = f"stop-{clock.utc_ms()}-{os.getpid()}"
    if not dry_run:
        attempt = state.attempt if state.attempt_open else 0
        request = Request(
            name=name, kind="stop", by=_whoami(), at_ms=clock.utc_ms(), now=now, attempt=attempt
        )
        write_request(run, request)
    return StopAsked(
        run_dir=str(run.root),
        request="" if dry_run else name,
        attempt=state.attempt,
        now=now,
        ended=False,
        text=_text(run, state, now=now, dry_run=dry_run),
    )


def wait_for_stop(run: RunDir, timeout_s: float, clock: Clock | None = None) -> RunState:
    """The state when the run has ended, or when the time is up: look at its phase."""
    clock = clock or SystemClock()
    until_ms = clock.mono_ms() + int(timeout_s * 1000)
    while True:
        state = fold(read_journal(run).events)
        if state.phase is Phase.ENDED or clock.mono_ms() >= until_ms:
            return state
        clock.sleep(WAIT_S)


def _text(run: RunDir, state: RunState, *, now: bool, dry_run: bool) -> str:
    how = "end now, without a save" if now else "save and stop"
    if not state.attempt_open:
        how = "stop before another attempt"
    lead = f"{'would ask' if dry_run else 'asked'} {run.root} to {how}"
    path = shlex.quote(str(run.root))
    holder = status_of(run).holder
    if holder is None or holder.life in ("released", "dead"):
        return (
            f"{lead}; {_absent(holder)}, so nothing is done until one runs: "
            f"trainctl supervise {path}"
        )
    return f"{lead}; watch it with: trainctl status {path}"


def _absent(holder: Holder | None) -> str:
    if holder is not None and holder.life == "dead":
        return f"its supervisor (pid {holder.pid}) is dead"
    return "no supervisor owns it"


def _whoami() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
