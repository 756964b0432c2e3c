"""
The birth of local nodes: one program that starts a daemon for each, and is gone.

    python -m trainctl.node.daemon  < [{"node", "folder", "run_dir", "log"}, …]

prints who the daemons are, as JSON, and exits. A daemon is in a session of its own and has no
parent-death signal: Ctrl-C in a terminal and the death of the supervisor do not reach it.

In its folder (mode 0700) lie `node.json` (who it is; written once, so that of two daemons for one
node the second gives up), its socket `s.PID`, `steps/NAME` for each step it ever started, and
`mem/`, the node-local memory. What it answers to is in `trainctl.node.node_server`.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any

from trainctl.base.processes import identity_of
from trainctl.node.guard import PR_SET_CHILD_SUBREAPER, prctl
from trainctl.node.node_server import NodeServer, Place

READY_BOUND_S = 10.0


def socket_path(folder_fd: int, name: str) -> str:
    """An address for bind or connect; a path of any depth would not fit into its 108 bytes."""
    return f"/proc/self/fd/{folder_fd}/{name}"


def read_identity(folder: Path) -> dict[str, Any] | None:
    """node.json: pid, start_ticks, boot, socket; None while nobody has taken the place."""
    try:
        found = json.loads((folder / "node.json").read_bytes())
    except FileNotFoundError:
        return None
    return found if isinstance(found, dict) else None


def _take_place(folder: Path) -> tuple[socket.socket | None, dict[str, Any]]:
    """Listen, then become the node by writing node.json; None where another has become it first."""
    me = identity_of(os.getpid())
    assert me is not None
    name = f"s.{me.pid}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(socket_path(folder_fd, name))
        listener.listen(64)
    finally:
        os.close(folder_fd)
    record = {"pid": me.pid, "start_ticks": me.start_ticks, "boot": me.boot, "socket": name}
    temporary = folder / f"node.{me.pid}.tmp"
    temporary.write_text(json.dumps(record))
    try:
        (folder / "node.json").hardlink_to(temporary)
    except FileExistsError:
        listener.close()
        (folder / name).unlink()
        return None, read_identity(folder) or record
    finally:
        temporary.unlink()
    return listener, record


def _live(place: Place, tell: int) -> None:
    """In the child: cut all ties to whoever started us, take the place, and serve."""
    os.setsid()
    for fd, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, str(place.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        os.dup2(os.open(path, flags, 0o640), fd)
    os.dup2(1, 2)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for part in ("mem", "steps"):
        (place.folder / part).mkdir(parents=True, exist_ok=True)
    listener, record = _take_place(place.folder)
    os.write(tell, json.dumps(record).encode())
    os.close(tell)
    if listener is not None:
        NodeServer(place, listener).serve()


def _begin(place: Place) -> int:
    """Fork the daemon of one node; a pipe on which it says who it is."""
    hear, tell = os.pipe()
    if os.fork() == 0:
        os.close(hear)
        code = 1
        try:
            _live(place, tell)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
            raise
        finally:
            os._exit(code)
    os.close(tell)
    return hear


def _hear(pipe: int, deadline: float) -> dict[str, Any]:
    """What the daemon said of itself; an error where it did not in time."""
    data = b""
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0 and ready.select(left):
            chunk = os.read(pipe, 4096)
            if not chunk:
                break
            data += chunk
    os.close(pipe)
    return dict(json.loads(data)) if data else {"error": "it did not come up; see its log"}


def main() -> None:
    """Start the nodes that standard input names and print who they are, in order."""
    entries = json.load(sys.stdin)
    places = [
        Place(
            e["node"],
            Path(e["folder"]),
            Path(e["run_dir"]),
            Path(e["log"]),
            e.get("lease_stale_s", 300.0),
        )
        for e in entries
    ]
    pipes = [_begin(place) for place in places]
    deadline = time.monotonic() + READY_BOUND_S
    print(json.dumps([_hear(pipe, deadline) for pipe in pipes]))


if __name__ == "__main__":
    main()
