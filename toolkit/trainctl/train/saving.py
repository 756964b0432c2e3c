"""
Saving checkpoints so that at any instant the last committed one is whole, whoever is killed.

    all ranks     write their files into step-N.aNNNN.tmp/, fsync and digest them
    ── all done? one rank's full disk is a failed save on every rank ──
    rank 0        manifest.json → rename to step-N.aNNNN → COMMITTED
    ── committed? ──

A failed save is written down and training goes on; the last committed checkpoint stays. A file
belongs to the rank that its name names (`rank-3.pt`, `__3_0.distcp`), any other to rank 0: that
rank makes it durable and digests it, and rank 0 takes what is left. So two ranks must never write
one name.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from trainctl.train import collective, commit, inject, verify
from trainctl.train.beats import Phase
from trainctl.train.commit import File, Manifest, Name
from trainctl.train.inject import Point
from trainctl.train.messages import say
from trainctl.train.this_rank import ThisRank, this_rank

if TYPE_CHECKING:
    from trainctl.train.checkpoints import Checkpoints

_ALL_WELL = 2**62
_CODES = 4096

_OWNER = re.compile(r"(?:^|[^0-9A-Za-z])rank[-_.]?([0-9]{1,9})(?![0-9])|(?:^|/)__([0-9]{1,9})_")

_NOT_STORAGE = (ConnectionError, ChildProcessError, ProcessLookupError, InterruptedError)
_STORAGE_WORDS = (
    "inline_container",  # torch.save on a full disk: a RuntimeError, no OSError
    "PytorchStreamWriter",
    "iostream error",
    "No space left on device",
    "Disk quota exceeded",
    "Input/output error",
    "Stale file handle",
)


class Save:
    """One save: the context that `Checkpoints.saving` gives."""

    def __init__(self, checkpoints: Checkpoints, step: int) -> None:
        self._checkpoints = checkpoints
        self._step = step
        self._here: ThisRank = this_rank()
        self._world = collective.world()
        self._rank = collective.rank_of(self._here.who.rank)
        if self._here.who.world > 1 and self._world == 1:
            raise RuntimeError(
                f"this is one of {self._here.who.world} ranks, and they cannot agree on a save: "
                "call torch.distributed.init_process_group first"
            )
        self._code = _ALL_WELL
        self._why = ""
        self._twice = False
        self._phase = contextlib.ExitStack()

    # --- the block --------------------------------------------------------------------------

    def __enter__(self) -> Path:
        self._began = time.monotonic()
        self._phase.enter_context(self._here.in_phase(Phase.SAVE))
        inject.point(Point.SAVE_BEGIN, self._step)
        name = Name(self._step, self._checkpoints.attempt())
        self._final = self._checkpoints.folder / str(name)
        self._tmp = self._final.with_name(self._final.name + commit.TMP_SUFFIX)
        if self._rank == 0:
            self._try(self._prepare)
        if self._agreed():  # rank 0 has cleared the place before any rank writes into it
            self._try(lambda: self._tmp.mkdir(exist_ok=True))
        return self._tmp

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        with self._phase:
            if error is not None and not self._take_for_failure(error):
                return False
            if self._code == _ALL_WELL:
                self._try(self._make_durable)
                inject.point(Point.SAVE_SHARD_WRITTEN, self._step)
            if self._agreed() and self._rank == 0:
                self._try(self._commit)
            self._conclude()
        return True

    def _take_for_failure(self, error: BaseException) -> bool:
        """Whether the block failed because storage did."""
        if self._code != _ALL_WELL and isinstance(error, Exception):
            return True  # there was no folder to write to: whatever came of that
        if not is_of_storage(error):
            return False
        self._fail(error)
        return True

    def _conclude(self) -> None:
        """Hear from rank 0 how it went; a stop that any rank was asked for is agreed on with it."""
        here = self._here
        code, go_on = collective.least(self._code, 0 if here.wants_stop() else 1)
        if code == _ALL_WELL:
            self._checkpoints.committed_step = self._step
            here.note_committed(self._step)
        if self._rank == 0:
            self._report(code)
        if self._world > 1 and go_on == 0:
            here.stop()

    def _report(self, code: int) -> None:
        log = self._here.log
        if code == _ALL_WELL:
            took_ms = int((time.monotonic() - self._began) * 1000)
            if log is not None and not self._twice:
                log.write("committed", self._step, {"path": str(self._final), "took_ms": took_ms})
            self._remove_leftovers()
            return
        rank, number = divmod(code, _CODES)
        reason = self._why if rank == 0 and self._why else os.strerror(number)
        say(f"the save of step {self._step} failed: rank {rank}: {reason}")
        if log is not None:
            log.write("save_failed", self._step, {"reason": reason, "rank": rank})
        shutil.rmtree(self._tmp, ignore_errors=True)
        if not self._twice:
            shutil.rmtree(self._final, ignore_errors=True)

    # --- agreement --------------------------------------------------------------------------

    def _agreed(self) -> bool:
        """Whether all is well on every rank; the lowest failed one's reason is kept on all."""
        (self._code,) = collective.least(self._code)
        return self._code == _ALL_WELL

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        number = getattr(error, "errno", None) or self._likely_errno()
        self._code = min(self._code, self._rank * _CODES + number % _CODES)
        self._why = " ".join(str(error).split())
        if not isinstance(error, OSError):  # torch says where in its sources, and not what
            self._why = f"{os.strerror(number)} ({self._why})"
        say(f"rank {self._rank}: step {self._step} cannot be saved: {self._why}")

    def _likely_errno(self) -> int:
        """torch does not say why a write failed: a full disk is the usual reason."""
        with contextlib.suppress(OSError):
            space = os.statvfs(self._checkpoints.folder)
            if space.f_bavail * space.f_frsize < 2**20:
                return errno.ENOSPC
        return errno.EIO

    # --- files ------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Rank 0: an empty place under this attempt's name, whatever an earlier save of it left."""
        self._checkpoints.folder.mkdir(parents=True, exist_ok=True)
        if self._final.exists():
            try:
                verify.verify(self._final, digest_limit=0)
                self._twice = True
            except verify.Refusal:
                shutil.rmtree(self._final)
        if self._tmp.exists():
            shutil.rmtree(self._tmp)
        self._tmp.mkdir()

    def _make_durable(self) -> None:
        """Fsync and digest this rank's files; what was found is left to rank 0 as a part."""
        mine = [path for path in commit.walk(self._tmp) if self._owner(path) == self._rank]
        part = [asdict(_durable(self._tmp, path)) for path in mine]
        _part(self._tmp, self._rank).write_text(json.dumps(part))

    def _owner(self, path: str) -> int:
        match = _OWNER.search(path)
        rank = int(match[1] or match[2]) if match else 0
        return rank if rank < self._world else 0

    def _commit(self) -> None:
        """Rank 0, after all ranks are done."""
        inject.point(Point.SAVE_ALL_RANKS_DONE, self._step)
        if self._twice:
            shutil.rmtree(self._tmp)
            return
        manifest = self._manifest()
        commit.write_whole(self._tmp / commit.MANIFEST, manifest.encode())
        for root, _, _ in os.walk(self._tmp):
            commit.sync(Path(root))
        inject.point(Point.SAVE_MANIFEST_WRITTEN, self._step)
        self._tmp.rename(self._final)
        commit.sync(self._checkpoints.folder)
        inject.point(Point.SAVE_RENAMED, self._step)
        commit.write_marker(self._final, manifest)
        inject.point(Point.SAVE_MARKED, self._step)

    def _manifest(self) -> Manifest:
        files: dict[str, File] = {}
        for rank in range(self._world):
            part = _part(self._tmp, rank)
            files |= {file["path"]: File(**file) for file in json.loads(part.read_bytes())}
            part.unlink()
        for path in commit.walk(self._tmp):
            if path not in files:
                files[path] = _durable(self._tmp, path)
        if not files:
            raise OSError(errno.ENODATA, "no rank wrote a file into the checkpoint")
        return Manifest(
            step=self._step,
            attempt=self._checkpoints.attempt(),
            world=self._world,
            files=tuple(files[path] for path in sorted(files)),
        )

    def _remove_leftovers(self) -> None:
        """
        What ranks of older attempts left unfinished; theirs alone, and as far as it can be done.
        """
        if not self._here.who.supervised:
            return  # whoever it belongs to may still be alive
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._checkpoints.folder):
                name = commit.parse_name(entry.name)
                if name and name.is_tmp and name.attempt < self._checkpoints.attempt():
                    shutil.rmtree(entry.path, ignore_errors=True)


def is_of_storage(error: BaseException) -> bool:
    """
    Whether a write failed because of the storage, by an OSError or by what others make of one.
    """
    if isinstance(error, OSError):
        return not isinstance(error, _NOT_STORAGE)
    return isinstance(error, Exception) and any(word in str(error) for word in _STORAGE_WORDS)


def _part(folder: Path, rank: int) -> Path:
    return folder / f".rank-{rank}.part"


def _durable(folder: Path, path: str) -> File:
    whole = folder / path
    commit.sync(whole)
    return File(path=path, size=whole.stat().st_size, sha256=commit.digest_file(whole))
