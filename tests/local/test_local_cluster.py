"""Local nodes as real processes: granted, found by others, launched on, killed, given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.node_bench import wait_for
from trainctl.adapters.cluster import NodeLife, Step, StepLife
from trainctl.adapters.local import LocalCluster
from trainctl.adapters.local_nodes import state_root
from trainctl.base.cells import CellWriter, create_cell
from trainctl.base.processes import Identity, identity_of, is_alive, kill_all, own_processes_with
from trainctl.base.rundir import RunDir
from trainctl.model.errors import ClusterError
from trainctl.model.events import NodeGrant

SLEEP = ("sleep", "600")
#: A step with a daemonised helper.
TREE = (
    sys.executable, "-I", "-S", "-c",
    "import os, time\n"
    "if os.fork() == 0:\n os.setsid()\n if os.fork(): os._exit(0)\n time.sleep(600)\n"
    "time.sleep(600)",
)  # fmt: skip


class Place:
    """One run on this machine, with a state root of its own and nothing left behind."""

    def __init__(self, folder: Path) -> None:
        self.run_id = f"test-{os.urandom(4).hex()}"
        self.root = folder / ("deep" * 30)  # no socket address would hold this path
        self.root.mkdir(mode=0o700)
        self.run = RunDir(folder / "run")
        self.run.leases.mkdir(parents=True)
        self.cluster = self.another()

    def another(self, **options: float) -> LocalCluster:
        """The adapter as another supervisor process would make it."""
        return LocalCluster(self.run, self.run_id, root=self.root, **options)  # type: ignore[arg-type]

    def alive(self) -> list[Identity]:
        return [each for each, _ in own_processes_with({"TRAINCTL_RUN_ID": self.run_id})]

    def step(self, name: str, nodes: tuple[NodeGrant, ...], *argv: str) -> Step:
        return Step(name, nodes, argv or SLEEP, {}, self.run.nodes(1))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    kill_all(made.alive(), 5.0)


def names(nodes: tuple[NodeGrant, ...]) -> list[str]:
    return [grant.node for grant in nodes]


# --- granting and finding -------------------------------------------------------------------------


def test_the_same_name_is_granted_the_same_nodes(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 3, [])
    assert names(nodes) == ["node-1", "node-2", "node-3"]
    assert len({grant.address for grant in nodes}) == 3
    assert all(grant.address.startswith("127.") for grant in nodes)
    assert place.another().allocate("gang-1", 3, []) == nodes
    assert place.another().find("gang-1") == nodes
    assert len(place.alive()) == 3
    assert place.another().observe(nodes) == dict.fromkeys(names(nodes), NodeLife.UP)


def test_a_name_that_was_never_asked_for_is_found_empty(place: Place) -> None:
    place.cluster.allocate("gang-10", 1, [])
    assert place.cluster.find("gang-1") == ()


def test_two_supervisors_that_ask_at_once_get_the_same_nodes(place: Place) -> None:
    code = (
        "import sys; from pathlib import Path; from trainctl.base.rundir import RunDir\n"
        "from trainctl.adapters.local import LocalCluster\n"
        "run, run_id, root = sys.argv[1:]\n"
        "nodes = LocalCluster(RunDir(Path(run)), run_id, root=Path(root)).allocate('g', 3, [])\n"
        "print([(n.node, n.handle['pid']) for n in nodes])"
    )
    argv = [sys.executable, "-c", code, str(place.run.root), place.run_id, str(place.root)]
    askers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [asker.communicate(timeout=20)[0] for asker in askers]
    assert said[0] != ""
    assert len(set(said)) == 1
    wait_for(lambda: len(place.alive()) == 3)  # a daemon that came second has gone


def test_half_an_allocation_is_found_and_completed(place: Place) -> None:
    place.cluster.allocate("gang-1", 2, [])
    found = place.another().find("gang-1")
    assert names(found) == ["node-1", "node-2"]
    assert names(place.another().allocate("gang-1", 4, [])) == [f"node-{k}" for k in (1, 2, 3, 4)]


def test_an_allocation_cut_before_its_daemon_started_is_completed(place: Place) -> None:
    ledger = place.cluster._ledger
    ledger.claim("gang-1", 0, [], place.cluster._describer("gang-1", 0, place.root / place.run_id))
    assert place.cluster.find("gang-1") == ()
    assert names(place.another().allocate("gang-1", 1, [])) == ["node-1"]


def test_excluded_and_used_names_are_not_given_again(place: Place) -> None:
    first = place.cluster.allocate("gang-1", 1, ["node-1"])
    assert names(first) == ["node-2"]
    place.cluster.kill_node(first[0])
    place.cluster.release(first)
    assert "node-2" not in names(place.cluster.allocate("gang-2", 2, []))


def test_a_gangs_name_is_no_path(place: Place) -> None:
    with pytest.raises(ClusterError, match="no name for a gang"):
        place.cluster.allocate("../evil", 1, [])


def test_nodes_survive_the_death_of_their_creator_and_ctrl_c(place: Place) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from trainctl.base.rundir import RunDir\n"
        "from trainctl.adapters.local import LocalCluster\n"
        "run, run_id, root = sys.argv[1:]\n"
        "LocalCluster(RunDir(Path(run)), run_id, root=Path(root)).allocate('gang-1', 2, [])\n"
        "print('up', flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-c", code, str(place.run.root), place.run_id, str(place.root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as creator:
        assert creator.stdout is not None
        assert creator.stdout.readline() == b"up\n"
        os.killpg(creator.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
        creator.wait(5)
    nodes = place.cluster.find("gang-1")
    assert names(nodes) == ["node-1", "node-2"]
    place.cluster.launch(place.step("s", nodes))
    assert set(place.cluster.observe(nodes).values()) == {NodeLife.UP}


def test_a_state_root_that_others_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    monkeypatch.setenv("TRAINCTL_LOCAL_ROOT", str(root))
    assert state_root().stat().st_mode & 0o777 == 0o700
    root.chmod(0o777)
    with pytest.raises(ClusterError, match="TRAINCTL_LOCAL_ROOT"):
        state_root()
    root.rmdir()
    (tmp_path / "elsewhere").mkdir()
    root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ClusterError, match="TRAINCTL_LOCAL_ROOT"):
        state_root()


# --- life and death -------------------------------------------------------------------------------


def test_killing_a_node_kills_its_tree_and_no_other(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 2, [])
    place.cluster.launch(place.step("s", nodes, *TREE))
    wait_for(lambda: len(place.alive()) == 2 * 4)  # daemon, guard, step, helper
    place.cluster.kill_node(nodes[0])
    assert len(place.alive()) == 4
    assert place.cluster.observe(nodes) == {"node-1": NodeLife.GONE, "node-2": NodeLife.UP}


def test_a_daemon_that_dies_alone_takes_its_steps_along(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 1, [])
    place.cluster.launch(place.step("s", nodes, *TREE))
    wait_for(lambda: len(place.alive()) == 4)
    os.kill(int(nodes[0].handle["pid"]), signal.SIGKILL)
    wait_for(lambda: not place.alive(), 5.0)


def test_a_pid_that_was_used_again_is_no_node(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 1, [])
    with subprocess.Popen(["sleep", "600"]) as stranger:
        handle = {**nodes[0].handle, "pid": stranger.pid}
        node = NodeGrant("node-9", "127.0.0.9", 1, handle)
        assert place.cluster.observe([node]) == {"node-9": NodeLife.GONE}
        place.cluster.kill_node(node)
        place.cluster.release([node])
        assert stranger.poll() is None
        stranger.kill()


def test_a_node_of_another_host_is_not_judged(place: Place) -> None:
    node = NodeGrant(
        "node-9", "127.0.0.9", 1, {"pid": 1, "start_ticks": 1, "boot": "b", "host": "x"}
    )
    assert place.cluster.observe([node]) == {"node-9": NodeLife.UNKNOWN}


def test_a_node_nobody_needs_ends_by_itself(place: Place) -> None:
    cluster = place.another(lease_stale_s=0.6)
    nodes = cluster.allocate("gang-1", 2, [])
    cluster.launch(place.step("s", nodes[:1]))
    wait_for(lambda: cluster.observe(nodes)["node-2"] is NodeLife.GONE)
    time.sleep(0.5)
    assert cluster.observe(nodes)["node-1"] is NodeLife.UP  # a step runs there
    cluster.tear_down("s", nodes[:1], 5.0)
    wait_for(lambda: cluster.observe(nodes)["node-1"] is NodeLife.GONE)
    assert place.alive() == []


def test_a_renewed_lease_keeps_idle_nodes(place: Place) -> None:
    place.run.ousted(1).touch()
    create_cell(place.run.lease(1))
    lease = CellWriter(place.run.lease(1), 1)
    cluster = place.another(lease_stale_s=0.8)
    nodes = cluster.allocate("gang-1", 1, [])
    for _ in range(20):
        lease.write(b"{}")
        time.sleep(0.1)
    assert cluster.observe(nodes)["node-1"] is NodeLife.UP


# --- steps ----------------------------------------------------------------------------------------


def test_a_step_is_started_once_whoever_asks(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 2, [])
    trace = place.run.root / "trace"
    step = place.step("s", nodes, "sh", "-c", f"echo x >> {trace}; exec sleep 600")
    assert place.cluster.find_step("s", nodes) == dict.fromkeys(names(nodes), StepLife.ABSENT)
    place.cluster.launch(step)
    place.another().launch(step)
    wait_for(lambda: trace.exists() and trace.read_text().count("x") == 2)
    time.sleep(0.2)
    assert trace.read_text().count("x") == 2
    assert place.another().find_step("s", nodes) == dict.fromkeys(names(nodes), StepLife.RUNNING)


def test_a_step_finds_its_node_and_its_output_is_kept(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 2, [])
    code = 'echo "$TRAINCTL_NODE $TRAINCTL_RUN_ID $GLOO_SOCKET_IFNAME $MINE"; exit 4'
    step = Step("s", nodes, ("sh", "-c", code), {"MINE": "1"}, place.run.nodes(1))
    place.cluster.launch(step)
    wait_for(lambda: set(place.cluster.find_step("s", nodes).values()) == {StepLife.ENDED})
    log = place.run.logs(1, "node-2") / "agent.log"
    assert log.read_text() == f"node-2 {place.run_id} lo 1\n"


def test_a_launch_names_the_nodes_that_did_not_take_it(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 2, [])
    place.cluster.kill_node(nodes[1])
    with pytest.raises(ClusterError, match="node-2"):
        place.cluster.launch(place.step("s", nodes))
    assert place.cluster.find_step("s", nodes) == {
        "node-1": StepLife.RUNNING,
        "node-2": StepLife.ABSENT,
    }


def test_what_ran_on_a_dead_node_has_ended(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 1, [])
    place.cluster.launch(place.step("s", nodes))
    place.cluster.kill_node(nodes[0])
    assert place.cluster.find_step("s", nodes) == {"node-1": StepLife.ENDED}
    assert place.cluster.find_step("other", nodes) == {"node-1": StepLife.ABSENT}


@pytest.mark.parametrize("stopped", [False, True])
def test_a_torn_down_step_leaves_nothing_and_other_steps_alone(place: Place, stopped: bool) -> None:
    nodes = place.cluster.allocate("gang-1", 2, [])
    place.cluster.launch(place.step("s", nodes, *TREE))
    place.cluster.launch(place.step("other", nodes[:1], *TREE))
    wait_for(lambda: len(place.alive()) == 2 + 3 * 3)
    if stopped:
        for each in place.alive():
            if each.pid not in [grant.handle["pid"] for grant in nodes]:
                os.kill(each.pid, signal.SIGSTOP)
    assert place.cluster.tear_down("s", nodes, 5.0) == ()
    assert len(place.alive()) == 2 + 3
    assert place.cluster.find_step("s", nodes) == dict.fromkeys(names(nodes), StepLife.ENDED)
    assert place.cluster.find_step("other", nodes)["node-1"] is StepLife.RUNNING
    assert place.cluster.tear_down("never", nodes, 5.0) == ()


def test_a_node_that_does_not_answer_is_named_and_bounded(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 2, [])
    place.cluster.launch(place.step("s", nodes))
    os.kill(int(nodes[0].handle["pid"]), signal.SIGSTOP)
    began = time.monotonic()
    assert place.cluster.tear_down("s", nodes, 0.5) == ("node-1",)
    assert time.monotonic() - began < 5.0
    os.kill(int(nodes[0].handle["pid"]), signal.SIGCONT)


def test_a_launch_on_four_nodes_is_quick(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 4, [])
    took = []
    for k in range(5):
        began = time.monotonic()
        place.cluster.launch(place.step(f"s{k}", nodes, "true"))
        took.append(time.monotonic() - began)
    assert min(took) < 0.06, took  # 15 ms alone; the bar is 30, and this machine is shared


# --- giving back ----------------------------------------------------------------------------------


def test_nothing_survives_release(place: Place) -> None:
    before_ms = time.time_ns() // 1_000_000
    nodes = place.cluster.allocate("gang-1", 3, [])
    place.cluster.launch(place.step("s", nodes, *TREE))
    wait_for(lambda: len(place.alive()) == 3 * 4)
    place.cluster.kill_node(nodes[2])
    place.cluster.observe(nodes)
    died_ms = time.time_ns() // 1_000_000
    time.sleep(0.2)
    spans = place.cluster.release(nodes)
    assert place.alive() == []
    assert list(place.root.iterdir()) == []
    assert [span.node for span in spans] == names(nodes)
    assert all(before_ms <= span.start_ms < span.end_ms for span in spans)
    assert spans[2].end_ms <= died_ms < spans[0].end_ms  # a dead node ended when it was found dead
    assert place.another().release(nodes) == spans
    assert place.cluster.find("gang-1") == ()
    assert set(place.cluster.observe(nodes).values()) == {NodeLife.GONE}


def test_a_stopped_daemon_is_given_back_all_the_same(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 1, [])
    place.cluster.launch(place.step("s", nodes, *TREE))
    wait_for(lambda: len(place.alive()) == 4)
    os.kill(int(nodes[0].handle["pid"]), signal.SIGSTOP)
    (span,) = place.another(answer_s=0.5).release(nodes)
    assert span.end_ms > span.start_ms
    assert place.alive() == []


def test_what_a_dead_node_left_behind_dies_at_release(place: Place) -> None:
    nodes = place.cluster.allocate("gang-1", 1, [])
    mark = {"TRAINCTL_LOCAL_NODE": str(nodes[0].handle["folder"]), "TRAINCTL_RUN_ID": place.run_id}
    left = subprocess.Popen(SLEEP, env={**os.environ, **mark})
    stranger = subprocess.Popen(SLEEP, env={**os.environ, "TRAINCTL_LOCAL_NODE": "/another"})
    try:
        place.cluster.kill_node(nodes[0])
        place.cluster.release(nodes)
        assert left.wait(5) == -signal.SIGKILL
        me = identity_of(stranger.pid)
        assert me is not None
        assert is_alive(me)
    finally:
        stranger.kill()
        stranger.wait()
