"""Plain sentences about ranks and nodes, for somebody who reads them at 3 a.m."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainctl.model.evidence import RankExit
from trainctl.policy.signs import SIGNAL_NAMES, Sign, exception_of, message_of, signal_of

LONGEST = 240
"""Characters of another's words in a sentence."""

MOST_NAMES = 6
"""Nodes or spans of ranks that are named before the rest is counted."""


def cut(text: str, longest: int = LONGEST) -> str:
    """One line of `text`, its blanks closed up, at most `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def ranks(numbers: Iterable[int | RankExit]) -> str:
    """`rank 3` or `ranks 0-2, 5`."""
    found = sorted({one.rank if isinstance(one, RankExit) else one for one in numbers})
    spans: list[list[int]] = []
    for number in found:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = _some([f"{low}" if low == high else f"{low}-{high}" for low, high in spans])
    return f"rank {text}" if len(found) == 1 else f"ranks {text}"


def nodes(names: Sequence[str]) -> str:
    """`node-2`, or several with commas."""
    return _some(list(names))


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 40` for one without a name."""
    return SIGNAL_NAMES.get(number, f"signal {number}")


def ended(end: RankExit) -> str:
    """All of it: `rank 1 on node-2 raised RuntimeError: … in train.py:step at step 120`."""
    return f"rank {end.rank} on {end.node} {_deed(end)}{_where(end)}"


def led(ends: Sequence[RankExit]) -> str:
    """How the leads ended: the first one's words, and who failed in the same way."""
    if len(ends) == 1:
        return ended(ends[0])
    where = sorted({end.node for end in ends})
    return f"{ranks(ends)} on {nodes(where)} failed alike: each {_deed(ends[0])}{_where(ends[0])}"


def followed(ends: Sequence[RankExit], gone: Sequence[str]) -> tuple[str, ...]:
    """What became of the ranks that are not to blame."""
    others = [end for end in ends if end.node not in gone]
    if not others:
        return ()
    killed = [end for end in others if end.by_us]
    lost = [end for end in others if not end.by_us]
    told = []
    if lost:
        them = "its peer" if len(lost) == 1 else "their peers"
        what = "a consequence" if len(lost) == 1 else "consequences"
        told.append(f"{ranks(lost)} then lost {them}: {what}")
    if killed:
        was = "was" if len(killed) == 1 else "were"
        told.append(f"{ranks(killed)} {was} then ended by us")
    return tuple(told)


def afterwards(failed: Sequence[tuple[RankExit, Sign]], gone: Sequence[str]) -> str:
    """What still went wrong after the training was done."""
    if failed:
        more = f" and {len(failed) - 1} more did not end cleanly" if len(failed) > 1 else ""
        return ended(failed[0][0]) + more
    return f"{nodes(gone)} died"


def _deed(end: RankExit) -> str:
    if end.error is not None and (end.error.message or end.error.exception):
        name, words = exception_of(end.error), cut(message_of(end.error))
        told = f"{name}: {words}" if name and words else name or words or "an error"
        return f"raised {told}"
    signal = signal_of(end)
    if signal is not None:
        return f"was killed by signal {signal} ({signal_name(signal)})"
    return "ended unseen" if end.code is None else f"exited with code {end.code} and no traceback"


def _where(end: RankExit) -> str:
    place = f" in {end.error.place}" if end.error is not None and end.error.place else ""
    told = bool(place) or end.phase in ("", "step")
    phase = "" if told else f" while in {end.phase}"
    step = f" at step {end.step}" if end.step >= 0 else ""
    return f"{place}{phase}{step}"


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
