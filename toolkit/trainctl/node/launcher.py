"""How the ranks of a node are started: the environment they get, and the command lines for it."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainctl.base.rundir import RunDir
from trainctl.model.agent import Launcher, LaunchSpec
from trainctl.node.ranks import LocalFolder

GUARD = Path(__file__).with_name("guard.py")
FLIGHT_RECORDER_ENTRIES = "2000"
_HOLE = re.compile(r"\{(checkpoint|stop_file|run_dir|attempt|collective_timeout_s)\}")


@dataclass(frozen=True, slots=True)
class Started:
    """One child of the agent to be: its command line, its environment, where its output goes."""

    argv: tuple[str, ...]
    env: dict[str, str]
    output: Path
    #: The rank it guards; None for torchrun.
    rank: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known when the ranks of one node are started."""

    spec: LaunchSpec
    node_rank: int
    folder: LocalFolder
    logs: Path
    port: int
    agent_pid: int
    environ: Mapping[str, str]

    @property
    def node(self) -> str:
        """The node's name in this attempt."""
        return self.spec.seats[self.node_rank].node

    def children(self) -> Iterator[Started]:
        """torchrun, or each rank, under a guard of its own."""
        if self.spec.launcher is Launcher.TORCHRUN:
            guard = guard_argv("--parent", str(self.agent_pid), "--ignore-term")
            argv = (*guard, *self._torchrun())
            yield Started(argv, self._env(), self.logs / "launcher.log", None)
            return
        for local in range(self.spec.ranks_per_node):
            yield self._plain(local)

    def _torchrun(self) -> Sequence[str]:
        spec = self.spec
        argv = [
            *(sys.executable, "-m", "torch.distributed.run"),
            f"--nnodes={len(spec.seats)}",
            f"--nproc-per-node={spec.ranks_per_node}",
            f"--node-rank={self.node_rank}",
            "--max-restarts=0",
            # The c10d backend would order the agents by address and pid, whatever --node-rank says.
            "--rdzv-backend=static",
            f"--master-addr={spec.seats[0].address}",
            f"--master-port={self.port}",
            f"--rdzv-id={spec.step_name}",
            f"--log-dir={self.folder.torchrun_logs}",
        ]
        if torchrun_can_ignore_term():
            argv.append("--signals-to-handle=SIGINT")
        return [*argv, "--no-python", *self._guarded("{rank}", "--under-guard")]

    def _plain(self, local: int) -> Started:
        spec = self.spec
        rank = self.node_rank * spec.ranks_per_node + local
        env = {
            **self._env(),
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "GROUP_RANK": str(self.node_rank),
            "WORLD_SIZE": str(len(spec.seats) * spec.ranks_per_node),
            "LOCAL_WORLD_SIZE": str(spec.ranks_per_node),
            "MASTER_ADDR": spec.seats[0].address,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_ERROR_FILE": str(self.folder.error_file(rank)),
        }
        argv = self._guarded(str(rank), "--parent", str(self.agent_pid))
        return Started(tuple(argv), env, self.logs / "launcher.log", rank)

    def _guarded(self, rank: str, *parent: str) -> Sequence[str]:
        options = [
            *parent,
            "--ignore-term",
            *("--start-file", str(self.folder.guard_file(rank))),
            *("--exit-file", str(self.folder.exit_file(rank))),
            *("--stdout", str(self.logs / f"rank-{rank}.out")),
            *("--stderr", str(self.logs / f"rank-{rank}.err")),
        ]
        if self.spec.cwd:
            options += ["--cwd", self.spec.cwd]
        return [*guard_argv(*options), *self.command()]

    def command(self) -> Sequence[str]:
        """The user's command, its holes filled; any other brace is the user's own."""
        spec = self.spec
        values = {
            "checkpoint": spec.resume,
            "stop_file": str(self.folder.stop_file),
            "run_dir": spec.run_dir,
            "attempt": str(spec.attempt),
            "collective_timeout_s": f"{spec.collective_timeout_s:g}",
        }
        return [_HOLE.sub(lambda hole: values[hole[1]], part) for part in spec.command]

    def _env(self) -> dict[str, str]:
        spec, run = self.spec, RunDir(Path(self.spec.run_dir))
        dumps = str(run.flight(spec.attempt, self.node) / "rank_")
        return {
            **flight_recorder(dumps),
            **self.environ,
            **spec.env,
            "TRAINCTL_RUN": spec.run,
            "TRAINCTL_RUN_DIR": spec.run_dir,
            "TRAINCTL_RUN_ID": spec.run_id,
            "TRAINCTL_NODE": self.node,
            "TRAINCTL_ATTEMPT": str(spec.attempt),
            "TRAINCTL_BEATS": str(self.folder.path),
            "TRAINCTL_STOP_FILE": str(self.folder.stop_file),
            "TRAINCTL_CHECKPOINT_DIR": spec.checkpoint_dir,
            "TRAINCTL_RESUME": spec.resume,
            "TRAINCTL_RESUME_STEP": "" if spec.resume_step is None else str(spec.resume_step),
            "TRAINCTL_TRAINER_LOG": str(run.trainer_log(spec.attempt)),
        }


def guard_argv(*options: str) -> tuple[str, ...]:
    """The head of a guarded command line."""
    return (sys.executable, "-I", "-S", str(GUARD), *options, "--")


def flight_recorder(prefix: str) -> dict[str, str]:
    """Defaults for torch's flight recorder, under its old names and its new ones."""
    return {
        "TORCH_FR_BUFFER_SIZE": FLIGHT_RECORDER_ENTRIES,
        "TORCH_NCCL_TRACE_BUFFER_SIZE": FLIGHT_RECORDER_ENTRIES,
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        # With stacks a dump can deadlock on the interpreter's lock.
        "TORCH_INCLUDE_STACK_TRACE": "False",
    }


def torchrun_can_ignore_term() -> bool:
    """
    Whether this torch's launcher has `--signals-to-handle`; told from its source, since importing
    torch takes seconds. Without it torchrun acts on a TERM of its own accord.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        source = Path(found.origin).with_name("distributed") / "run.py"
        return "--signals-to-handle" in source.read_text(errors="replace")
    except OSError:
        return False
