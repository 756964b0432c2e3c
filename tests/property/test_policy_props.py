"""
The policy over random worlds and over random, damaged histories.

The worlds end launches in every way, in any order, and kill the supervisor anywhere; the rules that
a run may never break are checked after each event of its journal. The histories are no run at all:
whatever stands in a journal, reading it and deciding never fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from support.histories import grant
from support.player import Player
from support.world import START_MS, Fate, Fault, World
from trainctl.model import events as ev
from trainctl.model.evidence import Findings
from trainctl.model.outcome import (
    Confidence,
    Domain,
    EndKind,
    Fingerprint,
    Outcome,
    Seat,
    Suspect,
)
from trainctl.policy.actions import Record, Recover, Watch, action_of, intent
from trainctl.policy.crash_loop import culprits
from trainctl.policy.decide import decide
from trainctl.policy.evolve import evolve, fold
from trainctl.policy.limits import Limits
from trainctl.policy.state import Phase, RunState


def repeatable(examples: int) -> settings:
    """The same examples on every machine, so that a red CI is red here too."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# --- random worlds ----------------------------------------------------------------------------

#: Small enough that no coincidence rules out chance: any quarantine of a healthy node is a defect.
SIZES = st.integers(1, 4)

fates = st.sampled_from(Fate)


@st.composite
def fault(draw: st.DrawFn, size: int, *, ends: bool = False) -> Fault:
    return Fault(
        Fate.FINISHES if ends else draw(fates),
        seat=draw(st.integers(0, size - 1)),
        local=draw(st.integers(0, 1)),
        steps=draw(st.sampled_from([0, 1, 5])),
        commits=draw(st.booleans()),
        place=draw(st.sampled_from(["train.py:step", "data.py:next"])),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A few launches with a fault each; then the run finishes, or the last fault stays for ever."""
    size = draw(SIZES)
    some = draw(st.lists(fault(size), max_size=8))
    last = draw(st.one_of(fault(size), fault(size, ends=True)))
    return World(
        lambda number, _seats: some[number] if number < len(some) else last,
        size=size,
        spares=draw(st.integers(0, 2)),
        reserve=draw(st.integers(0, 6)),
        bad_nodes=draw(st.frozensets(st.sampled_from(["n1", "n2", "n5"]), max_size=1)),
    )


limits_of_worlds = st.builds(
    Limits,
    max_failures=st.sampled_from([None, 3]),
    failures_without_progress=st.sampled_from([5, 50]),
    failures_per_hour=st.sampled_from([3, 10]),
    stops=st.just(12),
    launch_failures=st.sampled_from([2, 10]),
    preflight=st.booleans(),
    can_replace=st.booleans(),
    replacements=st.just(4),
    gangs=st.sampled_from([1, 3]),
)

kills = st.frozensets(st.integers(0, 250), max_size=6)


@dataclass
class Watcher:
    """Checks the rules after each event."""

    world: World
    numbers: set[int] = field(default_factory=set)
    verdict: ev.AttemptExited | None = None
    checked_bad: set[str] = field(default_factory=set)

    def __call__(self, before: RunState, event: ev.AnyEvent, after: RunState) -> None:
        self.the_fold_only_grows(before, after)
        match event:
            case ev.LaunchIntended():
                self.an_attempt_number_is_new_and_resumes_at_the_highest_commit(before, event)
            case ev.AttemptExited():
                self.verdict = event
                self.planned_ends_spend_no_budget(before, event, after)
            case ev.PreflightFinished():
                self.checked_bad |= {v.node for v in event.verdicts if v.verdict == "bad"}
            case ev.QuarantineIntended():
                self.only_a_faulty_node_is_quarantined(event)
            case ev.NodeTraded() | ev.SpareUsed():
                self.one_node_changes_its_place(before, event, after)

    def the_fold_only_grows(self, before: RunState, after: RunState) -> None:
        assert after.attempt >= before.attempt
        assert after.committed >= before.committed
        assert after.term >= before.term
        assert after.quarantined >= before.quarantined
        assert len(after.seats) == self.world.size
        filled = [seat for seat in after.seats if seat]
        assert len(set(filled)) == len(filled), after.seats

    def an_attempt_number_is_new_and_resumes_at_the_highest_commit(
        self, before: RunState, event: ev.LaunchIntended
    ) -> None:
        assert not before.attempt_open
        assert event.attempt not in self.numbers
        self.numbers.add(event.attempt)
        assert event.seats == before.seats
        assert not set(event.seats) & before.quarantined
        assert (-1 if event.resume_step is None else event.resume_step) == before.committed

    def planned_ends_spend_no_budget(
        self, before: RunState, event: ev.AttemptExited, after: RunState
    ) -> None:
        if event.domain is Domain.PLANNED or event.outcome is Outcome.LAUNCH_FAILED:
            assert after.failures == before.failures
            assert after.failures_total == before.failures_total
            assert after.failure_times == before.failure_times

    def only_a_faulty_node_is_quarantined(self, event: ev.QuarantineIntended) -> None:
        named = {s.node for s in culprits(self.verdict)} if self.verdict else set()
        assert event.confidence is not Confidence.GUESS
        assert event.node in named | self.checked_bad
        assert event.node in self.world.dead_nodes | self.world.bad_nodes

    def one_node_changes_its_place(
        self, before: RunState, event: ev.NodeTraded | ev.SpareUsed, after: RunState
    ) -> None:
        pairs = zip(before.seats, after.seats, strict=True)
        changed = [{old, new} for old, new in pairs if old != new]
        assert len(changed) in (1, 2)
        two = {event.node, event.with_node if isinstance(event, ev.NodeTraded) else None}
        assert all(two & change for change in changed)


@repeatable(1000)
@given(world=worlds(), limits=limits_of_worlds, kill_at=kills)
def test_a_run_keeps_every_rule_and_ends_whatever_happens(
    world: World, limits: Limits, kill_at: frozenset[int]
) -> None:
    player = Player(world, limits, kill_at=kill_at, check=Watcher(world))
    state = player.play(most=3000)
    assert state.end is not None
    assert state == fold(player.journal)
    assert not world.alive
    assert not state.nodes
    assert world.given_back == {g.node for grants in world.granted.values() for g in grants}
    twice = {name: n for name, n in world.effects.items() if n > 1}
    assert not twice
    _the_end_is_true(player)


def _the_end_is_true(player: Player) -> None:
    """A crash is not reported as success, nor a stop as a crash; whoever is on call knows."""
    outcomes = [exited.outcome for exited in player.exits()]
    end = player.state.end
    assert (end is EndKind.FINISHED) == (Outcome.FINISHED in outcomes)
    assert (end is EndKind.OPERATOR) == (Outcome.STOP_OPERATOR in outcomes)
    paged = any(page.startswith(f"end-{end}") for page in player.world.pages)
    assert paged == (end not in (EndKind.FINISHED, EndKind.OPERATOR))


@repeatable(60)
@given(world=worlds(), kill_at=kills)
def test_a_run_whose_supervisors_are_killed_does_what_an_undisturbed_one_does(
    world: World, kill_at: frozenset[int]
) -> None:
    limits = Limits(can_replace=True, failures_per_hour=99, failures_without_progress=20, stops=12)
    calm_world = World(
        world.faults,
        size=world.size,
        spares=world.spares,
        reserve=world.reserve,
        bad_nodes=world.bad_nodes,
    )
    calm = Player(calm_world, limits)
    calm.play()
    assume(kill_at)
    player = Player(world, limits, kill_at=frozenset(k % calm.steps for k in kill_at))
    player.play()
    assert world.launches == calm_world.launches
    assert world.quarantined == calm_world.quarantined
    assert player.state.end == calm.state.end
    assert [e.outcome for e in player.exits()] == [e.outcome for e in calm.exits()]


@repeatable(100)
@given(size=st.integers(2, 64), rank=st.integers(0, 127), spares=st.integers(0, 4), kill_at=kills)
def test_a_bug_on_one_rank_is_a_crash_loop_of_three_and_names_nobody(
    size: int, rank: int, spares: int, kill_at: frozenset[int]
) -> None:
    bug = Fault(Fate.RAISES, seat=(rank // 2) % size, local=rank % 2)
    world = World(lambda _number, _seats: bug, size=size, spares=spares)
    player = Player(world, kill_at=kill_at)
    assert player.play().end is EndKind.CRASH_LOOP
    assert len(world.launches) == 3
    assert not world.quarantined


# --- random histories -------------------------------------------------------------------------

nodes = st.sampled_from([f"n{i}" for i in range(1, 7)] + [""])
numbers = st.integers(0, 6)
steps = st.integers(-1, 40)
times = st.one_of(st.just(0), st.integers(START_MS - 10**8, START_MS + 10**8))
names = st.sampled_from(["run-g001", "run-g002", "run-r001"])
seats = st.lists(nodes, max_size=5).map(tuple)
grants = st.lists(nodes.filter(bool).map(grant), max_size=4).map(tuple)
suspects = st.builds(Suspect, nodes, st.sampled_from(Confidence), st.just("why"))
fingerprints = st.one_of(st.none(), st.builds(Fingerprint, st.sampled_from(Outcome), st.just("E")))
firsts = st.lists(st.builds(Seat, st.integers(0, 9), nodes), max_size=3).map(tuple)
findings = st.builds(Findings, attempt=numbers, seats=seats, nodes_gone=seats)
verdicts = st.builds(
    ev.NodeVerdict, nodes, st.just("gpu"), st.sampled_from(["bad", "unsure"]), st.just("why")
)

FIELDS: dict[str, st.SearchStrategy[object]] = {
    "attempt": numbers,
    "step": steps,
    "resume_step": st.one_of(st.none(), steps),
    "step_from": steps,
    "step_to": steps,
    "committed": steps,
    "at_ms": times,
    "until_ms": times,
    "wait_ms": st.integers(0, 10**6),
    "term": st.integers(0, 4),
    "seq": numbers,
    "round": st.integers(1, 4),
    "seat": st.integers(-2, 9),
    "lost_term": numbers,
    "spares": st.integers(0, 2),
    "would": st.sampled_from([False, False, False, True]),
    "now": st.booleans(),
    "node": nodes,
    "with_node": nodes,
    "instead_of": nodes,
    "seats": seats,
    "checked": seats,
    "leftover": seats,
    "exclude": seats,
    "verdicts": st.lists(verdicts, max_size=3).map(tuple),
    "suspects": st.lists(suspects, max_size=3).map(tuple),
    "fingerprint": fingerprints,
    "first": firsts,
    "findings": findings,
    "outcome": st.sampled_from(Outcome),
    "domain": st.sampled_from(Domain),
    "end": st.sampled_from(EndKind),
    "cause": st.sampled_from(["rank_failed", "node_gone", "launch_failed", "hang", "new word"]),
    "key": st.sampled_from(["a", "b"]),
    "name": names,
    "request": st.sampled_from(["", "r1", "r2"]),
}
#: Fields of the same name that mean something else in one event.
SPECIAL: dict[tuple[str, str], st.SearchStrategy[object]] = {
    ("run_created", "nodes"): st.integers(0, 4),
    ("gang_requested", "nodes"): st.integers(0, 6),
    ("gang_granted", "nodes"): grants,
    ("release_intended", "nodes"): seats,
    ("replacement_granted", "node"): nodes.filter(bool).map(grant),
    ("stop_requested", "reason"): st.sampled_from([o for o in Outcome if "stop" in o]),
    ("stall", "rank"): st.integers(0, 9),
}


def _events_of(cls: type[ev.Event]) -> st.SearchStrategy[ev.Event]:
    kind = str(cls.__struct_config__.tag)
    fields: dict[str, st.SearchStrategy[object]] = {}
    for info in msgspec.structs.fields(cls):
        known = SPECIAL.get((kind, info.name), FIELDS.get(info.name))
        if known is None and info.required:
            known = st.just("text")
        if known is not None:
            fields[info.name] = known
    return st.builds(cls, **fields)


any_event = st.one_of(
    st.one_of(*[_events_of(cls) for cls in ev.EVENT_CLASSES.values()]),
    st.just(ev.Unknown(kind="a_newer_word", data={})),
)
histories = st.lists(any_event, max_size=30)
created = ev.RunCreated(run="run", run_id="id", cluster="local", nodes=3, spares=1)
any_limits = st.builds(
    Limits,
    act=st.booleans(),
    preflight=st.booleans(),
    can_replace=st.booleans(),
    max_failures=st.sampled_from([None, 0, 1]),
    crash_loop=st.integers(1, 3),
    backoff_base_s=st.sampled_from([0.0, 10.0]),
)


@repeatable(1000)
@given(history=histories, limits=any_limits, now_ms=times)
def test_whatever_stands_in_a_journal_is_read_and_decided_upon(
    history: list[ev.AnyEvent | ev.Unknown], limits: Limits, now_ms: int
) -> None:
    state = fold([created])
    for event in history:
        before, state = state, evolve(state, event)
        assert state.attempt >= before.attempt
        assert state.committed >= before.committed
        assert state.requests_seen >= before.requests_seen
        assert state.quarantined >= before.quarantined
        action = decide(state, limits, now_ms)
        assert decide(state, limits, now_ms) == action
        if state.open_intent is not None and limits.act and state.phase is not Phase.ENDED:
            ours = state.open_intent.term >= state.term
            assert action == (action_of(state.open_intent) if ours else Recover(state.open_intent))
    assert state == fold(history, fold([created]))


@repeatable(150)
@given(history=histories, limits=any_limits)
def test_what_was_only_to_be_done_changes_nothing_but_what_was_said(
    history: list[ev.AnyEvent | ev.Unknown], limits: Limits
) -> None:
    known = [event for event in history if not isinstance(event, ev.Unknown)]
    would = [msgspec.structs.replace(event, would=True) for event in known]
    state = fold([created])
    said = fold(would, state)
    assert replace(said, would=()) == state
    observing = replace(limits, act=False)
    for _ in range(5):
        action = decide(said, observing, START_MS)
        if not isinstance(action, Record):
            break
        said = evolve(said, action.event)
    assert isinstance(action, Watch)


@repeatable(150)
@given(world=worlds(), data=st.data())
def test_a_damaged_journal_of_a_run_keeps_its_facts(world: World, data: st.DataObject) -> None:
    player = Player(world, Limits(can_replace=True, stops=5))
    player.play()
    journal = list(player.journal)
    for _ in range(data.draw(st.integers(1, 4))):
        _damage(journal, data)
    state = fold(journal)
    commits = [event.step for event in journal if isinstance(event, ev.CheckpointCommitted)]
    taken = [event.attempt for event in journal if isinstance(event, ev.LaunchIntended)]
    assert state.committed == max(commits, default=-1)
    assert state.attempt >= max(taken, default=0)
    state = RunState()
    for event in journal:
        state = evolve(state, event)
        decide(state, Limits(), event.at_ms)


def _damage(journal: list[ev.AnyEvent], data: st.DataObject) -> None:
    """A lost line, a line twice, a line late, a clock that jumped back."""
    at = data.draw(st.integers(1, len(journal) - 1))
    match data.draw(st.sampled_from(["lost", "twice", "late", "clock"])):
        case "lost":
            del journal[at]
        case "twice":
            journal.insert(at, journal[at])
        case "late":
            journal.append(journal.pop(at))
        case _:
            jump = data.draw(st.integers(-(10**8), 10**8))
            journal[at:] = [
                msgspec.structs.replace(event, at_ms=event.at_ms + jump) for event in journal[at:]
            ]


@repeatable(300)
@given(history=histories, limits=any_limits, now_ms=times)
def test_an_intent_on_disk_brings_the_same_action_again_and_a_takeover_looks_it_up(
    history: list[ev.AnyEvent | ev.Unknown], limits: Limits, now_ms: int
) -> None:
    state = fold(history, fold([created]))
    action = decide(state, replace(limits, act=True), now_ms)
    intended = intent(action)
    if intended is None or state.open_intent is not None:
        return
    after = evolve(state, msgspec.structs.replace(intended, term=state.term))
    if after.open_intent is None:
        return
    assert decide(after, replace(limits, act=True), now_ms) == action
    taken_over = evolve(after, ev.SupervisorStarted(term=state.term + 1))
    assert decide(taken_over, replace(limits, act=True), now_ms) == Recover(after.open_intent)
