"""
Make a run, start supervisors for it as processes, wait for its events: what tests of runs share.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainctl.adapters.journal import read_journal
from trainctl.adapters.local_nodes import state_root
from trainctl.base.config import (
    CheckpointConfig,
    DetectConfig,
    RestartConfig,
    RunConfig,
    SizeConfig,
)
from trainctl.base.proc import kill_all, own_processes_with
from trainctl.base.rundir import RunDir
from trainctl.model.agent import Launcher
from trainctl.model.events import AnyEvent
from trainctl.policy.evolve import fold
from trainctl.policy.state import RunState
from trainctl.usecases.submit import create

SUPPORT = Path(__file__).parent
TOY = SUPPORT / "toy_trainer.py"


def toy_run(
    root: Path,
    *,
    nodes: int = 2,
    spares: int = 1,
    toy: tuple[str, ...] = (),
    checkpoint_dir: str = "",
    **restart: Any,
) -> RunDir:
    """A run of the toy trainer at `root`; `restart` are keys of [restart]."""
    run = RunDir(root)
    create(
        run,
        RunConfig(
            name="toy",
            command=(sys.executable, str(TOY), *toy),
            cluster="local",
            launcher=Launcher.PLAIN,
            size=SizeConfig(nodes=nodes, spares=spares),
            restart=RestartConfig(**{"backoff_base_s": 0.1, "stop_grace_s": 20.0, **restart}),
            checkpoint=CheckpointConfig(dir=checkpoint_dir),
            detect=DetectConfig(launch_s=20.0, gather_s=2.0),
        ),
    )
    return run


def state_of(run: RunDir) -> RunState:
    """The fold of the journal as it is now."""
    return fold(read_journal(run).events)


def events_of(run: RunDir, *kinds: str) -> list[AnyEvent]:
    """The folded events of these kinds (all without one)."""
    return [e for e in read_journal(run).events if not kinds or e.kind in kinds]


class Supervisors:
    """Supervisor processes of one run; ended, by pid, with all that the run left behind."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self, *script: str, env: dict[str, str] | None = None, new_session: bool = True
    ) -> subprocess.Popen[bytes]:
        """`trainctl supervise`, or `script` (a Python file and its arguments) in its place."""
        argv = script or ("-m", "trainctl", "supervise", str(self.run.root))
        return self.start_argv(sys.executable, *argv, env=env, new_session=new_session)

    def start_argv(
        self, *argv: str, env: dict[str, str] | None = None, new_session: bool = True
    ) -> subprocess.Popen[bytes]:
        """Any command that ends up as a supervisor."""
        with open(self.run.root / "supervisors.log", "ab") as log:
            child = subprocess.Popen(
                argv,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "PYTHONPATH": str(SUPPORT.parent),
                    "TRAINCTL_INJECT": str(self.run.root / "inject" / "plan.json"),
                    **(env or {}),
                },
                start_new_session=new_session,
            )
        self.started.append(child)
        return child

    def log(self) -> str:
        """All that they printed."""
        return (self.run.root / "supervisors.log").read_text(errors="replace")

    def wait(self, what: str, seen: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Wait for `seen()`; fails with what the supervisors said."""
        end = time.monotonic() + timeout_s
        while not seen():
            assert time.monotonic() < end, f"no {what} within {timeout_s} s\n{self.log()}"
            time.sleep(0.05)

    def wait_event(self, kind: str, timeout_s: float = 20.0, **fields: Any) -> AnyEvent:
        """Wait for an event of this kind with these fields."""
        found: list[AnyEvent] = []

        def seen() -> bool:
            found[:] = [
                e
                for e in events_of(self.run, kind)
                if all(getattr(e, name) == value for name, value in fields.items())
            ]
            return bool(found)

        self.wait(f"{kind} {fields}", seen, timeout_s)
        return found[0]

    def code(self, child: subprocess.Popen[bytes], timeout_s: float = 30.0) -> int:
        """The exit code of a supervisor that ends by itself."""
        try:
            return child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the supervisor does not end\n{self.log()}") from None

    def left_running(self) -> list[int]:
        """Pids of the run's processes: nodes, agents, ranks."""
        created = state_of(self.run).created
        assert created is not None
        return [who.pid for who, _ in own_processes_with({"TRAINCTL_RUN_ID": created.run_id})]

    def end(self) -> None:
        """End what is left, by pid."""
        for child in self.started:
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.kill()
            child.wait(10)
        created = state_of(self.run).created
        if created is not None:
            kill_all(
                [who for who, _ in own_processes_with({"TRAINCTL_RUN_ID": created.run_id})], 5.0
            )
            # Nodes that were killed leave their memory behind.
            shutil.rmtree(state_root() / created.run_id, ignore_errors=True)


@contextmanager
def supervisors(run: RunDir) -> Iterator[Supervisors]:
    """Supervisors that are ended with the block."""
    crew = Supervisors(run)
    try:
        yield crew
    finally:
        crew.end()


def toy_lines(run: RunDir) -> list[tuple[int, int, int, int, int]]:
    """
    (attempt, rank, step, pid, time_ns) of every start and step of every rank, in order of time.
    """
    lines = [
        tuple(int(word) for word in line.split())
        for path in (run.root / "toy").glob("rank-*.log")
        for line in path.read_text().splitlines()
    ]
    return sorted(lines, key=lambda line: line[4])


def never_two_trainers(run: RunDir) -> bool:
    """No rank of an attempt stepped after a later attempt had begun."""
    begun = 0
    for attempt, *_ in toy_lines(run):
        if attempt < begun:
            return False
        begun = attempt
    return True
