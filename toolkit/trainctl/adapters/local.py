"""
The local cluster: processes on this machine that stand for nodes.

A node is a daemon (`trainctl.node.daemon`) with a loopback address and a folder of its own; it is
known by pid, start time and boot id, so any process of the same user on this machine can find it,
use it and give it back. What was granted and for how long stands in the run directory
(`trainctl.node.ledger`). Sockets and node-local memory are in `TRAINCTL_LOCAL_ROOT`, else in
/dev/shm, else in the temporary folder: one folder a run, which goes with its last node.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from trainctl.adapters.cluster import NodeLife, Span, Step, StepLife
from trainctl.adapters.local_nodes import Call, ask_all, start_daemons, state_root
from trainctl.base.clock import Clock, SystemClock
from trainctl.base.processes import Identity, is_alive, kill_all, kill_tree, own_processes_with
from trainctl.base.rundir import RunDir
from trainctl.model.errors import ClusterError
from trainctl.model.events import NodeGrant
from trainctl.node.daemon import read_identity
from trainctl.node.ledger import Grant, Ledger

ASK_BOUND_S = 10.0
LOOK_BOUND_S = 1.0
"""For what is asked several times a second; no answer is `unknown`, and asked again."""
KILL_BOUND_S = 5.0

LOCAL_ENV = {
    # All nodes are this machine: gloo must not look its host name up.
    "GLOO_SOCKET_IFNAME": "lo",
    # Cells are on a local disk and nodes are few: see more, sooner.
    "TRAINCTL_CELL_PERIOD_S": "1",
    "TRAINCTL_CONTROL_PERIOD_S": "0.03",
}
"""What agents and ranks on local nodes find set, unless the step says otherwise."""


class LocalCluster:
    """The nodes of one run on this machine; `cluster.Cluster` says what each call means."""

    def __init__(
        self,
        run: RunDir,
        run_id: str,
        *,
        root: Path | None = None,
        clock: Clock | None = None,
        lease_stale_s: float = 300.0,
        answer_s: float = ASK_BOUND_S,
    ) -> None:
        self._run = run
        self._run_id = run_id
        self._root = root
        self._clock = clock or SystemClock()
        self._ledger = Ledger(run.cluster)
        self._lease_stale_s = lease_stale_s
        #: A node that has not answered by then is taken for one that cannot be asked.
        self._answer_s = answer_s
        self._look_s = min(answer_s, LOOK_BOUND_S)

    # --- nodes ------------------------------------------------------------------------------------

    def allocate(self, name: str, count: int, exclude: Sequence[str]) -> tuple[NodeGrant, ...]:
        """Start what is missing of `count` nodes; half an allocation is completed, not repeated."""
        folder = (self._root or state_root()) / self._run_id
        claims = [
            self._ledger.claim(name, index, exclude, self._describer(name, index, folder))
            for index in range(count)
        ]
        held = [claim for claim in claims if self._ledger.released(claim.node) is None]
        missing = [claim for claim in held if read_identity(Path(claim.folder)) is None]
        if missing:
            start_daemons(missing, self._run, self._run_id, self._lease_stale_s)
        return tuple(grant for claim in held if (grant := _grant(claim)) is not None)

    def find(self, name: str) -> tuple[NodeGrant, ...]:
        """The nodes under `name` that came up and were not given back; dead ones included."""
        held = (
            claim
            for claim in self._ledger.grants(name)
            if self._ledger.released(claim.node) is None
        )
        return tuple(grant for claim in held if (grant := _grant(claim)) is not None)

    def observe(self, nodes: Sequence[NodeGrant]) -> dict[str, NodeLife]:
        """A look into /proc; the first to see a node dead writes down when."""
        return {grant.node: self._life(grant) for grant in nodes}

    def kill_node(self, grant: NodeGrant) -> None:
        """Fault injection: KILL the node's whole process tree at one instant."""
        left = kill_tree(_identity(grant), KILL_BOUND_S)
        if left:
            raise ClusterError(f"{grant.node}: {len(left)} processes did not die of KILL")

    def release(self, nodes: Sequence[NodeGrant]) -> tuple[Span, ...]:
        """Shut the nodes down, dead or alive, and remove all they had."""
        held = [grant for grant in nodes if self._ledger.released(grant.node) is None]
        living = [grant for grant in held if self._life(grant) is NodeLife.UP]
        ask_all([Call(grant, {"op": "shutdown"}) for grant in living], self._answer_s)
        for grant in held:
            self._clear(grant, "given back" if grant in living else "found dead")
        return tuple(Span(grant.node, grant.start_ms, self._ledger_end(grant)) for grant in nodes)

    # --- steps ------------------------------------------------------------------------------------

    def launch(self, step: Step) -> None:
        """Ask all daemons at once; each starts the step of a name a single time."""
        request = {
            "op": "start",
            "name": step.name,
            "argv": list(step.argv),
            "env": {**LOCAL_ENV, **step.env, "TRAINCTL_RUN_ID": self._run_id},
        }
        replies = ask_all(
            [
                Call(g, {**request, "output": str(step.output / g.node / "log" / "agent.log")})
                for g in step.nodes
            ],
            self._answer_s,
        )
        failed = [
            f"{node}: {reply.get('error', 'no reason')}"
            for node, reply in replies.items()
            if not reply.get("ok")
        ]
        if failed:
            raise ClusterError(f"step {step.name} was not started on {'; '.join(failed)}")

    def find_step(self, name: str, nodes: Sequence[NodeGrant]) -> dict[str, StepLife]:
        """By the daemons; of a dead node by the trace that the step left in its folder."""
        living = [grant for grant in nodes if self._life(grant) is NodeLife.UP]
        replies = ask_all([Call(grant, {"op": "steps"}) for grant in living], self._look_s)
        found: dict[str, StepLife] = {}
        for grant in nodes:
            reply = replies.get(grant.node)
            if reply is None:
                found[grant.node] = self._trace(name, grant)
            elif not reply.get("ok"):
                found[grant.node] = StepLife.UNKNOWN
            elif name not in reply["steps"]:
                found[grant.node] = StepLife.ABSENT
            else:
                running = reply["steps"][name] is None
                found[grant.node] = StepLife.RUNNING if running else StepLife.ENDED
        return found

    def tear_down(self, name: str, nodes: Sequence[NodeGrant], timeout_s: float) -> tuple[str, ...]:
        """The daemons kill the step and answer when it is gone; what dead nodes left we kill."""
        living = [grant for grant in nodes if self._life(grant) is NodeLife.UP]
        request = {"op": "kill", "name": name, "timeout_s": timeout_s}
        replies = ask_all([Call(grant, request) for grant in living], timeout_s + 1.0)
        left = [node for node, reply in replies.items() if not reply.get("ok") or reply["left"]]
        for grant in nodes:
            # One that was alive when we asked may have died since, and then left things behind.
            if self._life(grant) is NodeLife.GONE:
                if grant.node in left:
                    left.remove(grant.node)
                if self._kill_marked(grant):
                    left.append(grant.node)
        return tuple(left)

    # --- one node ---------------------------------------------------------------------------------

    def _describer(self, gang: str, index: int, folder: Path) -> Callable[[str, int], Grant]:
        start_ms = self._clock.utc_ms()
        # Nodes of one run differ in the last two bytes, runs mostly in the second.
        second = 1 + zlib.crc32(self._run_id.encode()) % 254

        def describe(node: str, number: int) -> Grant:
            return Grant(
                gang=gang,
                index=index,
                node=node,
                address=f"127.{second}.{number // 250}.{1 + number % 250}",
                folder=str(folder / node),
                start_ms=start_ms,
            )

        return describe

    def _life(self, grant: NodeGrant) -> NodeLife:
        if grant.handle.get("host") != platform.node():
            return NodeLife.UNKNOWN
        if self._ledger.died(grant.node) or self._ledger.released(grant.node):
            return NodeLife.GONE
        if is_alive(_identity(grant)):
            return NodeLife.UP
        self._ledger.record_death(grant.node, self._clock.utc_ms(), "its daemon is gone")
        return NodeLife.GONE

    def _trace(self, name: str, grant: NodeGrant) -> StepLife:
        if self._life(grant) is NodeLife.UNKNOWN:
            return StepLife.UNKNOWN
        was_here = (_folder(grant) / "steps" / name).exists()
        return StepLife.ENDED if was_here else StepLife.ABSENT

    def _kill_marked(self, grant: NodeGrant) -> tuple[Identity, ...]:
        """KILL what carries the node's mark in its environment; those that did not die of it."""
        deadline = time.monotonic() + KILL_BOUND_S
        mark = {"TRAINCTL_LOCAL_NODE": grant.handle["folder"]}
        left: tuple[Identity, ...] = ()
        while found := own_processes_with({key: str(value) for key, value in mark.items()}):
            left = kill_all((each for each, _ in found), deadline - time.monotonic())
            if left or time.monotonic() > deadline:
                break
        return left

    def _clear(self, grant: NodeGrant, why: str) -> None:
        """Nothing of the node is left after this, and its end is written down."""
        left = (*kill_tree(_identity(grant), KILL_BOUND_S), *self._kill_marked(grant))
        if left:
            pids = ", ".join(str(each.pid) for each in left)
            raise ClusterError(f"{grant.node}: processes {pids} do not die; is a disk stuck?")
        shutil.rmtree(_folder(grant), ignore_errors=True)
        with contextlib.suppress(OSError):  # other nodes of the run live there
            _folder(grant).parent.rmdir()
        self._ledger.record_release(grant.node, self._clock.utc_ms(), why)

    def _ledger_end(self, grant: NodeGrant) -> int:
        end = self._ledger.released(grant.node)
        return 0 if end is None else end.end_ms


def _grant(claim: Grant) -> NodeGrant | None:
    """The grant as others see it; None while its daemon has never come up."""
    identity = read_identity(Path(claim.folder))
    if identity is None:
        return None
    handle = {**identity, "folder": claim.folder, "host": platform.node()}
    return NodeGrant(claim.node, claim.address, claim.start_ms, handle)


def _identity(grant: NodeGrant) -> Identity:
    handle = grant.handle
    return Identity(int(handle["pid"]), int(handle["start_ticks"]), str(handle["boot"]))


def _folder(grant: NodeGrant) -> Path:
    return Path(str(grant.handle["folder"]))
