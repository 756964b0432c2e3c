"""
What a training program imports; nothing here imports more than the standard library.

    from trainctl import train

    checkpoints = train.Checkpoints()
    if start := checkpoints.latest():
        ...                                  # load from start.path
    train.loaded(step, start)
    while step < steps:
        ...                                  # one training step
        step += 1
        train.beat(step, loss)
        if step % 100 == 0:
            save(step)
        if train.stop_agreed():
            ...                              # save unless checkpoints.committed_step == step
            sys.exit()
    train.done(step, loss=loss)

A step's number is how many steps have ended. Outside trainctl nothing is beaten, no stop is ever
agreed on and nothing is written down; checkpoints are saved and found all the same.
"""

from __future__ import annotations

import os as _os
from contextlib import AbstractContextManager as _Context
from typing import SupportsFloat as _SupportsFloat

from trainctl.train import environment as _environment
from trainctl.train import error_file as _error_file
from trainctl.train.beats import Phase
from trainctl.train.checkpoints import Checkpoints
from trainctl.train.commit import Committed
from trainctl.train.rng import restore_rng, save_rng
from trainctl.train.this_rank import made as _made
from trainctl.train.this_rank import this_rank as _this_rank
from trainctl.train.trainer_log import plain as _plain

__all__ = [
    "Checkpoints",
    "Committed",
    "Phase",
    "beat",
    "done",
    "loaded",
    "phase",
    "restore_rng",
    "save_rng",
    "stop_agreed",
]


def beat(step: int, loss: _SupportsFloat | None = None) -> None:
    """
    This rank has ended `step`. Call it once a step on every rank; it costs under a microsecond.

    `loss` is written down every few seconds by rank 0 and not looked at otherwise, so that a tensor
    on a GPU is not waited for at every step.
    """
    here = _made[0] if _made else _this_rank()  # a call fewer, on the step path
    beats = here.beats
    if beats is not None:
        beats.beat(step)
        if loss is not None and here.log is not None:
            here.sample_loss(step, loss)


def phase(name: str) -> _Context[None]:
    """
    A block in which a step may take another time than usual: "init", "load", "eval" or "save".

    Nested blocks are allowed; `Checkpoints.saving` is one by itself. ValueError for another name.
    """
    return _this_rank().in_phase(Phase(name))


def stop_agreed() -> bool:
    """
    Whether to end after this step: save, unless this step is committed, and exit with 0.

    Call it once a step on every rank, at the same place. All ranks get True at the same step, even
    where one of them was asked later than others, and it stays True. With torch.distributed it is
    one small asynchronous all-reduce on the default group, read at the next call.
    """
    here = _made[0] if _made else _this_rank()
    return here.ask[0] != 0 and here.stop_agreed()


def loaded(step: int, start: Committed | str | _os.PathLike[str] | None = None) -> None:
    """The training stands at `step`, loaded from `start`; None is a start from scratch."""
    here = _this_rank()
    path = start.path if isinstance(start, Committed) else start
    if here.log is not None:
        here.log.write("loaded", step, {"path": _os.fspath(path or "")})
    if path:
        here.note_committed(step)


def done(step: int, **result: object) -> None:
    """
    The training has reached its own end: without this mark the run is started again.

    `result` is kept and shown: text, whole numbers, floats. Raises OSError where the mark could not
    be written within a minute.
    """
    log = _this_rank().log
    if log is not None:
        log.must_write(
            "done", step, {"result": {name: _plain(value) for name, value in result.items()}}
        )


if _os.environ.get(_environment.BEATS) and _os.environ.get(_environment.ERROR_FILE):
    _error_file.install()  # at import, since most programs that fail do so before their first step
