"""
The agent before its first rank: hear the supervisor's word, read launch.json, sweep, get a port.

Whatever is not certain refuses: an agent that cannot know that its attempt is valid starts nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from trainctl.base.cells import read_cell
from trainctl.base.processes import Identity
from trainctl.base.rundir import RunDir
from trainctl.model.agent import AgentPhase, AgentState, LaunchSpec
from trainctl.model.errors import CellError
from trainctl.model.evidence import Evidence
from trainctl.node.control import Word
from trainctl.node.desk import Desk
from trainctl.node.strays import sweep_strays

WORD_BOUND_S = 60.0
PORT_BOUND_S = 300.0
_PAUSE_S = 0.01
_PORT_PAUSE_S = 0.05
_NO_MORE = (AgentPhase.REFUSED, AgentPhase.ENDED)

_spec = msgspec.json.Decoder(LaunchSpec).decode
_state = msgspec.json.Decoder(AgentState).decode


class Refused(Exception):
    """Nothing is started; the text says why. An answer, which the state cell carries."""


@dataclass(slots=True)
class Start:
    """Who this agent is and what it has found; `told_to_end` answers for SIGTERM."""

    run: RunDir
    attempt: int
    node: str
    desk: Desk
    me: Identity
    told_to_end: Callable[[], bool]
    started_ms: int
    word_bound_s: float = WORD_BOUND_S
    port: int = 0
    notes: tuple[Evidence, ...] = field(default=())

    def state(self, phase: AgentPhase, **fields: Any) -> AgentState:
        """The agent's state with what never changes filled in."""
        word = self.desk.word
        told = {
            "ack_term": word.term if word else 0,
            "ack_seq": word.seq if word else 0,
            "notes": self.notes,
            **fields,
        }
        return AgentState(
            node=self.node,
            attempt=self.attempt,
            phase=phase,
            pid=self.me.pid,
            start_ticks=self.me.start_ticks,
            boot=self.me.boot,
            started_ms=self.started_ms,
            port=self.port,
            **told,
        )

    def publish(self) -> None:
        """Say how far we are."""
        self.desk.put(self.state(AgentPhase.STARTING), urgent=True)

    def prepare(self) -> tuple[LaunchSpec, int]:
        """All that comes before the ranks: the launch and our node rank in it. Raises Refused."""
        self.heed_new_word()
        spec = self._read_launch()
        rank = next((k for k, seat in enumerate(spec.seats) if seat.node == self.node), None)
        if rank is None:
            raise Refused(f"{self.node} has no seat in attempt {self.attempt}")
        self.publish()
        if strays := sweep_strays(spec.run_id, self.node, self.attempt):
            pids = ", ".join(str(stray.pid) for stray in strays[:10])
            text = f"killed {len(strays)} processes of earlier attempts: {pids}"
            self.notes = (*self.notes, Evidence(source="sweep", text=text, node=self.node))
        if rank == 0:
            self.port = free_port()
            self.publish()
        else:
            self.port = self._port_of(spec.seats[0].node)
        return spec, rank

    def heed_new_word(self) -> Word:
        """
        Have every control cell read from now on and obey; raises Refused.

        For the moment before the ranks start: a word that was written before this call is heard.
        """
        desk = self.desk
        asked_s = desk.read_all_again()
        deadline = asked_s + self.word_bound_s
        while desk.all_read_s < asked_s or desk.word is None:
            self._heed()
            if time.monotonic() > deadline:
                why = desk.deaf or "no supervisor has said a word to this attempt"
                raise Refused(f"nothing to obey for {self.word_bound_s:g} s: {why}")
            if desk.all_read_s >= asked_s:  # read, and nothing was said yet
                asked_s = desk.read_all_again()
            time.sleep(_PAUSE_S)
        self._heed()
        return desk.word

    def _heed(self) -> None:
        word = self.desk.word
        said = word.said if word else None
        if said and said.void:
            raise Refused(f"attempt {self.attempt} is void")
        if said and (said.kill or said.stop):
            raise Refused("it was ended before its ranks were started")
        if self.told_to_end():
            raise Refused("SIGTERM came before the ranks were started")

    def _read_launch(self) -> LaunchSpec:
        path = self.run.launch(self.attempt)
        try:
            spec = _spec(path.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise Refused(f"{path} cannot be read: {error}") from error
        if spec.attempt != self.attempt:
            raise Refused(f"{path} is of attempt {spec.attempt}, not {self.attempt}")
        return spec

    def _port_of(self, first: str) -> int:
        """The port that the agent of node rank 0 has published."""
        path = self.run.state(self.attempt, first)
        deadline = time.monotonic() + PORT_BOUND_S
        while time.monotonic() < deadline:
            self._heed()
            try:
                cell = read_cell(path)
                state = _state(cell.payload) if cell else None
            except (CellError, msgspec.DecodeError):
                state = None
            if state is not None and state.port:
                return state.port
            if state is not None and state.phase in _NO_MORE:
                raise Refused(f"{first}, which has rank 0, started nothing: {state.reason}")
            time.sleep(_PORT_PAUSE_S)
        raise Refused(f"{first}, which has rank 0, published no port within {PORT_BOUND_S:g} s")


def free_port() -> int:
    """A port that is free on every address of this machine: torch's store listens on all."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def local_dir() -> str:
    """Node-local memory: what the cluster names, else a folder of our own in /dev/shm."""
    return os.environ.get("TRAINCTL_LOCAL_DIR") or f"/dev/shm/trainctl-agent-{os.getuid()}"
