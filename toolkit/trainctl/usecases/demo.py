"""
The main job, on this machine: a real training, undisturbed and then under faults, and the
comparison.

The demo checks itself: each injected fault must be named with the right kind, node and rank, no
healthy node may be in quarantine, nothing may be left running, and loss and parameters must be
those of the undisturbed run, bit for bit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from trainctl.adapters.journal import read_journal
from trainctl.adapters.local import LocalCluster
from trainctl.base.clock import SystemClock
from trainctl.base.config import (
    CheckpointConfig,
    DetectConfig,
    RestartConfig,
    RunConfig,
    SizeConfig,
)
from trainctl.base.files import Files
from trainctl.base.proc import Identity, is_alive, kill_all, own_processes_with, reap, spawn
from trainctl.base.rundir import RunDir
from trainctl.model.errors import ConfigError, TrainctlError
from trainctl.model.events import AttemptExited, Event, FirstStep, NodeGrant, TrainingDone
from trainctl.policy.evolve import fold
from trainctl.policy.state import Phase, RunState
from trainctl.usecases.inject import EXPECTED, STOPS, Fault, Injection, Injector, parse_faults
from trainctl.usecases.narrate import line_of
from trainctl.usecases.report import AttemptRow, Report, report_of
from trainctl.usecases.submit import create, reopen

NODES = 3
SPARES = 1
STEPS = 240
SAVE_EVERY = 20
PACE_S = 0.15
"""A takeover lasts up to 15 s; with this pace it falls within an attempt."""
FAULTS = (
    Fault.EXCEPTION,
    Fault.SIGKILL,
    Fault.NODE_DEATH,
    Fault.TORN_CHECKPOINT,
    Fault.SUPERVISOR_KILL,
    Fault.STOP,
)
BOUND_S = 900.0
"""No run of the demo takes longer; past it the demo fails and cleans up."""
POLL_S = 0.1

Tell = Callable[[str], None]


class RunResult(msgspec.Struct, frozen=True):
    """How a run of the demo ended."""

    run_dir: str
    end: str
    steps: int
    loss: float | None
    parameters_sha256: str
    seconds: float


class FaultResult(msgspec.Struct, frozen=True):
    """
    A fault as it was injected, and what the journal made of it; `wrong` is empty when all is right.
    """

    fault: str
    attempt: int
    node: str
    rank: int | None
    step: int
    expected: str
    outcome: str
    wrong: str = ""


class DemoReport(msgspec.Struct, frozen=True):
    """What `demo --json` prints."""

    ok: bool
    runs: dict[str, RunResult]
    faults: tuple[FaultResult, ...]
    attempts: tuple[AttemptRow, ...]
    loss_identical: bool
    parameters_identical: bool
    quarantined: tuple[str, ...]
    healthy_quarantined: tuple[str, ...]
    left_running: tuple[int, ...]
    problems: tuple[str, ...]


def demo(
    *,
    inject: Sequence[str] = (),
    run_dir: Path | None = None,
    steps: int | None = None,
    tell: Tell,
) -> DemoReport:
    """
    Run the main job undisturbed, then with `inject` (all of `FAULTS` by default), and compare.

    Raises ConfigError where torch is missing or `run_dir` exists.
    """
    _need_torch()
    faults = _faults(inject)
    base = _base(run_dir)
    if base.exists():
        raise ConfigError(f"{base}: exists already; --run-dir names another place")
    steps = steps or STEPS
    tell(f"undisturbed run: {NODES} nodes, {steps} steps")
    undisturbed = _run(RunDir(base / "undisturbed"), (), steps, 0.0, tell)
    tell(f"the same with faults: {', '.join(faults) or 'none'}; {SPARES} spare")
    faulted = _run(RunDir(base / "faulted"), faults, steps, PACE_S, tell)
    return _compare(undisturbed, faulted)


def plan_of(inject: Sequence[str], run_dir: Path | None, steps: int | None) -> str:
    """What `demo` would do, in a line."""
    faults = ", ".join(_faults(inject)) or "no fault"
    return (
        f"would train {steps or STEPS} steps on {NODES} local nodes twice, undisturbed and with "
        f"{SPARES} spare under {faults}, in {_base(run_dir)}"
    )


def _faults(inject: Sequence[str]) -> tuple[Fault, ...]:
    return parse_faults(list(inject)) if inject else FAULTS


def _base(run_dir: Path | None) -> Path:
    return (run_dir or Path("runs") / f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}").absolute()


class _Ran(msgspec.Struct, frozen=True):
    result: RunResult
    report: Report
    injections: tuple[Injection, ...]
    left: tuple[int, ...]


def _run(run: RunDir, faults: tuple[Fault, ...], steps: int, pace_s: float, tell: Tell) -> _Ran:
    """One run under two supervisor processes (a holder and a standby), to its end."""
    clock, files = SystemClock(), Files()
    create(run, _config(run, steps, pace_s))
    state = fold(read_journal(run).events)
    run_id = state.created.run_id if state.created else ""
    cluster = LocalCluster(run, run_id)

    def kill_node(grant: NodeGrant) -> None:
        cluster.kill_node(grant)

    injector = Injector(run, faults, clock, files, kill_node)
    began = time.monotonic()
    crew = _Crew(run, {**os.environ, "TRAINCTL_INJECT": injector.plan})
    try:
        while time.monotonic() - began < BOUND_S:
            crew.keep_two()
            for event in injector.poll():
                if (line := line_of(event)) is not None:
                    tell(f"  {time.monotonic() - began:6.1f} s  {line}")
            if injector.state.phase is Phase.ENDED:
                stopped = bool(injector.done) and injector.done[-1].fault in STOPS
                if not (stopped and injector.state.done_step is None):
                    break
                crew.dismiss()
                reopen(run, by="demo")
            time.sleep(POLL_S)
        else:
            raise TrainctlError(f"{run.root}: did not end within {BOUND_S:.0f} s")
    finally:
        crew.dismiss()
        left = _end_what_is_left(run_id)
    seconds = round(time.monotonic() - began, 1)
    return _Ran(_result(run, injector.state, seconds), report_of(run), tuple(injector.done), left)


def _config(run: RunDir, steps: int, pace_s: float) -> RunConfig:
    command = (
        *(sys.executable, "-m", "trainctl.examples.bytelm"),
        *("--steps", str(steps), "--save-every", str(SAVE_EVERY), "--pace-s", str(pace_s)),
    )
    return RunConfig(
        name=f"demo-{run.root.name}",
        cluster="local",
        command=command,
        size=SizeConfig(nodes=NODES, spares=SPARES),
        checkpoint=CheckpointConfig(),
        restart=RestartConfig(backoff_base_s=1.0),
        detect=DetectConfig(launch_s=120.0),
    )


class _Crew:
    """Two supervisor processes of a run, so that one can be killed; a lost one is started again."""

    def __init__(self, run: RunDir, env: dict[str, str]) -> None:
        self._run = run
        self._env = env  # nodes, agents and ranks inherit it
        self._members: list[Identity] = []

    def keep_two(self) -> None:
        """See that two are there."""
        reap()
        self._members = [member for member in self._members if is_alive(member)]
        while len(self._members) < 2:
            argv = [sys.executable, "-m", "trainctl", "supervise", str(self._run.root)]
            self._members.append(
                spawn(argv, env=self._env, stdout=self._run.supervisor_log, new_session=True)
            )

    def dismiss(self) -> None:
        """Wait for them to see the run's end by themselves; end those that do not."""
        until = time.monotonic() + 10.0
        while any(is_alive(member) for member in self._members) and time.monotonic() < until:
            reap()
            time.sleep(0.05)
        kill_all(self._members, timeout_s=5.0)
        reap()
        self._members = []


