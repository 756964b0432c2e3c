"""
The commit format of checkpoints: what a committed one looks like, and how that is verified.

    step-120.a0003.tmp/           attempt 3 is writing its checkpoint of step 120
    step-120.a0003/               it is whole, and renamed
        rank-0.pt …               whatever the ranks wrote
        manifest.json             step, attempt, world; path, size and SHA-256 of every file
        COMMITTED                 the marker, written last: the manifest's own SHA-256

The name carries the attempt, so ranks of an older one that go on writing write somewhere else. A
folder counts when the marker is there and fits the manifest, and the manifest fits the files
(`train.verify`); the best is the one of the highest step, then the highest attempt. What any other
file says about "latest" is no fact.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"
MARKER = "COMMITTED"
FORMAT_VERSION = 1
TMP_SUFFIX = ".tmp"

_NAME = re.compile(r"step-([0-9]{1,18})\.a([0-9]{1,9})(\.tmp)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Name:
    """
    What a folder's name says.

    >>> str(Name(step=1000, attempt=12, is_tmp=True))
    'step-1000.a0012.tmp'
    """

    step: int
    attempt: int
    is_tmp: bool = False

    def __str__(self) -> str:
        return f"step-{self.step}.a{self.attempt:04d}{TMP_SUFFIX if self.is_tmp else ''}"


def parse_name(text: str) -> Name | None:
    """
    The name of one of our folders, taken apart; None for any other.

    >>> parse_name("step-1000.a0012")
    Name(step=1000, attempt=12, is_tmp=False)
    >>> parse_name("step_1000") is None
    True
    """
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    return Name(step=int(match[1]), attempt=int(match[2]), is_tmp=match[3] is not None)


@dataclass(frozen=True, slots=True)
class File:
    """One file of a checkpoint: its path within it, its size in bytes, its SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """manifest.json."""

    step: int
    attempt: int
    world: int
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """The bytes of manifest.json."""
        files = [{"path": f.path, "size": f.size, "sha256": f.sha256} for f in self.files]
        data = {
            "v": FORMAT_VERSION,
            "step": self.step,
            "attempt": self.attempt,
            "world": self.world,
            "files": files,
        }
        return json.dumps(data, indent=1).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint that may be resumed from."""

    step: int
    path: Path
    attempt: int = 0


# --- writing ------------------------------------------------------------------------------------


def digest_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is seen whole or not at all; the folder is not yet fsynced."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_marker(folder: Path, manifest: Manifest) -> None:
    """The last act of a commit: `folder` has its final name and holds the manifest."""
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    data = {"v": FORMAT_VERSION, "manifest_sha256": digest}
    write_whole(folder / MARKER, json.dumps(data).encode() + b"\n")
    sync(folder)


def walk(folder: Path) -> Iterator[str]:
    """All files below `folder` as paths within it, sorted; names that begin with a dot and end in
    `.partial` or `.part` are ours and left out."""
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            if not (name.startswith(".") and name.endswith((".partial", ".part"))):
                yield (Path(root) / name).relative_to(folder).as_posix()
