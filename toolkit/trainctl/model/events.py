"""
The facts of a run: one frozen class an event, past tense, its JSON kind the class name in
snake_case.

A fixed format: kinds and fields may be added, never renamed, never reused. Every field but those
that make no sense without a value has a default, so that an older line still reads. The stamp (`v`
to `mono_ms`) is put on by the journal when the event is written; an event that was not written yet
has `term` 0. `at_ms` is UTC in integer milliseconds of the writer's clock; durations come from
`mono_ms`, that clock being comparable within one `boot` only.

Events that end in `Intended` are written before an effect (write-ahead); the event of what happened
follows it. An event with `would` was decided in observe-only mode and not done.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from trainctl.model.evidence import Evidence, Findings
from trainctl.model.outcome import Confidence, Domain, EndKind, Fingerprint, Outcome, Seat, Suspect

JOURNAL_VERSION = 1


def _kind(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


class Event(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=_kind
):
    """The stamp that every line carries."""

    v: int = 0
    term: int = 0
    seq: int = 0
    at_ms: int = 0
    boot: str = ""
    mono_ms: int = 0
    would: bool = False

    @property
    def kind(self) -> str:
        """The JSON kind: the class name in snake_case."""
        return str(type(self).__struct_config__.tag)


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """A line written by a newer trainctl: kept, counted, never acted on."""

    kind: str
    data: dict[str, Any]
    v: int = 0
    term: int = 0
    seq: int = 0
    at_ms: int = 0


class NodeGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    One node of the gang. `start_ms` is when its allocation began; `handle` is the cluster adapter's
    own knowledge (pid, start time and boot id for a local node; a job id on Slurm).
    """

    node: str
    address: str
    start_ms: int
    handle: dict[str, str | int] = {}


class NodeVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one check said of one node. `verdict` is `ok`, `bad` or `unsure`."""

    node: str
    check: str
    verdict: str
    reason: str = ""


# --- the run and who owns it ------------------------------------------------------------------


class RunCreated(Event, frozen=True, kw_only=True):
    """The run exists. `config_sha256` is of run.toml as it was then."""

    run: str
    run_id: str
    cluster: str
    nodes: int
    spares: int = 0
    ranks_per_node: int = 1
    config_sha256: str = ""
    version: str = ""


class RunResumed(Event, frozen=True, kw_only=True):
    """
    A person restarted an ended run: counts of failures and stops begin anew. `requests` were made
    of the run before and are not obeyed again: no stop outlives what it was asked of.
    """

    by: str = ""
    requests: tuple[str, ...] = ()


class SupervisorStarted(Event, frozen=True, kw_only=True):
    """
    The first event of a term. The holder had folded all up to `read_term`/`read_seq`: what stands
    in earlier terms beyond that point is void (kept, not folded, its intents looked up).
    """

    host: str = ""
    pid: int = 0
    seat: str = "here"
    read_term: int = 0
    read_seq: int = 0


class SupervisorLost(Event, frozen=True, kw_only=True):
    """The holder of `lost_term` was found stale and was ousted."""

    lost_term: int
    why: str = ""


class LeaseReleased(Event, frozen=True, kw_only=True):
    """The holder gave the run up in order: the next one need not wait."""

    reason: str = ""


# --- nodes ------------------------------------------------------------------------------------


class GangRequested(Event, frozen=True, kw_only=True):
    """Intent: nodes are about to be asked for under the unique name `name`."""

    name: str
    nodes: int
    exclude: tuple[str, ...] = ()


class GangGranted(Event, frozen=True, kw_only=True):
    """The nodes of the gang `name`."""

    name: str
    nodes: tuple[NodeGrant, ...]


class GangLost(Event, frozen=True, kw_only=True):
    """The gang `name` is no more, or could not be had."""

    name: str
    reason: str = ""


class PreflightFinished(Event, frozen=True, kw_only=True):
    """
    The nodes were checked before attempt `attempt`; only what is not `ok` is listed in `verdicts`.
    """

    attempt: int
    round: int = 1
    checked: tuple[str, ...] = ()
    verdicts: tuple[NodeVerdict, ...] = ()


class QuarantineIntended(Event, frozen=True, kw_only=True):
    """Intent: the node is about to be put into quarantine."""

    node: str
    reason: str
    confidence: Confidence = Confidence.LIKELY
    evidence: tuple[str, ...] = ()


class NodeQuarantined(Event, frozen=True, kw_only=True):
    """The node is kept out until a burn-in passes."""

    node: str
    reason: str


class ReleaseIntended(Event, frozen=True, kw_only=True):
    """Intent: these nodes are about to be given back."""

    nodes: tuple[str, ...]
    reason: str = ""


class NodeReleased(Event, frozen=True, kw_only=True):
    """
    The node is no longer held. Its allocated time was `start_ms` to `end_ms`, by the cluster's
    record.
    """

    node: str
    start_ms: int = 0
    end_ms: int = 0
    reason: str = ""


class NodeTraded(Event, frozen=True, kw_only=True):
    """
    After an unexplained failure `node` trades places with `with_node`: a spare, else another seat
    of the attempt. Costs no spare; a node traded out is the last spare to be used.
    """

    node: str
    with_node: str
    reason: str = ""


class SpareUsed(Event, frozen=True, kw_only=True):
    """The spare `node` takes the seat of `instead_of`."""

    node: str
    instead_of: str
    seat: int


class ReplacementIntended(Event, frozen=True, kw_only=True):
    """Intent: one node is about to be asked for under the unique name `name`."""

    name: str
    exclude: tuple[str, ...] = ()


class ReplacementRequested(Event, frozen=True, kw_only=True):
    """The cluster took the request `name`; the node comes later or never."""

    name: str


class ReplacementGranted(Event, frozen=True, kw_only=True):
    """The request `name` brought a node: it joins the spares."""

    name: str
    node: NodeGrant


# --- an attempt -------------------------------------------------------------------------------


class LaunchIntended(Event, frozen=True, kw_only=True):
    """
    Intent: attempt `attempt` is about to be launched as step `step_name`, `seats` being the nodes
    in the order of their node rank, from the committed checkpoint of `resume_step` (None: from
    scratch).
    """

    attempt: int
    step_name: str
    seats: tuple[str, ...]
    resume_step: int | None = None
    resume: str = ""


class AttemptLaunched(Event, frozen=True, kw_only=True):
    """
    The cluster took the step; its agents start from the checkpoint `resume` of `resume_step` (None:
    from scratch), the newest one that verified when it was launched. `refused` says of each newer
    one why it was not taken.
    """

    attempt: int
    resume_step: int | None = None
    resume: str = ""
    refused: tuple[str, ...] = ()


class AttemptAdopted(Event, frozen=True, kw_only=True):
    """
    A new holder found the attempt alive and goes on with it; it had started from `resume_step`.
    """

    attempt: int
    resume_step: int | None = None


class AttemptVoided(Event, frozen=True, kw_only=True):
    """The attempt number is void for ever: nothing was started under it, and nothing may be."""

    attempt: int
    reason: str = ""


class Loaded(Event, frozen=True, kw_only=True):
    """The ranks stand at `step` after loading."""

    attempt: int
    step: int
    path: str = ""


class FirstStep(Event, frozen=True, kw_only=True):
    """The first step of the attempt that all ranks have ended."""

    attempt: int
    step: int


class Progressed(Event, frozen=True, kw_only=True):
    """The lowest step of all ranks; at most every 30 s."""

    attempt: int
    step: int
    loss: float | None = None


class Stall(Event, frozen=True, kw_only=True):
    """A rank stands still beyond its limit."""

    attempt: int
    node: str
    rank: int
    phase: str = ""
    stands_ms: int = 0


class CheckpointCommitted(Event, frozen=True, kw_only=True):
    """A checkpoint can be resumed from."""

    attempt: int
    step: int
    path: str = ""
    took_ms: int = 0


class CheckpointFailed(Event, frozen=True, kw_only=True):
    """A save failed; the last committed checkpoint stays."""

    attempt: int
    step: int
    reason: str = ""
    rank: int = 0


class TrainingDone(Event, frozen=True, kw_only=True):
    """The trainer wrote its done marker."""

    attempt: int
    step: int
    result: dict[str, str | int | float] = {}


class StopRequested(Event, frozen=True, kw_only=True):
    """
    A planned end of `attempt` (0: none runs) was asked for. `reason` is a stop outcome; `request`
    the file under requests/ that asked, so that none is obeyed twice. `now`: no save, end at once.
    """

    attempt: int
    reason: Outcome = Outcome.STOP_OPERATOR
    by: str = ""
    request: str = ""
    now: bool = False


class HangSuspected(Event, frozen=True, kw_only=True):
    """The ranks stand still: evidence is gathered."""

    attempt: int
    node: str = ""
    rank: int | None = None
    phase: str = ""
    stands_ms: int = 0


class HangCleared(Event, frozen=True, kw_only=True):
    """They moved again; the limit is raised."""

    attempt: int
    limit_ms: int = 0


class StragglerSuspected(Event, frozen=True, kw_only=True):
    """One rank is slower than its peers."""

    attempt: int
    node: str = ""
    rank: int | None = None
    ratio: float = 0.0


class Detected(Event, frozen=True, kw_only=True):
    """
    The attempt ends or must be ended: the first sign of it. `cause` is `rank_failed`,
    `rank_exited`, `all_exited`, `node_gone`, `launch_failed`, `agent_gone`, `stop_overdue`, `hang`
    or `stop_now`.
    """

    attempt: int
    cause: str
    node: str = ""
    rank: int | None = None
    detail: str = ""


class Gathered(Event, frozen=True, kw_only=True):
    """The evidence of the attempt, gathered within its bound."""

    attempt: int
    findings: Findings


class TeardownIntended(Event, frozen=True, kw_only=True):
    """Intent: what is left of the attempt is about to be killed."""

    attempt: int


class TornDown(Event, frozen=True, kw_only=True):
    """Nothing of the attempt is left, but for `leftover` (nodes that could not be asked)."""

    attempt: int
    leftover: tuple[str, ...] = ()


class AttemptExited(Event, frozen=True, kw_only=True):
    """
    The verdict. `step_from` is where the attempt began, `step_to` its last step ended by all ranks
    (-1: none); `committed` the highest step ever committed at that time (-1: none).
    """

    attempt: int
    outcome: Outcome
    domain: Domain
    sentences: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    fingerprint: Fingerprint | None = None
    first: tuple[Seat, ...] = ()
    step_from: int = -1
    step_to: int = -1
    committed: int = -1
    evidence: tuple[Evidence, ...] = ()


# --- between attempts and at the end ----------------------------------------------------------


class BackoffStarted(Event, frozen=True, kw_only=True):
    """No launch before `until_ms`."""

    attempt: int
    wait_ms: int
    until_ms: int
    reason: str = ""


class Paged(Event, frozen=True, kw_only=True):
    """
    Whoever is on call was told `message`. `key` names the occasion, so that none is paged twice.
    """

    key: str
    message: str


class PageFailed(Event, frozen=True, kw_only=True):
    """The pager could not be reached; stops nothing."""

    key: str
    error: str = ""


class RunFinished(Event, frozen=True, kw_only=True):
    """The training reached its own end at `step`."""

    step: int
    result: dict[str, str | int | float] = {}


class RunStopped(Event, frozen=True, kw_only=True):
    """The run ended otherwise: what, why, by what evidence, and what to type next."""

    end: EndKind
    reason: str
    evidence: tuple[str, ...] = ()
    next_command: str = ""


AnyEvent = (
    RunCreated
    | RunResumed
    | SupervisorStarted
    | SupervisorLost
    | LeaseReleased
    | GangRequested
    | GangGranted
    | GangLost
    | PreflightFinished
    | QuarantineIntended
    | NodeQuarantined
    | ReleaseIntended
    | NodeReleased
    | NodeTraded
    | SpareUsed
    | ReplacementIntended
    | ReplacementRequested
    | ReplacementGranted
    | LaunchIntended
    | AttemptLaunched
    | AttemptAdopted
    | AttemptVoided
    | Loaded
    | FirstStep
    | Progressed
    | Stall
    | CheckpointCommitted
    | CheckpointFailed
    | TrainingDone
    | StopRequested
    | HangSuspected
    | HangCleared
    | StragglerSuspected
    | Detected
    | Gathered
    | TeardownIntended
    | TornDown
    | AttemptExited
    | BackoffStarted
    | Paged
    | PageFailed
    | RunFinished
    | RunStopped
)

EVENT_CLASSES: dict[str, type[Event]] = {
    str(cls.__struct_config__.tag): cls for cls in AnyEvent.__args__
}
"""Every kind this version knows."""
