"""Statistics, waiting, observe-only: what the policy counts, and what it makes of the counts."""

from __future__ import annotations

import random

import pytest

from support.histories import History
from support.player import Player
from support.telling import tell
from support.world import START_MS, Fate, Fault, World, bad_node, one_after_another
from trainctl.model.events import BackoffStarted, Paged, RunResumed
from trainctl.model.outcome import DOMAIN_OF, Confidence, Domain, EndKind, Outcome, Seat, Verdict
from trainctl.policy.actions import Record, Watch
from trainctl.policy.backoff import wait_ms
from trainctl.policy.crash_loop import weigh
from trainctl.policy.decide import decide
from trainctl.policy.evolve import fold
from trainctl.policy.limits import Limits
from trainctl.policy.state import Phase

# --- statistics -------------------------------------------------------------------------------


def test_64_nodes_with_a_bug_on_one_rank_end_in_three_attempts_with_nobody_named() -> None:
    world = World(lambda _n, _s: Fault(Fate.RAISES, seat=5), size=64, spares=2)
    player = Player(world)
    assert player.play().end is EndKind.CRASH_LOOP
    assert [exited.suspects for exited in player.exits()] == [(), (), ()]
    assert not world.quarantined
    assert len({exited.first[0].node for exited in player.exits()}) == 3


def test_64_nodes_with_one_bad_node_and_no_xid_name_it_as_soon_as_chance_is_ruled_out() -> None:
    world = World(bad_node("n7"), size=64, spares=0)
    player = Player(world)
    assert player.play().end is EndKind.FINISHED
    first, second, last = player.exits()
    assert (first.domain, first.suspects) == (Domain.UNKNOWN, ())
    assert (second.domain, second.suspects[0].node) == (Domain.HARDWARE, "n7")
    assert second.suspects[0].confidence is Confidence.LIKELY
    assert second.outcome is Outcome.KILLED_UNKNOWN
    assert last.outcome is Outcome.FINISHED
    assert world.quarantined == {"n7"}


def test_a_bad_node_that_a_spare_can_replace_is_out_after_its_first_failure() -> None:
    world = World(bad_node("n7"), size=64, spares=2)
    player = Player(world)
    assert player.play().end is EndKind.FINISHED
    assert len(player.exits()) == 2
    assert not world.quarantined


@pytest.mark.parametrize(
    ("nodes", "named"), [(2, None), (3, None), (4, None), (5, 3), (19, 3), (20, 2), (64, 2)]
)
def test_a_bad_node_is_named_when_n_to_the_minus_k_is_at_most_5_percent(
    nodes: int, named: int | None
) -> None:
    player = Player(World(bad_node("n1"), size=nodes, spares=0))
    player.play()
    likely = [e.attempt for e in player.exits() if e.suspects and e.domain is Domain.HARDWARE]
    assert likely == ([named] if named else [])
    if not named:
        guess = player.exits()[-1].suspects[0]
        assert (guess.node, guess.confidence) == ("n1", Confidence.GUESS)
        assert player.state.end is EndKind.CRASH_LOOP


def test_on_3_nodes_no_healthy_node_is_quarantined_by_coincidence_in_1000_seeds() -> None:
    for seed in range(1000):
        draw = iter(_numbers(seed, 3))
        world = World(lambda _n, _s, d=draw: Fault(Fate.RAISES, seat=next(d) % 3), spares=seed % 2)
        player = Player(world)
        assert player.play().end is EndKind.CRASH_LOOP
        assert not world.quarantined, seed
        assert all(e.domain is Domain.SOFTWARE for e in player.exits()), seed


def _numbers(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(3), k=count)


@pytest.mark.parametrize(("moved", "domain"), [(False, Domain.SOFTWARE), (True, Domain.HARDWARE)])
def test_a_failure_follows_its_node_only_if_the_node_has_moved(moved: bool, domain: Domain) -> None:
    """Where nothing moved between two failures they follow the seat as well as the node."""
    history = History(nodes=64, spares=0).failed(Outcome.APP_ERROR, 14)
    if moved:
        history.traded("n8", "n9")
    state = fold(history.running().events)
    rank = 2 * state.seats.index("n8")
    exited = state.failures[-1].exited
    again = Verdict(
        Outcome.APP_ERROR,
        Domain.SOFTWARE,
        ("it ended",),
        fingerprint=exited.fingerprint,
        first=(Seat(rank, "n8"),),
    )
    weighed = weigh(again, state.failures, state.seats)
    assert weighed.domain is domain
    assert [s.node for s in weighed.suspects] == (["n8"] if moved else [])


