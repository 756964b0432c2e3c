"""
Which checkpoint a run may resume from: the supervisor's look at the checkpoint directory.

The format is one of several that trainers write; `LAYOUTS` names a reader for each that is known.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainctl.model.errors import CheckpointError, ConfigError
from trainctl.train import verify
from trainctl.train.commit import Committed
from trainctl.train.verify import Found, Refused

__all__ = ["LAYOUTS", "Committed", "Found", "Refused", "latest_committed"]

DIGEST_LIMIT_BYTES = 256 * 2**20
"""
A checkpoint up to this size is read whole and its digests compared (some 0.2 s); a larger one is
judged by marker, manifest and sizes, since a restart must not wait for terabytes.
"""

Reader = Callable[[Path, int | None], Found]
"""Given the directory and the digest limit, what it holds; OSError where it cannot be listed."""


def _read_committed(folder: Path, digest_limit: int | None) -> Found:
    return verify.scan(folder, digest_limit=digest_limit)


LAYOUTS: dict[str, Reader] = {"trainctl": _read_committed}
"""A reader for each `[checkpoint] layout`; `auto` looks for the layouts in this order."""


def latest_committed(
    folder: str | os.PathLike[str],
    *,
    layout: str = "auto",
    digest_limit: int | None = DIGEST_LIMIT_BYTES,
) -> Found:
    """
    The checkpoint of the highest step, then the highest attempt, that verifies; and why newer
    ones were refused. A directory that is not there holds none.

    `digest_limit`: a checkpoint of more bytes is verified without its digests; None: never without;
    0: always without. Raises CheckpointError where storage would not say: *cannot read* is never
    *there is none*, which would start a run of weeks from scratch.
    """
    path = Path(folder)
    reader = _reader(layout)
    try:
        found = reader(path, digest_limit)
    except OSError as error:
        raise CheckpointError(
            f"{path}: the checkpoint directory cannot be listed ({error.strerror or error}); "
            "see that the storage is there, then resume"
        ) from error
    if found.best is None and found.unreadable:
        reasons = "; ".join(f"{refused.path.name}: {refused.reason}" for refused in found.refused)
        raise CheckpointError(
            f"{path}: no checkpoint could be read ({reasons}); see that the storage is there, "
            "then resume"
        )
    return found


def _reader(layout: str) -> Reader:
    name = "trainctl" if layout == "auto" else layout
    try:
        return LAYOUTS[name]
    except KeyError:
        known = ", ".join(["auto", *LAYOUTS])
        raise ConfigError(
            f"[checkpoint] layout = {layout!r} is not known; known: {known}"
        ) from None
