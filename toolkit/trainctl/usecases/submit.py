"""
Make a run from a configuration, or take an ended one up again, and start its supervisor.

A run directory appears whole or not at all: it is made under another name beside its place and
renamed.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import shutil
import socket
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from trainctl import __version__
from trainctl.adapters.journal import JournalWriter, read_journal
from trainctl.adapters.lease import LeaseInfo, read_lease, try_acquire
from trainctl.adapters.requests import read_requests
from trainctl.base.clock import SystemClock, boot_id
from trainctl.base.config import (
    RunConfig,
    dump_run_config,
    load_run_config,
    resolve_cluster,
)
from trainctl.base.files import Files
from trainctl.base.proc import spawn
from trainctl.base.rundir import RunDir
from trainctl.model.errors import ConfigError, UsageError
from trainctl.model.events import (
    AnyEvent,
    LeaseReleased,
    RunCreated,
    RunResumed,
    SupervisorStarted,
)
from trainctl.policy.evolve import fold
from trainctl.policy.state import Phase
from trainctl.usecases.past import read_past
from trainctl.usecases.supervisor import Say, say, supervise
from trainctl.usecases.worlds import make_cluster

RUNS = Path("runs")
"""Where run directories go unless --run-dir says otherwise, below the current folder."""


def submit(
    config_path: Path | None,
    *,
    overrides: Sequence[str] = (),
    command: Sequence[str] = (),
    run_dir: Path | None = None,
    seat: str = "here",
    detach: bool = False,
    dry_run: bool = False,
    say: Say = say,
) -> int:
    """
    Validate, make the run directory, write `run_created`, and supervise; returns the run's exit
    code.

    Raises ConfigError (nothing was created) for a bad configuration or an unusable directory.
    """
    config = load_run_config(config_path, overrides, command)
    config = _settled(config)
    run = RunDir(Path(os.path.abspath(run_dir or RUNS / config.name)))
    make_cluster(config, run, "dry-run")
    _refuse_existing(run)
    if dry_run:
        say(f"would create {run.root}")
        say(dump_run_config(config).rstrip())
        return 0
    create(run, config)
    say(f"run {config.name}: {run.root}")
    return start(run, seat=seat, detach=detach, say=say)


def _settled(config: RunConfig) -> RunConfig:
    """What depends on where we are now (the cluster found, a relative path) is settled for good."""
    checkpoint = config.checkpoint
    if checkpoint.dir:
        checkpoint = msgspec.structs.replace(checkpoint, dir=os.path.abspath(checkpoint.dir))
    return msgspec.structs.replace(config, cluster=resolve_cluster(config), checkpoint=checkpoint)


def start(run: RunDir, *, seat: str, detach: bool, say: Say = say) -> int:
    """Supervise here, or leave a supervisor behind that outlives this terminal."""
    if not detach:
        return supervise(run, seat=seat, say=say)
    argv = [sys.executable, "-m", "trainctl", "supervise", str(run.root)]
    child = spawn(argv, stdout=run.supervisor_log, new_session=True)
    say(f"supervisor {child.pid} runs detached; its output: {run.supervisor_log}")
    say(f"next: trainctl status {run.root}")
    return 0


def create(run: RunDir, config: RunConfig) -> None:
    """Lay out the run directory and write term 1: `run_created`, released at once."""
    text = dump_run_config(config)
    parent = run.root.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        draft = RunDir(parent / f".{run.root.name}.{uuid.uuid4().hex[:8]}.tmp")
        draft.root.mkdir(mode=0o750)
    except OSError as error:
        raise ConfigError(f"{run.root}: cannot be created: {error.strerror}") from error
    try:
        for folder in (draft.leases, draft.events, draft.requests, draft.attempts):
            folder.mkdir()
        draft.config.write_text(text)
        created = RunCreated(
            run=config.name,
            run_id=uuid.uuid4().hex[:12],
            cluster=config.cluster,
            nodes=config.size.nodes,
            spares=config.size.spares,
            ranks_per_node=config.size.ranks_per_node,
            config_sha256=hashlib.sha256(text.encode()).hexdigest(),
            version=__version__,
        )
        _write_term(draft, [created], "submitted")
        if not config.checkpoint.dir:
            draft.checkpoints.mkdir()
        draft.root.rename(run.root)
    except OSError as error:
        shutil.rmtree(draft.root, ignore_errors=True)
        raise ConfigError(f"{run.root}: cannot be created: {error.strerror}") from error
    Files().sync_dir(parent)


def resume(
    run: RunDir, *, seat: str = "here", detach: bool = False, dry_run: bool = False, say: Say = say
) -> int:
    """
    Take an ended run up again, at its last committed checkpoint; counts of failures begin anew.

    A run that has not ended and has lost its supervisor is simply supervised again.
    """
    load_run_config(run.config)
    state = fold(read_journal(run).events)
    if state.created is None:
        raise ConfigError(f"{run.root}: the journal has no run_created; nothing to resume")
    view = read_lease(run)
    if state.phase is not Phase.ENDED and view is not None and not view.released:
        say(
            f"{run.root}: not ended; "
            f"the holder of term {view.term} is pid {view.info.pid} on {view.info.host}"
        )
    if dry_run:
        say(f"would resume {run.root} from step {max(state.committed, 0)}")
        return 0
    if state.phase is Phase.ENDED:
        if state.done_step is not None:
            raise UsageError(f"{run.root}: the training is done (step {state.done_step})")
        reopen(run, by=getpass.getuser())
    return start(run, seat=seat, detach=detach, say=say)


def reopen(run: RunDir, *, by: str) -> None:
    """Write `run_resumed`; the requests made of the run so far are not obeyed again."""
    seen = tuple(request.name for request in read_requests(run))
    _write_term(run, [RunResumed(by=by, requests=seen)], "resumed")


def _write_term(run: RunDir, events: Sequence[AnyEvent], why: str) -> None:
    """Take a term, write these events, and release it: the next holder need not wait."""
    info = LeaseInfo(host=socket.gethostname(), pid=os.getpid(), boot=boot_id(), seat="cli")
    lease = try_acquire(run, info)
    if lease is None:
        raise UsageError(f"{run.root}: a supervisor owns this run; `trainctl status {run.root}`")
    read_term, read_seq = read_past(run, lease, SystemClock(), Files(), say).last
    journal = JournalWriter(run, lease.term, SystemClock(), boot_id(), Files())
    journal.append(
        SupervisorStarted(
            host=info.host, pid=info.pid, seat="cli", read_term=read_term, read_seq=read_seq
        )
    )
    for event in events:
        journal.append(event)
    journal.append(LeaseReleased(reason=why))
    lease.release(why, journal.seq)


def _refuse_existing(run: RunDir) -> None:
    if not run.root.exists() and not run.root.is_symlink():
        return
    view = read_lease(run) if run.leases.is_dir() else None
    if view is not None and not view.released:
        raise ConfigError(
            f"{run.root}: belongs to a running supervisor "
            f"(pid {view.info.pid} on {view.info.host}); "
            f"`trainctl status {run.root}` shows it"
        )
    hint = f"`trainctl resume {run.root}` takes it up" if run.config.exists() else "it is not a run"
    raise ConfigError(f"{run.root}: exists already; {hint}; --run-dir names another place")
