"""How the local cluster reaches its nodes: where they live, how they are started and asked."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainctl.base.proc import run as run_command
from trainctl.base.rundir import RunDir
from trainctl.model.errors import ClusterError
from trainctl.model.events import NodeGrant
from trainctl.node.daemon import socket_path
from trainctl.node.ledger import Grant

ROOT_VARIABLE = "TRAINCTL_LOCAL_ROOT"
START_BOUND_S = 30.0
_REPLY_LIMIT = 1 << 20


def state_root() -> Path:
    """The folder for sockets and node-local memory: ours alone, made if need be."""
    if given := os.environ.get(ROOT_VARIABLE):
        root = Path(given)
    else:
        shared = Path("/dev/shm")
        base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        root = base / f"trainctl-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.lstat()
    # The name in a folder that all may write can be guessed: somebody else may have made it first.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ClusterError(
            f"{root}: must be a folder of our own that nobody else can write; "
            f"remove it, or set {ROOT_VARIABLE} to another one"
        )
    return root


def start_daemons(grants: Sequence[Grant], run: RunDir, run_id: str, lease_stale_s: float) -> None:
    """
    Start the daemons of these nodes; ClusterError naming the nodes that did not come up.

    A node without a step ends by itself once the lease has been stale for `lease_stale_s`.
    """
    for grant in grants:
        Path(grant.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    entries = [
        {
            "node": grant.node,
            "folder": grant.folder,
            "run_dir": str(run.root),
            "log": str(run.cluster / f"{grant.node}.log"),
            "lease_stale_s": lease_stale_s,
        }
        for grant in grants
    ]
    done = run_command(
        [sys.executable, "-m", "trainctl.node.daemon"],
        START_BOUND_S,
        input=json.dumps(entries),
        env={**os.environ, "TRAINCTL_RUN_ID": run_id},
    )
    if done.code != 0:
        last = done.err.strip().rpartition("\n")[2] or f"exit code {done.code}"
        raise ClusterError(f"the local nodes could not be started: {last}")
    answers = json.loads(done.out)
    if failed := [g.node for g, answer in zip(grants, answers, strict=True) if "error" in answer]:
        raise ClusterError(f"{', '.join(failed)} did not come up; see the logs in {run.cluster}")


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one node."""

    grant: NodeGrant
    request: dict[str, Any]


def ask_all(calls: Sequence[Call], timeout_s: float) -> dict[str, dict[str, Any]]:
    """
    Put all requests, then collect the replies, by node; together at most about `timeout_s`.

    A node that cannot be asked or does not answer in time has `ok` false and an `error`.
    """
    deadline = time.monotonic() + timeout_s
    lines = [(call.grant.node, _send(call, deadline)) for call in calls]
    return {
        node: _receive(line, deadline) if isinstance(line, socket.socket) else line
        for node, line in lines
    }


def _send(call: Call, deadline: float) -> socket.socket | dict[str, Any]:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(max(0.01, deadline - time.monotonic()))
    handle = call.grant.handle
    try:
        folder_fd = os.open(str(handle["folder"]), os.O_PATH | os.O_DIRECTORY)
        try:
            line.connect(socket_path(folder_fd, str(handle["socket"])))
        finally:
            os.close(folder_fd)
        line.sendall(json.dumps(call.request).encode() + b"\n")
    except OSError as error:
        line.close()
        return {"ok": False, "error": f"cannot ask: {error}"}
    return line


def _receive(line: socket.socket, deadline: float) -> dict[str, Any]:
    data = bytearray()
    try:
        while not data.endswith(b"\n"):
            line.settimeout(max(0.01, deadline - time.monotonic()))
            chunk = line.recv(1 << 16)
            data += chunk
            if not chunk or len(data) > _REPLY_LIMIT:
                return {"ok": False, "error": "the node hung up before it had answered"}
        return dict(json.loads(data))
    except (OSError, ValueError) as error:
        return {"ok": False, "error": f"no answer: {error}"}
    finally:
        line.close()
