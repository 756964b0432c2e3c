"""
What an agent and a supervisor tell each other: the payloads of the state and control cells,
launch.json, and the lines of trainer.jsonl.

Each has one writer: launch.json and control cells the supervisor, the state cell the agent of that
node, trainer.jsonl global rank 0.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from trainctl.model.evidence import Evidence, RankExit


class Launcher(StrEnum):
    """What starts the ranks on a node."""

    TORCHRUN = "torchrun"
    #: The agent starts the ranks itself and sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and
    #: _PORT.
    PLAIN = "plain"


class NodeSeat(msgspec.Struct, frozen=True):
    """A node at its place in an attempt: its index in `LaunchSpec.seats` is the node rank."""

    node: str
    address: str


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """
    launch.json: the claim on an attempt number, and all that an agent needs to start its ranks.

    `command` still has its holes `{checkpoint} {stop_file} {run_dir} {attempt}
    {collective_timeout_s}`; the agent fills them. `resume` is the path of the committed
    checkpoint to start from, or "". Bounds are in seconds.
    """

    run: str
    run_id: str
    run_dir: str
    attempt: int
    term: int
    step_name: str
    cluster: str
    job_id: str = ""
    seats: tuple[NodeSeat, ...]
    ranks_per_node: int
    command: tuple[str, ...]
    env: dict[str, str] = {}
    launcher: Launcher = Launcher.TORCHRUN
    checkpoint_dir: str
    resume: str = ""
    resume_step: int | None = None
    #: For `{collective_timeout_s}`: what the process group is to be given.
    collective_timeout_s: float = 600.0
    #: Where the ranks start; "": where the agent was started.
    cwd: str = ""
    #: From the stop flag to the KILL of ranks that have not ended.
    stop_grace_s: float = 120.0
    #: For a save in flight when the attempt is torn down.
    save_grace_s: float = 30.0
    #: Ranks stand still and no supervisor was heard for so long: the agent ends the attempt.
    orphan_s: float = 1800.0


class Control(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A supervisor's word to all agents of one attempt; the highest valid term is obeyed.

    `void`: this attempt number never was, start nothing, quit. `stop`: value of a stop outcome, the
    ranks agree on a step, save and exit. `kill`: end now, a save in flight has `save_grace_s` first
    unless `now`. `report`: write your cell once more (a number that grows).
    """

    attempt: int
    term: int
    void: bool = False
    stop: str = ""
    kill: bool = False
    now: bool = False
    report: int = 0


class AgentPhase(StrEnum):
    """Where an agent stands in its life; the order is that of the lines."""

    #: It has read control and launch.json, swept strays, and starts its launcher.
    STARTING = "starting"
    #: The launcher runs.
    RUNNING = "running"
    #: A stop was asked and the flag is set.
    STOPPING = "stopping"
    #: It kills what is left.
    KILLING = "killing"
    #: Nothing of this attempt is left on the node; `exits` is complete.
    ENDED = "ended"
    #: It started nothing: voided, or the control cells could not be read. `reason` says which.
    REFUSED = "refused"


class RankState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rank as its last beat shows it. `age_ms` is since that beat, by the node's own clock."""

    rank: int
    pid: int = 0
    step: int = -1
    phase: str = ""
    age_ms: int = 0
    committed: int = -1


class AgentState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The payload of `attempts/NNNN/nodes/HOST/state`.

    `ack_term` and `ack_seq` echo the control cell that was obeyed last. `pid`, `start_ticks` and
    `boot` name the agent process beyond doubt. `port` is set by the agent of node rank 0.
    `exits` grows while ranks end; a failed one is there within the agent's poll (50 ms).
    """

    node: str
    attempt: int
    phase: AgentPhase
    pid: int = 0
    start_ticks: int = 0
    boot: str = ""
    started_ms: int = 0
    #: UTC ms at which the launcher was started, 0 before.
    exec_ms: int = 0
    port: int = 0
    ack_term: int = 0
    ack_seq: int = 0
    ranks: tuple[RankState, ...] = ()
    exits: tuple[RankExit, ...] = ()
    stalled: bool = False
    #: Exit code of the launcher (negative: signal), None while it runs.
    launcher_code: int | None = None
    reason: str = ""
    notes: tuple[Evidence, ...] = ()


class TrainerLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A line of trainer.jsonl: rare facts, written by global rank 0 alone."""

    attempt: int = 0
    at_ms: int = 0
    step: int = -1


class LoadedLine(TrainerLine, frozen=True, kw_only=True, tag="loaded"):
    """The trainer stands at `step` after loading `path` ("" for a fresh start)."""

    path: str = ""


class CommittedLine(TrainerLine, frozen=True, kw_only=True, tag="committed"):
    """A checkpoint is committed; `took_ms` is the save as rank 0 saw it."""

    path: str
    took_ms: int = 0


class SaveFailedLine(TrainerLine, frozen=True, kw_only=True, tag="save_failed"):
    """A save failed on some rank; training goes on and the last committed checkpoint stays."""

    reason: str
    rank: int = 0


class LossLine(TrainerLine, frozen=True, kw_only=True, tag="loss"):
    """A sampled loss."""

    loss: float


class StopAgreedLine(TrainerLine, frozen=True, kw_only=True, tag="stop_agreed"):
    """All ranks agreed to end after `step`."""


class DoneLine(TrainerLine, frozen=True, kw_only=True, tag="done"):
    """The done marker: the training reached its own end."""

    result: dict[str, str | int | float] = {}


AnyTrainerLine = LoadedLine | CommittedLine | SaveFailedLine | LossLine | StopAgreedLine | DoneLine
