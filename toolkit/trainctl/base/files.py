"""
The narrow door to files on a shared file system that may be slow, stale or frozen.

Cells, lease, journal and requests do all their I/O through one `Files`, so that a test can put a
layer in between that hides new names, freezes, and gives stale reads. Nothing here asks whether a
name exists: on NFS the answer may be a minute old. What must be known is learned from calls that
reach the server (exclusive creation) or from files that exist beforehand. Standard library only:
node agents import this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_FILE_MODE = 0o644  # group-readable, never world-writable whatever the umask
_DIR_MODE = 0o755
_READ_CHUNK = 1 << 20


class Files:
    """The real file system. All errors are OSError, as the system gives them."""

    # --- names ---

    def listdir(self, path: Path) -> list[str]:
        """The names in a folder, sorted; on NFS the listing may be up to a minute old."""
        return sorted(os.listdir(path))

    def mkdir(self, path: Path) -> None:
        """Make a folder and its parents; it may exist already."""
        os.makedirs(path, mode=_DIR_MODE, exist_ok=True)

    def mkdir_exclusive(self, path: Path) -> None:
        """Claim a name: FileExistsError says that somebody else did. Durable on return."""
        os.mkdir(path, mode=_DIR_MODE)
        self.sync_dir(path.parent)

    def sync_dir(self, path: Path) -> None:
        """Make the names in a folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # --- whole files ---

    def read(self, path: Path, *, fresh: bool = False) -> bytes:
        """
        The whole file. `fresh` drops what this host has cached of it, so that a file of constant
        size comes from the server even where attributes are cached (NFS). Only regular files are
        read: a pipe that somebody put there must not block us.
        """
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(f"{path} is not a regular file")
            if fresh:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return _read_all(fd)
        finally:
            os.close(fd)

    def read_from(self, path: Path, offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset` on; fewer at the end of the file."""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.pread(fd, limit, offset)
        finally:
            os.close(fd)

    def create_exclusive(
        self, path: Path, data: bytes = b"", *, size: int = 0, durable: bool = True
    ) -> None:
        """
        Create the file with `data`; FileExistsError when the name is taken, which the server says.

        `size`: it reads as zeros up to there, which are not written, and so wipe out nothing.
        `durable`: the file and its name survive a crash of the storage when this returns.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        try:
            _write_all(fd, data)
            if size:
                os.ftruncate(fd, size)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        if durable:
            self.sync_dir(path.parent)

    def replace(self, path: Path, data: bytes) -> None:
        """Write the file so that it is seen whole or not at all: temporary name, fsync, rename."""
        temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
        try:
            self.create_exclusive(temporary, data, durable=False)
            fd = os.open(temporary, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self.sync_dir(path.parent)

    # --- rewriting in place ---

    def open_in_place(self, path: Path, *, create: bool = False) -> int:
        """
        A descriptor whose writes are on the server when they return. `create` also makes an empty
        file where there is none, and reaches the server past a cached "no such name".
        """
        flags = os.O_WRONLY | os.O_DSYNC | (os.O_CREAT if create else 0)
        return os.open(path, flags, _FILE_MODE)

    def write_in_place(self, fd: int, data: bytes) -> None:
        """Rewrite the beginning of the file by one pwrite."""
        view = memoryview(data)
        done = os.pwrite(fd, view, 0)
        while done < len(view):  # the disk is full or a signal came: the next call says which
            done += _progress(os.pwrite(fd, view[done:], done))

    # --- appending ---

    def open_append(self, path: Path) -> int:
        """Create a file that is only ever appended to; FileExistsError when there is one."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        fd = os.open(path, flags, _FILE_MODE)
        self.sync_dir(path.parent)
        return fd

    def append(self, fd: int, data: bytes) -> None:
        """One write at the end, durable on return."""
        _write_all(fd, data)
        os.fdatasync(fd)  # with the size, which is all the metadata that reading needs

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file back to `size` bytes, durably."""
        os.ftruncate(fd, size)
        os.fsync(fd)

    def size(self, fd: int) -> int:
        """The size of an open file in bytes."""
        return os.fstat(fd).st_size

    def close(self, fd: int) -> None:
        """Close what `open_in_place` or `open_append` opened."""
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    done = os.write(fd, view) if view else 0
    while done < len(view):
        done += _progress(os.write(fd, view[done:]))


def _progress(written: int) -> int:
    if not written:
        raise OSError(errno.EIO, "the file system takes no more bytes and does not say why")
    return written


def _read_all(fd: int) -> bytes:
    first = os.read(fd, _READ_CHUNK)
    if len(first) < _READ_CHUNK:
        return first
    chunks = [first]
    while chunk := os.read(fd, _READ_CHUNK):
        chunks.append(chunk)
    return b"".join(chunks)