@pytest.mark.parametrize("outcome", [Outcome.DATA_ERROR, Outcome.GPU_OOM, Outcome.STORAGE_FAULT])
def test_errors_of_data_memory_and_storage_name_no_node_however_often(outcome: Outcome) -> None:
    history = History(nodes=64, spares=0).failed(outcome, 14).traded("n8", "n9")
    state = fold(history.running().events)
    again = Verdict(
        outcome,
        DOMAIN_OF[outcome],
        ("it ended",),
        fingerprint=state.failures[-1].exited.fingerprint,
        first=(Seat(16, "n8"),),
    )
    assert weigh(again, state.failures, state.seats) == again


# --- waiting ----------------------------------------------------------------------------------


def test_the_wait_grows_to_its_bound_and_a_replay_waits_the_same() -> None:
    waits = []
    history = History()
    limits = Limits(launch_failures=99)
    for _ in range(9):
        history.launch_failed()
        state = fold([*history.events, Paged(key="early-deaths-since--1", message="")])
        action = decide(state, limits, history.now_ms)
        assert action == decide(state, limits, history.now_ms)
        assert isinstance(action, Record)
        assert isinstance(action.event, BackoffStarted)
        waits.append(action.event.wait_ms)
        assert action.event.until_ms == history.now_ms + action.event.wait_ms
    assert waits[:6] == sorted(waits[:6])
    assert 7_500 <= waits[0] <= 10_000
    assert all(wait <= 600_000 for wait in waits)
    assert len(set(waits)) == len(waits)


def test_two_runs_that_fail_together_do_not_come_back_together() -> None:
    waits = {wait_ms(1, Limits(), run_id=f"run-{i}", attempt=2) for i in range(50)}
    assert len(waits) > 40


# --- observe only -----------------------------------------------------------------------------


def test_observe_only_says_once_what_it_would_do_and_touches_nothing() -> None:
    world = World(one_after_another(Fault(Fate.NODE_DIES, seat=1)))
    acting = Player(world)
    acting.play()
    world.effects.clear()
    launched = next(i for i, e in enumerate(acting.journal) if e.kind == "attempt_launched")
    observer = Player(world, Limits(act=False))
    observer.journal = list(acting.journal[: launched + 1])
    observer.play()
    assert not world.effects
    assert observer.told == [
        "gather a0001",
        "would: teardown_intended",
        "verdict a0001 node_lost hardware n2=certain",
        "would: quarantine_intended",
    ]


# --- what the state says ----------------------------------------------------------------------


def test_a_missing_exit_is_closed_as_an_unknown_end_when_the_next_launch_is_intended() -> None:
    state = fold(History().running().running().events)
    assert state.last_exit is not None
    assert (state.last_exit.attempt, state.last_exit.outcome) == (1, Outcome.UNKNOWN_END)
    assert (state.attempt, state.phase, state.failures_total) == (2, Phase.RUNNING, 1)


def test_a_run_that_ended_and_was_resumed_asks_for_a_gang_of_a_new_name() -> None:
    player = Player(World(one_after_another(Fault(Fate.OPERATOR)), reserve=9))
    player.play()
    player.write(RunResumed(by="me", requests=("late-stop",)))
    assert "late-stop" in player.state.requests_seen
    assert tell(decide(player.state, player.limits, START_MS)) == "gang run-g002 of 4"
    assert player.play().end is EndKind.FINISHED
    assert player.world.launches[1][1] == 5


def test_nothing_is_decided_for_a_run_that_is_not_there_or_over() -> None:
    assert decide(fold([]), Limits(), START_MS) == Watch()
    assert decide(Player(World(one_after_another())).play(), Limits(), START_MS) == Watch()
