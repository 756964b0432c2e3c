"""
From the SIGKILL of a rank to training again: trainctl beside torchrun's own restart, in one run.

By hand: bench_restart.py [ROUNDS]. Prints one JSON object: for each, seconds from the kill to the
next launchers (trainctl: all agents of the next attempt started; bar 0.5 s), to the ranks' exec,
and to the first new step. The trainer is the same, on 3 ranks (trainctl: 3 local nodes of one rank;
torchrun: one node of 3 ranks with --max-restarts=1), so the same number of ranks imports torch on
the same cores.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.runs import Supervisors, events_of, state_of, supervisors
from trainctl.base.config import RestartConfig, RunConfig, SizeConfig
from trainctl.base.files import Files
from trainctl.base.processes import stat_of
from trainctl.base.rundir import RunDir
from trainctl.usecases.attempts import Ear
from trainctl.usecases.submit import create

RANKS = 3
TRAINER = ("-m", "trainctl.examples.bytelm", "--steps", "2000", "--save-every", "20")
PACE = ("--pace-s", "0.1")


def started_ms(pid: int) -> float:
    """When the process was started, UTC ms (to the kernel's 10 ms)."""
    stat = stat_of(pid)
    assert stat is not None
    up_s = stat.start_ticks / os.sysconf("SC_CLK_TCK")
    boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return (boot_s + up_s) * 1000


def until(seen: Callable[[], object], bound_s: float = 120.0) -> object:
    """What `seen` gives as soon as it gives something."""
    end = time.monotonic() + bound_s
    while not (found := seen()):
        if time.monotonic() > end:
            raise TimeoutError("the bench waited in vain")
        time.sleep(0.01)
    return found


def trainctl_round(folder: Path) -> dict[str, float]:
    """One SIGKILL in a run of three local nodes."""
    run = RunDir(folder / "run")
    create(
        run,
        RunConfig(
            name="bench",
            cluster="local",
            command=(sys.executable, *TRAINER, *PACE),
            size=SizeConfig(nodes=RANKS),
            restart=RestartConfig(backoff_base_s=0.1),
        ),
    )
    with supervisors(run) as crew:
        crew.start()
        crew.wait_event("checkpoint_committed", 120.0, attempt=1)
        pid = ranks_of(run, 1)[1]
        killed_ms = time.time() * 1000
        os.kill(pid, signal.SIGKILL)
        return after_kill(crew, killed_ms)


def after_kill(crew: Supervisors, killed_ms: float) -> dict[str, float]:
    """Seconds from the kill to each stage of attempt 2."""
    run = crew.run
    crew.wait_event("attempt_launched", 30.0, attempt=2)
    seats = state_of(run).seats

    def started() -> list[int]:
        agents = Ear(run, 2, seats, Files()).hear_agents()
        times = [agent.started_ms for agent in agents.values() if agent.started_ms]
        return times if len(times) == RANKS else []

    agents_ms = max(until(started))
    pids = until(lambda: len(found := ranks_of(run, 2)) == RANKS and found)
    exec_ms = max(started_ms(pid) for pid in pids.values())
    first = crew.wait_event("first_step", 120.0, attempt=2)
    launched = events_of(run, "attempt_launched")[-1]
    return {
        "launched_s": (launched.at_ms - killed_ms) / 1000,
        "agents_started_s": (agents_ms - killed_ms) / 1000,
        "ranks_exec_s": (exec_ms - killed_ms) / 1000,
        "first_step_s": (first.at_ms - killed_ms) / 1000,
    }


def ranks_of(run: RunDir, attempt: int) -> dict[int, int]:
    """Pid of each rank that has beaten or begun."""
    agents = Ear(run, attempt, state_of(run).seats, Files()).hear_agents()
    return {r.rank: r.pid for agent in agents.values() for r in agent.ranks if r.pid}


def torchrun_round(folder: Path) -> dict[str, float]:
    """
    One SIGKILL under torchrun --max-restarts=1, the shared store switched off (else it may hang).
    """
    log = folder / "torchrun.log"
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    argv += [f"--nproc-per-node={RANKS}", *TRAINER, *PACE, "--log-every", "1"]
    argv += ["--checkpoints", str(folder / "checkpoints")]
    env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    env["PYTHONUNBUFFERED"] = "1"
    with log.open("wb") as out:
        child = subprocess.Popen(argv, stdout=out, stderr=out, env=env, start_new_session=True)
    try:
        until(lambda: list((folder / "checkpoints").glob("step-*.a*[0-9]")))
        old = children(child.pid)
        killed_ms = time.time() * 1000
        os.kill(sorted(old)[1], signal.SIGKILL)
        fresh = until(lambda: len(new := children(child.pid) - old) == RANKS and new)
        exec_ms = max(started_ms(pid) for pid in fresh)
        seen = steps_in(log)
        until(lambda: steps_in(log) > seen)
        return {
            "ranks_exec_s": (exec_ms - killed_ms) / 1000,
            "first_step_s": time.time() - killed_ms / 1000,
        }
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        for pid in children(child.pid):
            os.kill(pid, signal.SIGKILL)
        child.wait()


def steps_in(log: Path) -> int:
    """How many steps the ranks have printed so far."""
    return log.read_text(errors="replace").count("bytelm: step ")


def children(pid: int) -> set[int]:
    """The direct children of a process that are ranks."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    found = {int(word) for task in tasks for word in task.read_text().split()}
    return {each for each in found if b"bytelm" in Path(f"/proc/{each}/cmdline").read_bytes()}


def main() -> None:
    """Rounds in turn; medians and all figures."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    took: dict[str, list[dict[str, float]]] = {"trainctl": [], "torchrun": []}
    for _ in range(rounds):
        for name, measure in (("trainctl", trainctl_round), ("torchrun", torchrun_round)):
            with tempfile.TemporaryDirectory() as folder:
                took[name].append(measure(Path(folder)))
    medians = {
        name: {key: round(statistics.median(r[key] for r in all_), 3) for key in all_[0]}
        for name, all_ in took.items()
    }
    print(json.dumps({"bench": "restart", "rounds": rounds, "median": medians, "all": took}))


if __name__ == "__main__":
    main()
