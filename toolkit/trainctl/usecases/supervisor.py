"""
Supervise a run: win the lease or stand by, hold it, end with the run's exit code.

Any number of supervisors may be started for a run: one holds the lease, the others stand by. A
holder that loses the lease stands by again.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from trainctl.adapters.cluster import Cluster
from trainctl.adapters.journal import JournalWriter, read_journal
from trainctl.adapters.lease import Lease, LeaseInfo, Standby, read_lease
from trainctl.base.clock import Clock, SystemClock, boot_id
from trainctl.base.config import RunConfig, load_run_config
from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model.errors import ConfigError, LeaseLost, StorageError
from trainctl.model.events import AnyEvent, LeaseReleased, SupervisorLost, SupervisorStarted
from trainctl.model.outcome import END_EXIT_CODES
from trainctl.policy.evolve import fold
from trainctl.policy.state import Phase
from trainctl.usecases.effects import Effects
from trainctl.usecases.endings import ending_line
from trainctl.usecases.interrupts import Interrupts
from trainctl.usecases.kit import Kit
from trainctl.usecases.loop import Loop
from trainctl.usecases.narrate import line_of
from trainctl.usecases.past import read_past
from trainctl.usecases.worlds import limits_of, make_cluster, make_pager

STANDBY_S = 0.5

Say = Callable[[str], None]


def say(line: str) -> None:
    """A line to standard output; a closed pipe (`| head`) must not end a supervisor."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 — for the rest of this process


@dataclass(frozen=True, slots=True)
class Tools:
    """
    What a supervisor works with; a test puts another file layer, cluster or clock in its place.
    """

    clock: Clock = field(default_factory=SystemClock)
    files: Files = field(default_factory=Files)
    cluster_of: Callable[[RunConfig, RunDir, str], Cluster] = make_cluster
    effects_of: type[Effects] = Effects


def supervise(
    run: RunDir,
    *,
    seat: str = "here",
    dry_run: bool = False,
    say: Say = say,
    tools: Tools | None = None,
) -> int:
    """
    Own the run until it ends, or stand by until it is ours or has ended; returns its exit code.

    Ctrl-C while it is ours is a stop request (a second one: now); while standing by it only ends
    the standby.
    """
    tools = tools or Tools()
    config = load_run_config(run.config)
    if dry_run:
        return _say_what_would_be_done(run, say)
    interrupts = Interrupts()
    with interrupts.installed():
        while True:
            lease = _win_or_wait(run, seat, interrupts, tools, say)
            if lease is None:
                return _code_of(run)
            try:
                return _hold(run, config, lease, seat, interrupts, tools, say)
            except LeaseLost as lost:
                say(f"{lost}; standing by")
            except StorageError as error:
                lease.release("cannot read or write the run directory")
                say(f"{error}; standing by")


def _win_or_wait(
    run: RunDir,
    seat: str,
    interrupts: Interrupts,
    tools: Tools,
    say: Say,
) -> Lease | None:
    """The lease, as soon as it can be had; None where the run has ended or the terminal gave up."""
    standby = Standby(run, _info(seat), clock=tools.clock, files=tools.files)
    announced = ""
    while True:
        if interrupts.count:
            return None
        try:
            if _has_ended(run, tools.files):
                return None
        except StorageError as error:
            announced = _say_once(f"waiting for storage: {error}", announced, say)
            tools.clock.sleep(STANDBY_S)
            continue
        lease = standby.poll()
        if lease is not None:
            return lease
        if standby.error:
            announced = _say_once(f"waiting for storage: {standby.error}", announced, say)
        elif holder := _holder(run, tools.files):
            announced = _say_once(f"standing by: {holder} owns the run", announced, say)
        tools.clock.sleep(STANDBY_S)


def _say_once(line: str, before: str, say: Say) -> str:
    if line != before:
        say(line)
    return line


def _holder(run: RunDir, files: Files) -> str:
    """Who owns the run; "" where nobody does or it cannot be read."""
    try:
        view = read_lease(run, files=files)
    except StorageError:
        return ""
    if view is None or view.released or not view.info.pid:
        return ""
    return f"{view.info.host}:{view.info.pid} (term {view.term})"


def _has_ended(run: RunDir, files: Files) -> bool:
    """Whether the journal's last word is the run's end and nobody has resumed it since."""
    return fold(read_journal(run, files).events).phase is Phase.ENDED


def _code_of(run: RunDir) -> int:
    state = fold(read_journal(run).events)
    return END_EXIT_CODES[state.end] if state.end else 0


def _info(seat: str) -> LeaseInfo:
    return LeaseInfo(host=socket.gethostname(), pid=os.getpid(), boot=boot_id(), seat=seat)


def _hold(
    run: RunDir,
    config: RunConfig,
    lease: Lease,
    seat: str,
    interrupts: Interrupts,
    tools: Tools,
    say: Say,
) -> int:
    """One term: fold what is known, live, and give the run up in order."""
    lease.start()
    past = read_past(run, lease, tools.clock, tools.files, lambda text: say(f"warning: {text}"))
    for warning in past.warnings:
        say(f"warning: journal: {warning}")
    state = fold(past.events)
    if state.created is None:
        raise ConfigError(f"{run.root}: the journal has no run_created; was it made by `submit`?")
    journal = JournalWriter(run, lease.term, tools.clock, boot_id(), tools.files)

    def tell(event: AnyEvent) -> None:
        if (line := line_of(event)) is not None:
            say(line)

    loop = Loop(
        run=run,
        config=config,
        limits=limits_of(config, run),
        lease=lease,
        journal=journal,
        effects=tools.effects_of(
            Kit(
                run=run,
                config=config,
                cluster=tools.cluster_of(config, run, state.created.run_id),
                pager=make_pager(config),
                term=lease.term,
                still_mine=lease.check,
                clock=tools.clock,
                files=tools.files,
            )
        ),
        state=state,
        clock=tools.clock,
        interrupts=interrupts,
        tell=tell,
        warn=lambda text: say(f"warning: {text}"),
    )
    loop.remember(past.events)
    read_term, read_seq = past.last
    loop.record(
        SupervisorStarted(
            host=socket.gethostname(),
            pid=os.getpid(),
            seat=seat,
            read_term=read_term,
            read_seq=read_seq,
        )
    )
    if lease.ousted_term:
        loop.record(SupervisorLost(lost_term=lease.ousted_term, why="it did not renew its lease"))
    state = loop.live()
    say(ending_line(state, run.root))
    loop.record(LeaseReleased(reason=str(state.end or "observed")))
    lease.release(str(state.end or "observed"), journal.seq)
    return END_EXIT_CODES[state.end] if state.end else 0


def _say_what_would_be_done(run: RunDir, say: Say) -> int:
    state = fold(read_journal(run).events)
    if state.phase is Phase.ENDED:
        say(f"would do nothing: the run has ended ({state.end})")
    else:
        say(f"would own the run or stand by; it is {state.phase}, attempt {state.attempt}")
    return 0
