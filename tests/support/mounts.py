"""Small file systems of a test's own, where this machine lets it mount any."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def _can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    argv = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(
    not _can_mount(), reason="needs root that may mount in a namespace of its own"
)


def on_small_disk(folder: os.PathLike[str], size: str, argv: list[str]) -> list[str]:
    """
    `argv`, run where `folder` (it exists) is an empty memory file system of that `size` (as `64k`).
    It is gone with the program, so what it held is listed at the end of the program's output.
    """
    script = (
        'disk=$1 && mount -t tmpfs -o "size=$2" none "$disk" && shift 2 || exit 99; '
        '"$@"; code=$?; ls "$disk"; exit "$code"'
    )
    return ["unshare", "-m", "sh", "-c", script, "sh", os.fspath(folder), size, *argv]
