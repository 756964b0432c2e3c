"""
A node of the local cluster at work: one process that holds the place of a machine.

It is a child subreaper: all that its steps leave behind comes back to it and dies. Over its socket
it takes one JSON object a connection, ended by a newline:

    {"op": "ping"}                                    → {"ok": true, "node": …}
    {"op": "start", "name", "argv", "env", "output"}  start once; a second time nothing happens
    {"op": "steps"}                                   → {"ok": true, "steps": {NAME: code | null}}
    {"op": "kill", "name", "timeout_s"}               → {"ok": true, "left": [pids]}, when gone
    {"op": "shutdown"}                                kill all, answer, end

It ends by itself when no step runs and the run's lease has been stale for `lease_stale_s`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainctl.base.processes import (
    Identity,
    descendants,
    kill_tree,
    send_signal,
)
from trainctl.base.rundir import RunDir
from trainctl.base.spawning import spawn
from trainctl.node.lease_age import LeaseAge

GUARD = Path(__file__).with_name("guard.py")
TICK_S = 5.0
#: While something is being killed.
KILL_TICK_S = 0.005
REQUEST_BOUND_S = 1.0
REQUEST_LIMIT = 4 << 20
SHUTDOWN_BOUND_S = 10.0


@dataclass(frozen=True, slots=True)
class Place:
    """What a node is told at its birth."""

    node: str
    folder: Path
    run_dir: Path
    log: Path
    lease_stale_s: float = 300.0


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
class NodeServer:
    """One node, from its socket to its end."""

    place: Place
    listener: socket.socket
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
            tick_s = min(TICK_S, self.place.lease_stale_s / 4)
            while not (self._ending and not self._busy()):
                for key, _ in ready.select(KILL_TICK_S if self._busy() else tick_s):
                    if key.fd == alarm:
                        os.read(alarm, 4096)
                    else:
                        self._serve_one()
                self._reap()
                self._kill_on()
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + tick_s
                    if lease.look() > self.place.lease_stale_s and not self._running():
                        self._end()
                        self._record_own_end()
        self._answer_all_waiting()
        self.listener.close()

    def _record_own_end(self) -> None:
        """Nobody will look for long: say when our time ended, and free what is not needed."""
        from trainctl.node.ledger import Ledger  # only a node that ends so needs it

        place = self.place
        if place.run_dir.exists():
            shutil.rmtree(place.folder / "mem", ignore_errors=True)
            at_ms, why = time.time_ns() // 1_000_000, "no step and no supervisor"
            Ledger(RunDir(place.run_dir).cluster).record_death(place.node, at_ms, why)
            return
        shutil.rmtree(place.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other nodes of the run live there
            place.folder.parent.rmdir()

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
