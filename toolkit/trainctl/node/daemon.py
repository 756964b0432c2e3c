"""
A node of the local cluster: a process that holds the place of a machine.

    python -m trainctl.node.daemon  < [{"node", "folder", "run_dir", "log"}, …]

starts one daemon for each entry, prints who they are as JSON, and exits. A daemon is in a session
of its own and has no parent-death signal: Ctrl-C in a terminal and the death of the supervisor do
not reach it. It is a child subreaper: all that its steps leave behind comes back to it and dies.

In its folder (mode 0700) lie `node.json` (who it is; written once, so that of two daemons for one
node the second gives up), its socket `s.PID`, `steps/NAME` for each step it ever started, and
`mem/`, the node-local memory. Over the socket it takes one JSON object a connection, ended by a
newline:

    {"op": "ping"}                                → {"ok": true, "node": …}
    {"op": "start", "name", "argv", "env", "output"}  start once; a second time nothing happens
    {"op": "steps"}                               → {"ok": true, "steps": {NAME: code | null}}
    {"op": "kill", "name", "timeout_s"}           → {"ok": true, "left": [pids]} when all are gone
    {"op": "shutdown"}                              kill all, answer, end

It ends by itself when no step runs and the run's lease has been stale for five minutes.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainctl.base.proc import spawn
from trainctl.base.processes import (
    Identity,
    descendants,
    identity_of,
    kill_tree,
    send_signal,
)
from trainctl.base.rundir import RunDir
from trainctl.node.guard import PR_SET_CHILD_SUBREAPER, prctl
from trainctl.node.lease_age import LeaseAge

GUARD = Path(__file__).with_name("guard.py")
LEASE_STALE_S = 300.0
TICK_S = 5.0
#: While something is being killed.
KILL_TICK_S = 0.005
REQUEST_BOUND_S = 1.0
REQUEST_LIMIT = 4 << 20
READY_BOUND_S = 10.0
SHUTDOWN_BOUND_S = 10.0


@dataclass(frozen=True, slots=True)
class Place:
    """What a daemon is told at its birth."""

    node: str
    folder: Path
    run_dir: Path
    log: Path


@dataclass(slots=True)
class _Step:
    name: str
    guard: Identity
    code: int | None = None
    doomed: bool = False


@dataclass(slots=True)
class _Waiting:
    """Somebody waits for a step, or for all ("" ), to be gone."""

    connection: socket.socket
    name: str
    deadline: float


@dataclass(slots=True)
class Daemon:
    """One node, from its socket to its end."""

    place: Place
    listener: socket.socket
    lease_stale_s: float = LEASE_STALE_S
    _steps: dict[str, _Step] = field(default_factory=dict)
    _waiting: list[_Waiting] = field(default_factory=list)
    _ending: bool = False
    _sweep_until: float = 0.0

    def serve(self) -> None:
        """Answer until told to end, or until nobody needs this node any more."""
        alarm, self_pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self_pipe, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        for deaf in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(deaf, signal.SIG_IGN)
        lease = LeaseAge(RunDir(self.place.run_dir))
        next_look = 0.0
        with selectors.DefaultSelector() as ready:
            ready.register(self.listener, selectors.EVENT_READ)
            ready.register(alarm, selectors.EVENT_READ)
            while not (self._ending and not self._busy()):
                for key, _ in ready.select(KILL_TICK_S if self._busy() else TICK_S):
                    if key.fd == alarm:
                        os.read(alarm, 4096)
                    else:
                        self._serve_one()
                self._reap()
                self._kill_on()
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + TICK_S
                    if lease.look() > self.lease_stale_s and not self._running():
                        self._end()
        self._answer_all_waiting()
        self.listener.close()

    # --- requests -------------------------------------------------------------------------------

    def _serve_one(self) -> None:
        connection, _ = self.listener.accept()
        connection.settimeout(REQUEST_BOUND_S)
        try:
            request = _receive(connection)
            reply = self._handle(request, connection)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        if reply is not None:
            _answer(connection, reply)

    def _handle(self, request: dict[str, Any], connection: socket.socket) -> dict[str, Any] | None:
        """The reply; None when it comes later."""
        match request["op"]:
            case "ping":
                return {"ok": True, "node": self.place.node}
            case "start":
                return self._start(request)
            case "steps":
                return {"ok": True, "steps": {s.name: s.code for s in self._steps.values()}}
            case "kill":
                return self._kill(str(request["name"]), float(request["timeout_s"]), connection)
            case "shutdown":
                self._end()
                deadline = time.monotonic() + SHUTDOWN_BOUND_S
                self._waiting.append(_Waiting(connection, "", deadline))
                return None
            case other:
                return {"ok": False, "error": f"unknown request {other!r}"}

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        name, output = str(request["name"]), Path(request["output"])
        if self._ending:
            return {"ok": False, "error": "the node is being given back"}
        if name in self._steps:
            return {"ok": True, "started": False}
        output.parent.mkdir(parents=True, exist_ok=True)
        env = {
            **os.environ,
            **request["env"],
            "TRAINCTL_NODE": self.place.node,
            "TRAINCTL_LOCAL_NODE": str(self.place.folder),
            "TRAINCTL_LOCAL_DIR": str(self.place.folder / "mem"),
        }
        guard = [sys.executable, "-I", "-S", str(GUARD), "--parent", str(os.getpid()), "--"]
        # The trace comes first: a step of a dead node is then known to have been here.
        (self.place.folder / "steps" / name).touch()
        identity = spawn([*guard, *request["argv"]], env=env, stdout=output, new_session=True)
        self._steps[name] = _Step(name, identity)
        return {"ok": True, "started": True}

    def _kill(
        self, name: str, timeout_s: float, connection: socket.socket
    ) -> dict[str, Any] | None:
        step = self._steps.get(name)
        if step is None:
            return {"ok": True, "left": []}
        self._doom(step)
        self._waiting.append(_Waiting(connection, name, time.monotonic() + timeout_s))
        return None

    # --- ends -----------------------------------------------------------------------------------

    def _end(self) -> None:
        self._ending = True
        for step in self._running():
            self._doom(step)

    def _doom(self, step: _Step) -> None:
        if step.code is None and not step.doomed:
            step.doomed = True
            kill_tree(step.guard, timeout_s=1.0)
        self._sweep_until = time.monotonic() + SHUTDOWN_BOUND_S

    def _running(self) -> list[_Step]:
        return [step for step in self._steps.values() if step.code is None]

    def _busy(self) -> bool:
        return bool(self._waiting) or time.monotonic() < self._sweep_until

    def _reap(self) -> None:
        by_pid = {step.guard.pid: step for step in self._running()}
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in by_pid:
                    by_pid[pid].code = os.waitstatus_to_exitcode(status)
                    self._sweep_until = time.monotonic() + SHUTDOWN_BOUND_S
        except ChildProcessError:
            return

    def _kill_on(self) -> None:
        """
        While something ends: kill what it left, and answer those who wait.

        A living step's guard is a subreaper of its own, so a child of ours that is no such guard
        was left by a step that has ended.
        """
        if not self._busy():
            return
        strays = self._strays()
        for stray in strays:
            send_signal(stray, signal.SIGKILL)
        if not strays and not any(step.doomed for step in self._running()):
            self._sweep_until = 0.0
        self._waiting = [each for each in self._waiting if not self._settle(each, strays)]

    def _strays(self) -> list[Identity]:
        living = {step.guard.pid for step in self._running() if not step.doomed}
        below = descendants(os.getpid())
        spared = living | {each.pid for guard in living for each in descendants(guard)}
        return [each for each in below if each.pid not in spared]

    def _settle(self, waiting: _Waiting, strays: list[Identity]) -> bool:
        """Answer one who waits, if it is time; True when answered."""
        step = self._steps.get(waiting.name)
        gone = not strays and (step is None or step.code is not None)
        if not gone and time.monotonic() < waiting.deadline:
            return False
        _answer(waiting.connection, {"ok": True, "left": [stray.pid for stray in strays]})
        return True

    def _answer_all_waiting(self) -> None:
        for waiting in self._waiting:
            _answer(waiting.connection, {"ok": True, "left": []})


def _receive(connection: socket.socket) -> dict[str, Any]:
    data = bytearray()
    while not data.endswith(b"\n"):
        chunk = connection.recv(1 << 16)
        data += chunk
        if not chunk or len(data) > REQUEST_LIMIT:
            raise ValueError("the request is cut or too long")
    request = json.loads(data)
    if not isinstance(request, dict):
        raise TypeError("a request is an object")
    return request


def _answer(connection: socket.socket, reply: dict[str, Any]) -> None:
    """Send and close; a caller that has gone away is its own affair."""
    try:
        connection.sendall(json.dumps(reply).encode() + b"\n")
    except OSError:
        return
    finally:
        connection.close()


# --- birth --------------------------------------------------------------------------------------


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
        Daemon(place, listener).serve()


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
        Place(e["node"], Path(e["folder"]), Path(e["run_dir"]), Path(e["log"])) for e in entries
    ]
    pipes = [_begin(place) for place in places]
    deadline = time.monotonic() + READY_BOUND_S
    print(json.dumps([_hear(pipe, deadline) for pipe in pipes]))


if __name__ == "__main__":
    main()
