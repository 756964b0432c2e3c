"""
Which checkpoint of a directory is committed, whole and the newest; and why others are not.

Nothing is trusted but what `train.commit` wrote: the marker vouches for the manifest, the manifest
for the files. Names are compared as numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainctl.train.commit import (
    FORMAT_VERSION,
    MANIFEST,
    MARKER,
    Committed,
    File,
    Manifest,
    Name,
    digest_file,
    parse_name,
)


class Refusal(Exception):
    """This is no committed checkpoint; the text says why, for people."""


class Unreadable(Refusal):
    """Storage would not say; another look may find the checkpoint good."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Something in the checkpoint directory that is not resumed from, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """
    What a checkpoint directory holds: the best committed one, and what was refused though it is
    newer or foreign, newest first. `unreadable`: storage kept some of it from us.
    """

    best: Committed | None
    refused: tuple[Refused, ...] = ()
    unreadable: bool = False


def verify(folder: Path, *, digest_limit: int | None = None) -> Manifest:
    """
    The manifest of a committed checkpoint; Refusal with the reason where it is not one.

    Marker, manifest and sizes are always checked; the files' digests where all are together no
    larger than `digest_limit` bytes (None: whatever their size; 0: never).
    """
    name = parse_name(folder.name)
    if name is None:
        raise Refusal("its name is not step-N.aNNNN")
    if name.is_tmp:
        raise Refusal("it was never completed: the name ends in .tmp")
    _check_kind(folder, folder.name, stat.S_ISDIR, "folder")
    manifest = _manifest(folder)
    if (manifest.step, manifest.attempt) != (name.step, name.attempt):
        raise Refusal(
            f"its manifest is of step {manifest.step}, attempt {manifest.attempt}: not what its "
            "name says"
        )
    for file in manifest.files:
        _check_size(folder, file)
    if digest_limit is None or manifest.size <= digest_limit:
        for file in manifest.files:
            with _reading(file.path):
                digest = digest_file(folder / file.path)
            if digest != file.sha256:
                raise Refusal(f"{file.path} is not what was written: its digest differs")
    return manifest


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """An OSError while `what` is read becomes a Refusal."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise Refusal(f"{what} is missing") from None
    except OSError as error:
        raise Unreadable(f"{what} cannot be read: {error.strerror or error}") from error


def _check_kind(path: Path, what: str, is_kind: Callable[[int], bool], kind: str) -> os.stat_result:
    with _reading(what):
        status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise Refusal(f"{what} is a symbolic link")
    if not is_kind(status.st_mode):
        raise Refusal(f"{what} is not a {kind}")
    return status


def _check_size(folder: Path, file: File) -> None:
    status = _check_kind(folder / file.path, file.path, stat.S_ISREG, "regular file")
    if status.st_size != file.size:
        how = "shorter" if status.st_size < file.size else "longer"
        raise Refusal(
            f"{file.path} is {how} than its manifest says: {status.st_size} bytes, not {file.size}"
        )


def _manifest(folder: Path) -> Manifest:
    """The manifest, once the marker vouches for it."""
    try:
        marker = _read_json(folder, MARKER)
    except FileNotFoundError:
        raise Refusal(f"it was never committed: no marker ({MARKER})") from None
    try:
        data = _read_json(folder, MANIFEST)
    except FileNotFoundError:
        raise Refusal(f"{MANIFEST} is missing") from None
    with _reading(MANIFEST):
        digest = digest_file(folder / MANIFEST)
    if not isinstance(marker, dict) or marker.get("manifest_sha256") != digest:
        raise Refusal(f"its marker does not fit {MANIFEST}")
    return _decode(data)


def _read_json(folder: Path, name: str) -> Any:
    """FileNotFoundError passes: what a missing file means is the caller's to say."""
    path = folder / name
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise Refusal(f"{name} is not a regular file")
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"{name} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        raise Refusal(f"{name} is unreadable: not JSON") from None


def _decode(data: Any) -> Manifest:
    try:
        if data["v"] != FORMAT_VERSION:
            raise Refusal(f"{MANIFEST} has format {data['v']}; this version reads {FORMAT_VERSION}")
        files = tuple(
            File(path=_inside(f["path"]), size=_count(f["size"]), sha256=str(f["sha256"]))
            for f in data["files"]
        )
        manifest = Manifest(
            step=_count(data["step"]),
            attempt=_count(data["attempt"]),
            world=_count(data["world"]),
            files=files,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal(f"{MANIFEST} is unreadable: {type(error).__name__} {error}") from None
    if not files:
        raise Refusal(f"{MANIFEST} lists no file")
    return manifest


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _inside(text: Any) -> str:
    path = PurePosixPath(str(text))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{text!r} leads out of the checkpoint")
    return str(path)


# --- looking ------------------------------------------------------------------------------------


def scan(folder: Path, *, digest_limit: int | None = None) -> Found:
    """
    The best committed checkpoint of a directory, and why newer ones were refused.

    A directory that is not there holds nothing. OSError where it cannot be listed: that is no
    answer to which checkpoint is the last.
    """
    try:
        entries = [Path(entry) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return Found(best=None)
    names = {entry: parse_name(entry.name) for entry in entries}
    refused = []
    unreadable = False
    for path, name in _newest_first(names):
        try:
            verify(path, digest_limit=digest_limit)
        except Refusal as why:
            refused.append(Refused(path, str(why)))
            unreadable |= isinstance(why, Unreadable)
            continue
        return Found(
            Committed(name.step, path, name.attempt), _and_foreign(refused, names), unreadable
        )
    return Found(best=None, refused=_and_foreign(refused, names), unreadable=unreadable)


def _newest_first(names: dict[Path, Name | None]) -> Sequence[tuple[Path, Name]]:
    ours = [(path, name) for path, name in names.items() if name is not None]
    ours.sort(key=lambda item: (item[1].step, item[1].attempt, not item[1].is_tmp), reverse=True)
    return ours


def _and_foreign(refused: Sequence[Refused], names: dict[Path, Name | None]) -> tuple[Refused, ...]:
    foreign = (
        Refused(path, "not a checkpoint of ours: its name is not step-N.aNNNN")
        for path in sorted(path for path, name in names.items() if name is None)
    )
    return (*refused, *foreign)
