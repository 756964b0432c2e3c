"""
What the local cluster writes down about its nodes, in the run directory: it outlives them.

    names/NODE          the name is taken for ever, even when its node was lost at once
    grants/GANG.I.json  node I of the gang GANG
    dead/NODE.json      when the node was found dead
    released/NODE.json  when it was given back: the end of its allocated time

Each file is written once, by whoever comes first (a whole file is linked to its name), so several
supervisors and the node itself may race and will read the same answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import msgspec

from trainctl.model.errors import ClusterError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_NODES = 65_000


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """One node as it was granted; `folder` is its own, for node-local memory and its socket."""

    gang: str
    index: int
    node: str
    address: str
    folder: str
    start_ms: int


class End(msgspec.Struct, frozen=True, kw_only=True):
    """When a node died or was given back, in UTC ms."""

    node: str
    end_ms: int
    why: str = ""


_Record = TypeVar("_Record", Grant, End)


class Ledger:
    """The record in the folder `root` (`RunDir.cluster`)."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def claim(
        self, gang: str, index: int, exclude: Collection[str], describe: Callable[[str, int], Grant]
    ) -> Grant:
        """
        The grant of node `index` of `gang`; made now, under a fresh name, if there is none.

        `describe(name, number)` makes the grant of a fresh node name.
        """
        if not _NAME.fullmatch(gang):
            raise ClusterError(f"{gang!r} is no name for a gang: letters, digits, and ._- only")
        path = self._root / "grants" / f"{gang}.{index}.json"
        if (grant := _read(path, Grant)) is None:
            return _write_once(path, describe(*self._fresh_name(exclude)))
        return grant

    def grants(self, gang: str) -> tuple[Grant, ...]:
        """What was granted under the name `gang`, in order of index."""
        try:
            names = os.listdir(self._root / "grants")
        except FileNotFoundError:
            return ()
        mine = (name for name in names if name.rpartition(".")[0].rpartition(".")[0] == gang)
        found = (_read(self._root / "grants" / name, Grant) for name in mine)
        return tuple(sorted((g for g in found if g is not None), key=lambda grant: grant.index))

    def died(self, node: str) -> End | None:
        """When the node was found dead; None if it never was."""
        return _read(self._root / "dead" / f"{node}.json", End)

    def record_death(self, node: str, at_ms: int, why: str) -> End:
        """The node is dead; the first to say so is right."""
        end = End(node=node, end_ms=at_ms, why=why)
        return _write_once(self._root / "dead" / f"{node}.json", end)

    def released(self, node: str) -> End | None:
        """When the node was given back; None while it is held."""
        return _read(self._root / "released" / f"{node}.json", End)

    def record_release(self, node: str, at_ms: int, why: str = "") -> End:
        """The node is given back; that of a dead one ended when it was found dead."""
        death = self.died(node)
        end = death or End(node=node, end_ms=at_ms, why=why)
        return _write_once(self._root / "released" / f"{node}.json", end)

    def _fresh_name(self, exclude: Collection[str]) -> tuple[str, int]:
        names = self._root / "names"
        names.mkdir(parents=True, exist_ok=True)
        for number in range(len(os.listdir(names)) + 1, _MOST_NODES):
            name = f"node-{number}"
            if name in exclude:
                continue
            try:
                os.close(os.open(names / name, os.O_CREAT | os.O_EXCL, 0o640))
            except FileExistsError:
                continue
            return name, number
        raise ClusterError(f"{self._root}: no node name is left below node-{_MOST_NODES}")


def _read(path: Path, kind: type[_Record]) -> _Record | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ClusterError(f"{path}: not a record of the local cluster: {error}") from error


def _write_once(path: Path, record: _Record) -> _Record:
    """Write the record, or return the one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    try:
        os.write(fd, msgspec.json.encode(record) + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)
    try:
        os.link(temporary, path)
    except FileExistsError:
        there = _read(path, type(record))
        if there is None:
            raise ClusterError(f"{path}: was there and is gone; do not delete it") from None
        return there
    else:
        return record
    finally:
        temporary.unlink()
