"""One attempt laid out by hand and its agents as real processes: what tests of nodes share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from trainctl.base.cells import CellWriter, create_cell, read_cell
from trainctl.base.processes import Identity, identity_of, is_alive, kill_all, own_processes_with
from trainctl.base.rundir import RunDir
from trainctl.model.agent import AgentPhase, AgentState, Control, Launcher, LaunchSpec, NodeSeat
from trainctl.node.launcher import guard_argv

RANK = Path(__file__).with_name("rank_script.py")
OVER = (AgentPhase.ENDED, AgentPhase.REFUSED)


def wait_for(what: Callable[[], Any], bound_s: float = 10.0) -> Any:
    """What `what` returns once it is true; fails after the bound."""
    deadline = time.monotonic() + bound_s
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {bound_s} s: {what}")


@dataclass
class Bench:
    """Attempt `attempt` of a run in `root`; its agents and all they start carry its own run id."""

    root: Path
    nodes: int = 1
    ranks: int = 2
    attempt: int = 1
    launcher: Launcher = Launcher.PLAIN
    command: tuple[str, ...] = ()
    spec: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: f"bench-{os.urandom(4).hex()}")

    def __post_init__(self) -> None:
        self.run = RunDir(self.root / "run")
        self.local = self.root / "local"
        self.run.leases.mkdir(parents=True, exist_ok=True)

    def lay_out(self) -> Bench:
        """Everything that a supervisor makes before it launches; no word is said yet."""
        run, number = self.run, self.attempt
        run.attempt(number).mkdir(parents=True)
        for path in run.controls(number):
            create_cell(path, 4096, durable=False)
        seats = [NodeSeat(f"n{k}", "127.0.0.1") for k in range(self.nodes)]
        for seat in seats:
            run.node(number, seat.node).mkdir(parents=True)
            create_cell(run.state(number, seat.node), 65536, durable=False)
        run.trainer_log(number).touch()
        fields: dict[str, Any] = {
            "command": self.command or (sys.executable, str(RANK)),
            "stop_grace_s": 10.0,
            "save_grace_s": 5.0,
            **self.spec,
        }
        spec = LaunchSpec(
            run="bench",
            run_id=self.run_id,
            run_dir=str(run.root),
            attempt=number,
            term=1,
            step_name=f"bench-a{number:04d}",
            cluster="local",
            seats=tuple(seats),
            ranks_per_node=self.ranks,
            launcher=self.launcher,
            checkpoint_dir=str(run.checkpoints),
            **fields,
        )
        run.launch(number).write_bytes(msgspec.json.encode(spec))
        return self

    def say(self, term: int = 1, **words: Any) -> None:
        """The supervisor of `term` says this to the attempt."""
        said = Control(attempt=self.attempt, term=term, **words)
        writer = CellWriter(self.run.control(self.attempt, term), term)
        writer.write(msgspec.json.encode(said))
        writer.close()

    def start(self, node: str = "n0") -> Identity:
        """An agent under its guard, as a cluster starts it; the identity of that guard."""
        agent = [sys.executable, "-m", "trainctl.node.agent", "--run-dir", str(self.run.root)]
        options = [
            "--attempt",
            str(self.attempt),
            "--node",
            node,
            "--local-dir",
            str(self.local / node),
        ]
        env = {
            **os.environ,
            "TRAINCTL_RUN_ID": self.run_id,
            "TRAINCTL_NODE": node,
            "TRAINCTL_CELL_PERIOD_S": "0.5",
            "TRAINCTL_CONTROL_PERIOD_S": "0.05",
            **self.env,
        }
        with (self.root / f"agent-{node}.log").open("ab") as log:
            child = subprocess.Popen(
                [*guard_argv("--parent", str(os.getpid())), *agent, *options],
                env=env, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.agents[node] = child
        guard = identity_of(child.pid)
        assert guard is not None
        return guard

    def launch(self) -> Bench:
        """Lay out, say the first word, start every agent."""
        self.lay_out().say()
        for k in range(self.nodes):
            self.start(f"n{k}")
        return self

    # --- what is seen -----------------------------------------------------------------------------

    def state(self, node: str = "n0") -> AgentState | None:
        cell = read_cell(self.run.state(self.attempt, node))
        return msgspec.json.decode(cell.payload, type=AgentState) if cell else None

    def wait_state(
        self, until: Callable[[AgentState], Any], node: str = "n0", bound_s: float = 15.0
    ) -> AgentState:
        """The first state that satisfies `until`."""

        def look() -> AgentState | None:
            state = self.state(node)
            return state if state is not None and until(state) else None

        try:
            found: AgentState = wait_for(look, bound_s)
        except AssertionError as error:
            raise AssertionError(f"last state {self.state(node)}\n{self.log(node)}") from error
        return found

    def wait_over(self, node: str = "n0", bound_s: float = 15.0) -> AgentState:
        """The state in which the agent ends, once its process has ended."""
        state = self.wait_state(lambda state: state.phase in OVER, node, bound_s)
        self.agents[node].wait(10)
        return state

    def wait_steps(self, node: str = "n0", count: int | None = None) -> AgentState:
        """All ranks of the node beat."""
        want = self.ranks if count is None else count
        return self.wait_state(
            lambda state: sum(rank.pid > 0 and rank.step >= 1 for rank in state.ranks) == want, node
        )

    def alive(self) -> list[Identity]:
        """All living processes of this bench: agents, guards, launchers, ranks, their helpers."""
        return [each for each, _ in own_processes_with({"TRAINCTL_RUN_ID": self.run_id})]

    def wait_nothing_alive(self, bound_s: float = 5.0) -> None:
        deadline = time.monotonic() + bound_s
        while left := self.alive():
            assert time.monotonic() < deadline, [
                Path(f"/proc/{each.pid}/cmdline").read_bytes() for each in left if is_alive(each)
            ]
            self.reap()
            time.sleep(0.02)

    def reap(self) -> None:
        for child in self.agents.values():
            child.poll()

    def log(self, node: str = "n0") -> str:
        folder = self.run.logs(self.attempt, node)
        logs = [self.root / f"agent-{node}.log", *sorted(folder.glob("*"))]
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)


@contextmanager
def bench(root: Path, **fields: Any) -> Iterator[Bench]:
    """A bench whose processes, whatever happened, are gone afterwards."""
    made = Bench(root, **fields)
    try:
        yield made
    finally:
        kill_all(made.alive(), 5.0)
        for child in made.agents.values():
            child.wait(5)
