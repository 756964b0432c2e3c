"""
This process as a rank: its beats, its place in trainer.jsonl, and whether it is to stop.

One object a process, made at the first call of the library. Outside trainctl it has neither beats
nor log, and everything that it is told goes nowhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import SupportsFloat

from trainctl.train import collective, environment, inject
from trainctl.train.beats import BeatWriter, Phase
from trainctl.train.messages import say
from trainctl.train.trainer_log import TrainerLog, plain

LOSS_EVERY_NS = 5_000_000_000
"""A loss is sampled at most so often: trainer.jsonl is on shared storage, and for rare facts."""


class ThisRank:
    """What the library knows of the process it runs in."""

    def __init__(self) -> None:
        self.who = environment.rank()
        self.beats = _beats(self.who)
        self.log = _log(self.who)
        self.ask = self._whether_to_ask()
        """Its first word is 0 while no stop can be agreed on: all that most steps look at."""
        self.stopping = False
        self._vote: collective.Vote | None = None
        self._next_loss_ns = 0

    @property
    def step(self) -> int:
        """The last ended step, as far as beats told; -1 for none."""
        return self.beats.step if self.beats is not None else -1

    # --- signs of life ----------------------------------------------------------------------

    def sample_loss(self, step: int, loss: SupportsFloat) -> None:
        """Write the loss down if the last one is old enough. Reading it may wait for a GPU."""
        now = time.monotonic_ns()
        if self.log is None or now < self._next_loss_ns:
            return
        self._next_loss_ns = now + LOSS_EVERY_NS
        value = plain(loss)
        if isinstance(value, (int, float)):  # an infinite one has no place in JSON
            self.log.write("loss", step, {"loss": float(value)}, durable=False)

    @contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """The phase within the block, then the one before again."""
        if self.beats is None:
            yield
            return
        before = self.beats.phase
        self.beats.enter(phase)
        try:
            yield
        finally:
            self.beats.enter(before)

    def note_committed(self, step: int) -> None:
        """This rank knows `step` to be committed."""
        if self.beats is not None:
            self.beats.committed(step)

    # --- stops ------------------------------------------------------------------------------

    def _whether_to_ask(self) -> Sequence[int]:
        if not self.who.supervised:
            return (0,)
        if self.who.world > 1:
            return (1,)  # the others may know more
        return self.beats.flags if self.beats is not None else (0,)

    def wants_stop(self) -> bool:
        """Whether this node's agent asks for a stop, and no injected fault hides it."""
        if self.beats is None or not self.beats.stop():
            return False
        return not inject.holds_stop(self.step)

    def stop_agreed(self) -> bool:
        """See `trainctl.train.stop_agreed`."""
        if self.stopping:
            return True
        if self.who.world == 1 or collective.world() == 1:
            agreed = self.wants_stop()
        else:
            agreed = self._vote is not None and self._vote.any_yes()
            self._vote = None if agreed else collective.Vote(self.wants_stop())
        if agreed:
            self.stop()
        return agreed

    def stop(self) -> None:
        """All ranks have agreed to end after the step they stand at."""
        if not self.stopping:
            self.stopping = True
            self.ask = (1,)  # and it stays so, whatever the flag says
            if self.log is not None:
                self.log.write("stop_agreed", self.step, {})


def _beats(who: environment.Rank) -> BeatWriter | None:
    if not who.supervised:
        return None
    try:
        return BeatWriter(os.environ[environment.BEATS], who.local_rank)
    except (OSError, ValueError) as error:  # a folder of another layout: training matters more
        say(f"no beats: {error}")
        return None


def _log(who: environment.Rank) -> TrainerLog | None:
    path = os.environ.get(environment.TRAINER_LOG)
    if not path or not who.supervised or who.rank != 0:
        return None
    return TrainerLog(Path(path), who.attempt)


made: list[ThisRank] = []
"""Empty until the first call of the library; then the one object of this process."""


def this_rank() -> ThisRank:
    """The one object of this process."""
    if not made:
        made.append(ThisRank())
    return made[0]
