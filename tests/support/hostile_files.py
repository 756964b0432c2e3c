"""
A file layer as hostile as a shared file system on a bad day, for tests.

    hidden   a name that another observer made is "no such file" for `hide_s` (negative lookups and
             listings are cached); exclusive creation still learns from the server that it is there
    stale    a file that was read shows the same content again for `stale_s`, whoever rewrote it
    frozen   every call blocks until the freeze is over, as on a hard mount whose server is away

Make one `HostileStore` and one `HostileFiles` for each observer (a host). Times come from an
injected clock, so that a test need not wait: `support.simulated_time.SimulatedTime`.

    store = HostileStore(clock, hide_s=60, stale_s=3)
    files = store.observer("host-a")
    store.freeze(30)          # everybody
    files.freeze(60)          # this host alone, or a process that was stopped
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

from trainctl.base.clock import Clock
from trainctl.base.files import Files


class HostileStore:
    """The server: knows who made which name when, and for how long it answers nobody."""

    def __init__(
        self,
        clock: Clock,
        *,
        hide_s: float = 0.0,
        stale_s: float = 0.0,
        latency_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.clock = clock
        self.hide_ms = hide_s * 1000
        self.stale_ms = stale_s * 1000
        self.latency_s = latency_s
        self.random = random.Random(seed)
        self.frozen_until_ms = 0.0
        self.made: dict[Path, tuple[float, HostileFiles]] = {}

    def observer(self, name: str) -> HostileFiles:
        """What one host sees."""
        return HostileFiles(self, name)

    def freeze(self, seconds: float) -> None:
        """Block every call of everybody for so long."""
        self.frozen_until_ms = self.clock.mono_ms() + seconds * 1000


class HostileFiles(Files):
    """One host's view of a `HostileStore`; does its work on the real file system below."""

    def __init__(self, store: HostileStore, name: str) -> None:
        self.name = name
        self._store = store
        self._frozen_until_ms = 0.0
        self._stopped_until_ms = 0.0
        self._missing: dict[Path, float] = {}
        self._cache: dict[Path, tuple[float, bytes]] = {}
        self._listings: dict[Path, tuple[float, list[str]]] = {}
        self._open: dict[int, Path] = {}
        #: Raised by the next calls that write: (how many more, the error).
        self.failing: tuple[int, OSError] | None = None
        #: Of the next write that fails, so many bytes land all the same.
        self.torn_at = 0

    def freeze(self, seconds: float) -> None:
        """Block this observer's calls for so long."""
        self._frozen_until_ms = self._store.clock.mono_ms() + seconds * 1000

    def stop(self, seconds: float) -> None:
        """Stop its process (SIGSTOP) for so long; it calls `thaw_stop` where it could act."""
        self._stopped_until_ms = self._store.clock.mono_ms() + seconds * 1000

    def thaw_stop(self) -> None:
        """Return when the process is not stopped."""
        self._wait_until(lambda: self._stopped_until_ms)

    def thaw_wait(self) -> None:
        """Return when nothing is frozen for this observer."""
        self._wait_until(
            lambda: max(self._frozen_until_ms, self._store.frozen_until_ms, self._stopped_until_ms)
        )

    def _wait_until(self, until_ms: Callable[[], float]) -> None:
        clock = self._store.clock
        while (wait_ms := until_ms() - clock.mono_ms()) > 0:
            clock.sleep(wait_ms / 1000)

    # --- names ---

    def listdir(self, path: Path) -> list[str]:
        self._travel()
        cached = self._listings.get(path)
        if cached is None or self._older(cached[0], self._store.hide_ms):
            names = [name for name in super().listdir(path) if not self._hides(path / name)]
            cached = (self._now(), names)
            self._listings[path] = cached
        self._travel()
        return list(cached[1])

    def mkdir_exclusive(self, path: Path) -> None:
        self._travel()
        super().mkdir_exclusive(path)
        self._made(path)
        self._travel()

    def create_exclusive(
        self, path: Path, data: bytes = b"", *, size: int = 0, durable: bool = True
    ) -> None:
        self._travel()
        self._fail_if_told()
        super().create_exclusive(path, data, size=size, durable=durable)
        self._made(path)
        self._travel()

    def replace(self, path: Path, data: bytes) -> None:
        self._travel()
        self._fail_if_told()
        super().replace(path, data)
        self._made(path)
        self._cache.pop(path, None)
        self._travel()

    # --- reading ---

    def read(self, path: Path, *, fresh: bool = False) -> bytes:
        self._travel()
        self._look_up(path)
        cached = self._cache.get(path)
        if cached is None or self._older(cached[0], self._store.stale_ms):
            cached = (self._now(), self._found(path, lambda: super(HostileFiles, self).read(path)))
            self._cache[path] = cached
        self._travel()
        return cached[1]

    def read_from(self, path: Path, offset: int, limit: int) -> bytes:
        return self.read(path)[offset : offset + limit]

    # --- writing ---

    def open_in_place(self, path: Path, *, create: bool = False) -> int:
        self._travel()
        new = create and not os.path.exists(path)
        if not create:
            self._look_up(path)
        fd = super().open_in_place(path, create=create)
        if new:
            self._made(path)
        self._missing.pop(path, None)
        self._open[fd] = path
        self._travel()
        return fd

    def write_in_place(self, fd: int, data: bytes) -> None:
        self._travel()
        if self.failing:
            os.pwrite(fd, data[: self.torn_at], 0)
        self._fail_if_told()
        super().write_in_place(fd, data)
        self._cache.pop(self._open[fd], None)
        self._travel()

    def open_append(self, path: Path) -> int:
        self._travel()
        fd = super().open_append(path)
        self._made(path)
        self._open[fd] = path
        return fd

    def append(self, fd: int, data: bytes) -> None:
        self._travel()
        if self.failing:
            os.write(fd, data[: self.torn_at])
        self._fail_if_told()
        super().append(fd, data)
        self._cache.pop(self._open[fd], None)
        self._travel()

    def truncate(self, fd: int, size: int) -> None:
        self._travel()
        self._fail_if_told()
        super().truncate(fd, size)

    # --- how hostile ---

    def _travel(self) -> None:
        """The way to the server or back: takes its time, and ends in a freeze if there is one."""
        if self._store.latency_s:
            self._store.clock.sleep(self._store.random.random() * self._store.latency_s)
        self.thaw_wait()

    def _look_up(self, path: Path) -> None:
        missing_ms = self._missing.get(path)
        known = missing_ms is not None and not self._older(missing_ms, self._store.hide_ms)
        if known or self._hides(path):
            raise _no_such(path)

    def _found(self, path: Path, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except FileNotFoundError:
            self._missing[path] = self._now()
            raise

    def _hides(self, path: Path) -> bool:
        made_ms, maker = self._store.made.get(path, (0.0, self))
        return maker is not self and not self._older(made_ms, self._store.hide_ms)

    def _made(self, path: Path) -> None:
        self._store.made[path] = (self._now(), self)
        self._missing.pop(path, None)
        self._listings.pop(path.parent, None)

    def _fail_if_told(self) -> None:
        if self.failing:
            left, error = self.failing
            self.failing = (left - 1, error) if left > 1 else None
            raise error

    def _older(self, at_ms: float, than_ms: float) -> bool:
        return self._now() - at_ms >= than_ms

    def _now(self) -> float:
        return float(self._store.clock.mono_ms())


def _no_such(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
