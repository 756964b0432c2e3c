"""A first run.toml for a newcomer, with every key explained; an existing file is never touched."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from trainctl.adapters.templates import render_run_toml
from trainctl.model.errors import ConfigError

COMMAND = "train.py"


@dataclass(frozen=True, slots=True)
class Written:
    """The file and its text; `typed` is the path as a shell wants it."""

    path: Path
    text: str
    typed: str


def init(path: Path, *, dry_run: bool = False) -> Written:
    """
    Write run.toml at `path` (in it, where it is a folder). Raises ConfigError where one is there,
    or the place cannot be written.
    """
    target = path / "run.toml" if path.is_dir() else path
    text = render_run_toml(_name(target), COMMAND)
    if os.path.lexists(target):
        raise ConfigError(f"{target}: exists already and is not overwritten")
    if not dry_run:
        try:
            with target.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise ConfigError(f"{target}: exists already and is not overwritten") from None
        except OSError as error:
            raise ConfigError(f"{target}: cannot be written: {error.strerror}") from None
    return Written(target, text, shlex.quote(str(target)))


def _name(target: Path) -> str:
    """The folder's name, as far as it can be a run's."""
    folder = target.absolute().parent.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder).strip("-._") or "run"
