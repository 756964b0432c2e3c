"""
The checkpoints of a run, as a training program sees them: where to start from, and how to save.
"""

from __future__ import annotations

import contextlib
import os
from contextlib import AbstractContextManager
from pathlib import Path

from trainctl.train import collective, commit, environment, verify
from trainctl.train.commit import Committed
from trainctl.train.saving import Save


class Checkpoints:
    """
    The checkpoints of a run.

    Under trainctl they lie where run.toml says. `folder` is where they go elsewhere; "checkpoints"
    in the working directory by default.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        told = os.environ.get(environment.CHECKPOINT_DIR)
        self.folder = Path(told or folder or "checkpoints").absolute()
        self.committed_step = -1
        """The last step that this process saw committed; -1 for none."""
        self._attempt: int | None = None

    def saving(self, step: int) -> AbstractContextManager[Path]:
        """
        A block in which every rank writes its own files into the folder it is given.

        All ranks must enter it at the same step. After it the checkpoint is committed, or the save
        failed because storage refused (`committed_step` tells which); any other exception of the
        block passes and nothing is committed. Enter it after `init_process_group`.
        """
        return Save(self, step)

    def latest(self) -> Committed | None:
        """
        The checkpoint to start from; None for a start from scratch.

        Under trainctl it is the supervisor's choice, the same for all ranks. Elsewhere it is the
        newest committed one in the folder; each rank looks for itself. OSError where storage would
        not say which that is.
        """
        told = os.environ.get(environment.RESUME)
        if told is not None:
            return _told(Path(told)) if told else None
        found = verify.scan(self.folder, digest_limit=0)
        if found.best is None and found.unreadable:
            raise OSError(f"{self.folder}: {found.refused[0].path.name}: {found.refused[0].reason}")
        return found.best

    def attempt(self) -> int:
        """
        The number that this process's checkpoints carry: the attempt's, or elsewhere one more than
        any in the folder, so that two trainings in one folder never write under one name.
        """
        if self._attempt is None:
            who = environment.rank()
            if who.supervised:
                self._attempt = who.attempt
            else:
                mine = self._highest_attempt() + 1 if collective.rank_of(who.rank) == 0 else 0
                self._attempt = -collective.least(-mine)[0]
        return self._attempt

    def _highest_attempt(self) -> int:
        with contextlib.suppress(OSError):
            names = (commit.parse_name(name) for name in os.listdir(self.folder))
            return max((name.attempt for name in names if name), default=0)
        return 0


def _told(path: Path) -> Committed:
    name = commit.parse_name(path.name)
    if name is not None:
        return Committed(name.step, path, name.attempt)
    return Committed(int(os.environ.get(environment.RESUME_STEP) or -1), path)
