"""
What anybody may ask of the supervisor: a file of its own name each, written whole, never rewritten.

They are found by listing `requests/`; on NFS a listing may be up to a minute old, so a request
may be obeyed so much later. Who must act at once calls the cluster, not this.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from trainctl.base.files import Files
from trainctl.base.rundir import RunDir
from trainctl.model.errors import StorageError, UsageError

SUFFIX = ".json"
MAX_BYTES = 64 * 1024
_FILES = Files()


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    One thing asked. `name` is the file's own name without `.json`, whatever the file says;
    `attempt` is the one that ran when it was asked (0: none). `now`: without a save.
    """

    name: str = ""
    kind: str = "stop"
    by: str = ""
    at_ms: int = 0
    now: bool = False
    attempt: int = 0


def write_request(run: RunDir, request: Request, files: Files = _FILES) -> Path:
    """Ask; returns the file. The name must be unique and no path."""
    if not request.name or request.name.startswith(".") or "/" in request.name:
        raise UsageError(f"a request cannot be named {request.name!r}: use letters, digits and -")
    path = run.requests / f"{request.name}{SUFFIX}"
    try:
        files.replace(path, msgspec.json.encode(request))
    except OSError as error:
        raise StorageError(f"{path}: cannot ask: {error.strerror or error}") from error
    return path


def _say_nothing(path: Path, why: str) -> None:
    del path, why


def read_requests(
    run: RunDir, files: Files = _FILES, *, unreadable: Callable[[Path, str], None] = _say_nothing
) -> tuple[Request, ...]:
    """
    All that was ever asked, by time, then by name.

    A file that cannot be read is told to `unreadable`, each time anew, and is no request.
    """
    try:
        names = files.listdir(run.requests)
    except FileNotFoundError:
        return ()
    except OSError as error:
        why = error.strerror or error
        raise StorageError(f"{run.requests}: cannot read the requests: {why}") from error
    requests = []
    for name in names:
        if name.startswith(".") or not name.endswith(SUFFIX):
            continue  # one that is being written
        path = run.requests / name
        try:
            requests.append(_read(path, files))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            unreadable(path, str(error))
    return tuple(sorted(requests, key=lambda request: (request.at_ms, request.name)))


def _read(path: Path, files: Files) -> Request:
    raw = files.read_from(path, 0, MAX_BYTES)
    request = msgspec.json.decode(raw, type=Request)
    return msgspec.structs.replace(request, name=path.name.removesuffix(SUFFIX))
