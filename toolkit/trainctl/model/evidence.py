"""What was seen of an attempt that ended or hangs, before anybody judges it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Role(StrEnum):
    """What a piece of evidence is to the verdict."""

    #: It explains the end.
    LEAD = "lead"
    #: It follows from something else (peer closed, -15, time-out of a waiting rank).
    CONSEQUENCE = "consequence"
    #: Worth showing, decides nothing.
    CONTEXT = "context"


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    One thing seen, with where it was seen. `source` is `exit`, `error_file`, `log`, `cluster`, …
    """

    source: str
    text: str
    role: Role = Role.CONTEXT
    node: str = ""
    rank: int | None = None


class RankError(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    A rank's own last words: torchelastic's error file, else the traceback at its log's end.

    `exception` is the class name, `place` the innermost frame as `file.py:function`, `message`
    its text cut to 2,000 characters, `at_ms` whole seconds where it comes from an error file.
    """

    message: str
    exception: str = ""
    place: str = ""
    at_ms: int = 0


class RankExit(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    How one rank ended.

    `code` is the exit code of a rank that exited, `signal` the number of one that was killed; both
    are None when nobody saw the end. `at_ms` is the guard's UTC clock. `by_us` says that the agent
    had already begun to kill. `step` and `phase` are those of the rank's last beat.
    """

    rank: int
    node: str
    code: int | None = None
    signal: int | None = None
    at_ms: int = 0
    by_us: bool = False
    pid: int = 0
    step: int = -1
    phase: str = ""
    error: RankError | None = None


class Findings(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    All that was gathered of one attempt: the input of `policy.blame.judge`.

    - `seats`: the node name of each node rank, in order.
    - `stop`: value of the stop outcome that had been asked of this attempt, else "".
    - `done_step`: step of the trainer's done marker, None without one.
    - `uses_train`: the trainer beats through `trainctl.train`, so no done marker means something.
    - `exits`: the ranks' ends, as far as seen; at most 256, the failures first.
    - `world`: number of ranks that should have run.
    - `clean`: number of ranks that exited with 0.
    - `nodes_gone`: nodes that the cluster says are dead.
    - `silent`: nodes whose agent never wrote its cell in this attempt.
    - `launch_error`: why the launch failed, "" when ranks started.
    - `notes`: whatever else was seen (torchrun's own exit, a full disk, an agent's refusal).
    """

    attempt: int
    seats: tuple[str, ...]
    ranks_per_node: int = 1
    stop: str = ""
    done_step: int | None = None
    uses_train: bool = False
    exits: tuple[RankExit, ...] = ()
    world: int = 0
    clean: int = 0
    nodes_gone: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    launch_error: str = ""
    notes: tuple[Evidence, ...] = ()
