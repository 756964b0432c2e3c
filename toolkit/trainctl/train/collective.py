"""
How the ranks of a training agree on a number, by torch.distributed where the program uses it.

Torch is never imported here: what is not in sys.modules is not in use.
"""

from __future__ import annotations

import sys
from typing import Any


def world() -> int:
    """The number of ranks that can agree: 1 without an initialised process group."""
    dist = _dist()
    return int(dist.get_world_size()) if dist else 1


def rank_of(default: int) -> int:
    """This process's rank in the default group; `default` where there is none."""
    dist = _dist()
    return int(dist.get_rank()) if dist else default


def least(*values: int) -> tuple[int, ...]:
    """
    For each place, the least value that any rank gave. Every rank must call it; it waits for all.
    """
    dist = _dist()
    if dist is None or dist.get_world_size() == 1:
        return values
    torch = sys.modules["torch"]
    numbers = torch.tensor(values, dtype=torch.int64, device=_device(dist))
    dist.all_reduce(numbers, op=dist.ReduceOp.MIN)
    return tuple(int(number) for number in numbers.tolist())


class Vote:
    """
    One rank's yes or no, on its way to all others: begun at one step, read at the next.

    On gloo the sum is there when it is waited for. On CUDA it is copied to pinned memory on a
    stream of its own, so that the training's stream never waits, and the host only for the past
    step's copy.
    """

    def __init__(self, yes: bool) -> None:
        dist = _dist()
        torch = sys.modules["torch"]
        device = _device(dist)
        self._event: Any = None
        self._count = torch.tensor([int(yes)], dtype=torch.int32, device=device)
        self._work = dist.all_reduce(self._count, async_op=True)
        if device != "cpu":
            self._copy_later(torch)

    def _copy_later(self, torch: Any) -> None:
        with torch.cuda.stream(_side_stream(torch)):
            self._work.wait()  # orders the side stream behind the sum; the host goes on
            self._on_device = self._count  # must outlive the copy
            self._count = torch.empty(1, dtype=torch.int32, pin_memory=True)
            self._count.copy_(self._on_device, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def any_yes(self) -> bool:
        """Whether any rank said yes; the same answer on all."""
        if self._event is None:
            self._work.wait()
        else:
            self._event.synchronize()
        return int(self._count[0]) > 0


_streams: dict[int, Any] = {}


def _side_stream(torch: Any) -> Any:
    device = torch.cuda.current_device()
    if device not in _streams:
        _streams[device] = torch.cuda.Stream()
    return _streams[device]


def _dist() -> Any:
    """torch.distributed with an initialised default group, or None."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist


def _device(dist: Any) -> str:
    """Where the default group's tensors live; the CPU wherever it can."""
    backends = str(dist.get_backend_config())
    return "cpu" if "cpu:" in backends or "cuda" not in backends else "cuda"