def _end_what_is_left(run_id: str) -> tuple[int, ...]:
    """Pids of the run's processes that outlived it; they are ended here."""
    until = time.monotonic() + 5.0
    while left := [who for who, _ in own_processes_with({"TRAINCTL_RUN_ID": run_id})]:
        if time.monotonic() > until:
            kill_all(left, timeout_s=5.0)
            break
        time.sleep(0.1)
    return tuple(who.pid for who in left)


def _result(run: RunDir, state: RunState, seconds: float) -> RunResult:
    done = [event for event in read_journal(run).events if isinstance(event, TrainingDone)]
    result = done[-1].result if done else {}
    loss = result.get("loss")
    return RunResult(
        run_dir=str(run.root),
        end=str(state.end or "none"),
        steps=done[-1].step if done else -1,
        loss=float(loss) if loss is not None else None,
        parameters_sha256=str(result.get("params_sha256", "")),
        seconds=seconds,
    )


# --- the demo checks itself ---------------------------------------------------------------------


def _compare(undisturbed: _Ran, faulted: _Ran) -> DemoReport:
    results = tuple(_judged(injection, faulted) for injection in faulted.injections)
    one, other = undisturbed.result, faulted.result
    dead = {
        injection.node for injection in faulted.injections if injection.fault is Fault.NODE_DEATH
    }
    quarantined = tuple(faulted.report.quarantined)
    healthy = tuple(sorted((set(quarantined) - dead) | set(undisturbed.report.quarantined)))
    left = undisturbed.left + faulted.left
    loss_identical = one.loss is not None and one.loss == other.loss
    same = bool(one.parameters_sha256) and one.parameters_sha256 == other.parameters_sha256
    problems = [f"{result.fault}: {result.wrong}" for result in results if result.wrong]
    problems += [
        f"the {name} run ended as {ran.result.end}"
        for name, ran in (("undisturbed", undisturbed), ("faulted", faulted))
        if ran.result.end != "finished"
    ]
    if not loss_identical:
        problems.append(f"loss differs: {one.loss!r} and {other.loss!r}")
    if not same:
        problems.append("parameters differ")
    problems += [f"healthy node {node} is in quarantine" for node in healthy]
    problems += [f"process {pid} outlived the run" for pid in left]
    return DemoReport(
        ok=not problems,
        runs={"undisturbed": one, "faulted": other},
        faults=results,
        attempts=tuple(faulted.report.attempts),
        loss_identical=loss_identical,
        parameters_identical=same,
        quarantined=quarantined,
        healthy_quarantined=healthy,
        left_running=left,
        problems=tuple(problems),
    )


