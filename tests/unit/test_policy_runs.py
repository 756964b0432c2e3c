"""
Whole runs in a small pure world: what was done, and that a supervisor which is killed at any step,
before and after each effect and each line of its journal, changes nothing of it.
"""

from __future__ import annotations

import pytest

from support.player import Player
from support.world import Fate, Fault, Faults, World, one_after_another
from trainctl.policy.limits import Limits

RUNS: dict[str, tuple[Faults, dict[str, object], tuple[str, ...]]] = {
    "nothing happens": (one_after_another(), {}, ()),
    "all that the demonstration shows": (
        one_after_another(
            Fault(Fate.RAISES, seat=0, commits=True),
            Fault(Fate.KILLED, seat=1, commits=True),
            Fault(Fate.NODE_DIES, seat=2, commits=True),
            Fault(Fate.PREEMPTED),
        ),
        {},
        ("trade n1 with n4", "trade n2 with n1", "quarantine n3", "spare n2 for n3 in seat 2"),
    ),
    "a bug on one rank": (
        lambda _number, _seats: Fault(Fate.RAISES, seat=1, local=1),
        {},
        ("trade n2 with n4", "trade n4 with n2", "page end-crash_loop-a0003"),
    ),
    "nodes die until none is left": (
        lambda number, _seats: Fault(Fate.NODE_DIES, seat=number % 3),
        {"spares": 1, "reserve": 1},
        ("quarantine n1", "spare n4 for n1 in seat 0", "quarantine n2"),
    ),
    "a storage outage that ends": (
        one_after_another(*[Fault(Fate.STORAGE, steps=0)] * 4),
        {},
        ("back off before a0002", "page early-deaths-since--1"),
    ),
    "a bad image": (
        lambda _number, _seats: Fault(Fate.LAUNCH_FAILS),
        {},
        ("page early-deaths-since--1", "page end-budget-a0010"),
    ),
    "the operator stops it": (one_after_another(Fault(Fate.OPERATOR)), {}, ("stopped: operator",)),
    "a node that the check condemns": (
        one_after_another(),
        {"bad_nodes": frozenset({"n2"})},
        ("quarantine n2", "spare n4 for n2 in seat 1"),
    ),
}


def play(name: str, *kill_at: int) -> Player:
    faults, size, _ = RUNS[name]
    world = World(faults, **size)  # type: ignore[arg-type]
    limits = Limits(can_replace=True, preflight="bad_nodes" in size)
    player = Player(world, limits, kill_at=frozenset(kill_at))
    player.play()
    return player


def deeds(player: Player) -> tuple[object, ...]:
    """What was done to the world, without the numbers of attempts: a void one shifts them."""
    world = player.world
    return (
        world.launches,
        sorted(world.quarantined),
        sorted(world.given_back),
        sorted(world.granted),
        player.state.end,
        [(exited.outcome, exited.first, exited.suspects) for exited in player.exits()],
    )


@pytest.mark.parametrize("name", RUNS)
def test_run(name: str) -> None:
    player = play(name)
    told = iter(player.told)
    for expected in RUNS[name][2]:
        assert expected in told, (expected, player.told)
    assert player.world.given_back >= {
        g.node for gang in player.world.granted.values() for g in gang
    }


@pytest.mark.parametrize("name", RUNS)
def test_a_run_whose_supervisor_is_killed_anywhere_does_the_same_and_each_effect_once(
    name: str,
) -> None:
    undisturbed = play(name)
    for step in range(undisturbed.steps):
        player = play(name, step)
        assert deeds(player) == deeds(undisturbed), step
        twice = {effect: n for effect, n in player.world.effects.items() if n > 1}
        assert not twice, (step, twice)


@pytest.mark.parametrize("gap", [1, 2, 3, 5])
def test_supervisors_that_are_killed_again_and_again_come_to_the_same_end(gap: int) -> None:
    name = "all that the demonstration shows"
    undisturbed = play(name)
    player = play(name, *range(gap, 3 * undisturbed.steps, gap + 7))
    assert deeds(player) == deeds(undisturbed)
    assert max(player.world.effects.values()) == 1
