"""
How an attempt ended, whose fault that was, and how a failure is recognised when it comes again.

The kinds and their domains are a fixed format (docs/design.md): a kind may be added, never renamed.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Domain(StrEnum):
    """Whose matter an outcome is; decides what may be quarantined and what is counted."""

    #: A node is to blame. The only domain that may quarantine.
    HARDWARE = "hardware"
    #: Network, storage or the launcher: nobody's node, restart.
    PLATFORM = "platform"
    #: The program. Never names a node.
    SOFTWARE = "software"
    #: The data that was fed. Never names a node.
    DATA = "data"
    #: Wanted: costs no failure budget and blames nobody.
    PLANNED = "planned"
    #: Until evidence moves it; never quarantines by itself.
    UNKNOWN = "unknown"


class Outcome(StrEnum):
    """The kind of an attempt's end."""

    FINISHED = "finished"
    STOP_TIME_LIMIT = "stop_time_limit"
    STOP_PREEMPTED = "stop_preempted"
    #: A person asked. The run stops and is not relaunched.
    STOP_OPERATOR = "stop_operator"
    #: One node is being drained: leave it, go on.
    STOP_DRAIN = "stop_drain"
    #: A maintenance reservation or `scontrol reboot`; driver upgrades are these.
    STOP_MAINTENANCE = "stop_maintenance"
    NODE_LOST = "node_lost"
    GPU_FAULT = "gpu_fault"
    NETWORK_FAULT = "network_fault"
    #: Storage went away under all ranks: names nobody.
    STORAGE_FAULT = "storage_fault"
    HANG = "hang"
    STRAGGLER = "straggler"
    SILENT_FAULT = "silent_fault"
    HOST_OOM = "host_oom"
    GPU_OOM = "gpu_oom"
    APP_ERROR = "app_error"
    DATA_ERROR = "data_error"
    #: The ranks never started (a port was taken, a program is missing): outside the failure budget.
    LAUNCH_FAILED = "launch_failed"
    TIMEOUT_TOO_SHORT = "timeout_too_short"
    #: A rank was killed by a signal and nothing says by whom.
    KILLED_UNKNOWN = "killed_unknown"
    #: It ended and we cannot say how (the supervisor was away, evidence is missing).
    UNKNOWN_END = "unknown_end"


DOMAIN_OF: dict[Outcome, Domain] = {
    Outcome.FINISHED: Domain.PLANNED,
    Outcome.STOP_TIME_LIMIT: Domain.PLANNED,
    Outcome.STOP_PREEMPTED: Domain.PLANNED,
    Outcome.STOP_OPERATOR: Domain.PLANNED,
    Outcome.STOP_DRAIN: Domain.PLANNED,
    Outcome.STOP_MAINTENANCE: Domain.PLANNED,
    Outcome.NODE_LOST: Domain.HARDWARE,
    Outcome.GPU_FAULT: Domain.HARDWARE,
    Outcome.NETWORK_FAULT: Domain.PLATFORM,
    Outcome.STORAGE_FAULT: Domain.PLATFORM,
    Outcome.HANG: Domain.UNKNOWN,
    Outcome.STRAGGLER: Domain.HARDWARE,
    Outcome.SILENT_FAULT: Domain.UNKNOWN,
    Outcome.HOST_OOM: Domain.UNKNOWN,
    Outcome.GPU_OOM: Domain.SOFTWARE,
    Outcome.APP_ERROR: Domain.SOFTWARE,
    Outcome.DATA_ERROR: Domain.DATA,
    Outcome.LAUNCH_FAILED: Domain.PLATFORM,
    Outcome.TIMEOUT_TOO_SHORT: Domain.SOFTWARE,
    Outcome.KILLED_UNKNOWN: Domain.UNKNOWN,
    Outcome.UNKNOWN_END: Domain.UNKNOWN,
}
"""The domain of each outcome before evidence moves it (a hang may become hardware or software)."""

STOPS: frozenset[Outcome] = frozenset(o for o in Outcome if o.value.startswith("stop_"))


class Confidence(StrEnum):
    """How sure a verdict is of a suspect."""

    CERTAIN = "certain"
    LIKELY = "likely"
    #: Never quarantines.
    GUESS = "guess"


class Suspect(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that may be to blame, and the sentence that led there."""

    node: str
    confidence: Confidence
    reason: str
    rank: int | None = None


class Fingerprint(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What makes two failures the same one: never addresses, hosts, ranks, or numbers that vary.

    `place` is the innermost frame of the program, `file.py:function`, or the phase of a rank that
    left no traceback (`signal 9` in `step`).
    """

    outcome: Outcome
    exception: str = ""
    place: str = ""

    def __str__(self) -> str:
        parts = [str(self.outcome), self.exception, self.place]
        return " / ".join(part for part in parts if part)


class Seat(msgspec.Struct, frozen=True):
    """One global rank and the node it ran on."""

    rank: int
    node: str


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    The judgement of one ended attempt.

    `first` holds the ranks whose failure is no consequence of another's: one, or several when they
    cannot be told apart. `sentences` say what led to the verdict, the lead first.
    """

    outcome: Outcome
    domain: Domain
    sentences: tuple[str, ...]
    suspects: tuple[Suspect, ...] = ()
    fingerprint: Fingerprint | None = None
    first: tuple[Seat, ...] = ()


class EndKind(StrEnum):
    """How a run ended; each has its exit code in `END_EXIT_CODES`."""

    FINISHED = "finished"
    OPERATOR = "operator"
    CRASH_LOOP = "crash_loop"
    BUDGET = "budget"
    NEEDS_HUMAN = "needs_human"


END_EXIT_CODES: dict[EndKind, int] = {
    EndKind.FINISHED: 0,
    EndKind.OPERATOR: 10,
    EndKind.CRASH_LOOP: 11,
    EndKind.BUDGET: 12,
    EndKind.NEEDS_HUMAN: 13,
}