def _judged(injection: Injection, faulted: _Ran) -> FaultResult:
    """The injection beside the journal's word on its attempt."""
    events = read_journal(RunDir(Path(faulted.result.run_dir))).events
    exits = {event.attempt: event for event in events if isinstance(event, AttemptExited)}
    expected = EXPECTED[injection.fault]
    exited = exits.get(injection.attempt)
    outcome = str(exited.outcome) if exited else "none"
    wrong = ""
    if expected is None:
        wrong = "" if _went_on(injection, events) else "the attempt did not go on"
    elif exited is None or exited.outcome is not expected:
        wrong = f"expected {expected}, found {outcome}"
    elif injection.node and not _names(injection, exited):
        named = ", ".join(f"rank {seat.rank} on {seat.node}" for seat in exited.first)
        suspects = ", ".join(suspect.node for suspect in exited.suspects)
        wrong = f"expected {injection.node}, found {named or suspects or 'nobody'}"
    return FaultResult(
        fault=str(injection.fault),
        attempt=injection.attempt,
        node=injection.node,
        rank=injection.rank,
        step=injection.step,
        expected=str(expected or "adopted"),
        outcome=outcome if expected is not None else "adopted",
        wrong=wrong,
    )


def _names(injection: Injection, exited: AttemptExited) -> bool:
    """The verdict names the injected rank and node, and no other."""
    if injection.rank is None:
        return {suspect.node for suspect in exited.suspects} == {injection.node}
    return [(seat.rank, seat.node) for seat in exited.first] == [(injection.rank, injection.node)]


def _went_on(injection: Injection, events: Sequence[object]) -> bool:
    """The attempt was adopted, and had its first step once only."""
    mine = [
        event
        for event in events
        if isinstance(event, Event) and getattr(event, "attempt", 0) == injection.attempt
    ]
    adopted = any(event.kind == "attempt_adopted" for event in mine)
    return adopted and sum(isinstance(event, FirstStep) for event in mine) == 1


def _need_torch() -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            "demo: torch is not installed; `bin/demo` sets it up, or `pip install torch`"
        )
