"""Which run a command means: a run directory, a name below runs/, or the one we are in."""

from __future__ import annotations

import os
from pathlib import Path

from trainctl.base.rundir import RunDir
from trainctl.model.errors import ConfigError

RUNS = Path("runs")
"""Where `submit` puts runs that are given no directory."""


def find_run(given: str | os.PathLike[str] | None) -> RunDir:
    """
    The run that is meant: `given`, else TRAINCTL_RUN_DIR, else the current folder. A bare name may
    be a run below runs/. Raises ConfigError, saying what runs there are, where it is none.
    """
    named = os.fspath(given) if given is not None else os.environ.get("TRAINCTL_RUN_DIR") or "."
    path = Path(named)
    if is_run(path):
        return RunDir(Path(os.path.abspath(path)))
    if os.sep not in named and is_run(RUNS / named):
        return RunDir(Path(os.path.abspath(RUNS / named)))
    raise ConfigError(f"{named}: {_why_not(path)}{_others(path)}")


def is_run(path: Path) -> bool:
    """Whether the folder holds a run: its journal or its lease is there."""
    run = RunDir(path)
    try:
        return run.events.is_dir() or run.leases.is_dir()
    except OSError:
        return False


def _why_not(path: Path) -> str:
    try:
        if not path.exists():
            return "no such run directory"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not path.is_dir():
        return "a file, not a run directory"
    if not os.access(path, os.R_OK | os.X_OK):
        return "cannot be read: Permission denied"
    if RunDir(path).config.exists():
        return "holds a run.toml but no run; `trainctl submit run.toml` starts one"
    return "not a run directory: it has no events/"


def _others(path: Path) -> str:
    for folder in (path, path / RUNS, RUNS):
        try:
            found = sorted(entry for entry in folder.iterdir() if is_run(entry))
        except OSError:
            continue
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            return f"; runs here: {', '.join(map(str, found[:3]))}{more}"
    return ""
