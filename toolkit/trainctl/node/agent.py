"""
What runs on a node for one attempt: it starts the ranks, watches them, and ends them.

    python -m trainctl.node.agent --run-dir D --attempt N [--node NAME] [--local-dir L]

Without `--node` and `--local-dir` it is `TRAINCTL_NODE` and `TRAINCTL_LOCAL_DIR`, which the cluster
sets. What comes before the ranks is in `trainctl.node.starting`, the rest in `tending`.

Exit code: 0 all ranks exited with 0, 1 not so, 3 refused.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from trainctl.base.processes import identity_of
from trainctl.base.rundir import RunDir
from trainctl.model.agent import AgentPhase
from trainctl.model.evidence import RankError, RankExit
from trainctl.node.desk import Desk, Explain, Periods
from trainctl.node.guard import PR_SET_CHILD_SUBREAPER, prctl
from trainctl.node.last_words import last_words
from trainctl.node.launcher import Plan
from trainctl.node.ranks import LocalFolder, Ranks
from trainctl.node.starting import WORD_BOUND_S, Refused, Start, local_dir
from trainctl.node.tending import CLOSE_BOUND_S, FAILED_GRACE_S, Tending

REFUSED = 3


def _explainer(folder: LocalFolder, logs: Path, first: int) -> Explain:
    """Reads a failed rank's last words, for the desk."""

    def explain(end: RankExit) -> RankError | None:
        if end.by_us or end.code == 0 or (end.code is None and end.signal is None):
            return None
        error_file = folder.find_error_file(end.rank, end.rank - first)
        return last_words(error_file, logs / f"rank-{end.rank}.err", end.code, end.signal)

    return explain


def _number(name: str, default: float) -> float:
    """A number of seconds from the environment of the node."""
    try:
        return float(os.environ.get(name, ""))
    except ValueError:
        return default


def run_agent(run: RunDir, attempt: int, node: str, local_dir: Path) -> int:
    """One attempt's part on this node, from its first word to its last; the exit code."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: asked.append(signum))
    for deaf in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(deaf, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    periods = Periods(
        cell_s=_number("TRAINCTL_CELL_PERIOD_S", 10.0),
        control_s=_number("TRAINCTL_CONTROL_PERIOD_S", 1.0),
    )
    desk = Desk(run, attempt, node, periods)
    desk.start()
    me = identity_of(os.getpid())
    assert me is not None
    start = Start(
        run=run,
        attempt=attempt,
        node=node,
        desk=desk,
        me=me,
        told_to_end=lambda: bool(asked),
        started_ms=time.time_ns() // 1_000_000,
        word_bound_s=_number("TRAINCTL_WORD_BOUND_S", WORD_BOUND_S),
    )
    try:
        agent = _begin(start, local_dir)
    except Refused as refused:
        state = start.state(AgentPhase.REFUSED, reason=str(refused))
        print(f"trainctl agent: {node}: attempt {attempt}: {refused}", file=sys.stderr)
        desk.put(state, urgent=True)
        desk.close(CLOSE_BOUND_S)
        return REFUSED
    return agent.run()


def _begin(start: Start, local_dir: Path) -> Tending:
    """Prepare, ask once more whether the attempt is valid, and start the ranks. Raises Refused."""
    spec, node_rank = start.prepare()
    first = node_rank * spec.ranks_per_node
    try:
        folder = LocalFolder.make(local_dir, spec.run_id, spec.attempt, spec.ranks_per_node)
        logs = start.run.logs(spec.attempt, start.node)
        for each in (logs, start.run.flight(spec.attempt, start.node)):
            each.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"no folder for the ranks: {error}") from error
    start.desk.explain, start.desk.logs = _explainer(folder, logs, first), logs
    ranks = Ranks(folder, start.node, first, spec.ranks_per_node)
    failed_grace_s = _number("TRAINCTL_FAILED_GRACE_S", FAILED_GRACE_S)
    agent = Tending(start, spec, folder, ranks, start.desk, logs, failed_grace_s)
    plan = Plan(spec, node_rank, folder, logs, start.port, os.getpid(), dict(os.environ))
    start.heed_new_word()
    try:
        agent.launch(plan)
    except OSError as error:
        raise Refused(f"the launcher cannot be started: {error}") from error
    return agent


def main() -> None:
    """Parse the command line and run."""
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    known = {"--run-dir", "--attempt", "--node", "--local-dir"}
    needed = {"--run-dir", "--attempt"}
    if len(sys.argv) % 2 == 0 or options.keys() - known or needed - options.keys():
        sys.exit(__doc__)
    node = options.get("--node") or os.environ.get("TRAINCTL_NODE") or os.uname().nodename
    folder = Path(options.get("--local-dir") or local_dir())
    code = run_agent(RunDir(Path(options["--run-dir"])), int(options["--attempt"]), node, folder)
    sys.stderr.flush()
    os._exit(code)  # a thread that hangs in a write to storage must not keep us


if __name__ == "__main__":
    main()
