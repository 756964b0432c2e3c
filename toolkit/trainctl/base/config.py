"""
run.toml, read once into frozen values; a typo is an error that names what is allowed.

What a key means and its default are in templates/run.toml.j2, which `trainctl init` writes.
"""

from __future__ import annotations

import re
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, inspect

from trainctl.base import tables
from trainctl.model.agent import Launcher
from trainctl.model.errors import ConfigError

MAX_BYTES = 1 << 20
"""No configuration file is larger; whatever is was named by mistake."""
HOLES = ("checkpoint", "stop_file", "run_dir", "attempt", "collective_timeout_s")
"""The names in braces that an agent fills in `command`."""

Name = Annotated[
    str,
    Meta(
        pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
        description="up to 64 letters, digits, '.', '_' and '-', the first a letter or digit",
    ),
]
"""It becomes part of file names and of Slurm's job names."""
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
AtLeastOne = Annotated[int, Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
PositiveSeconds = Annotated[float, Meta(ge=0.1, le=31_536_000)]
Words = Annotated[
    tuple[str, ...], Meta(description='a list of words, or one line in quotes ("python train.py")')
]
Command = Annotated[
    tuple[str, ...],
    Meta(min_length=1, description='a list of words, or one line in quotes ("python train.py")'),
]
PlainText = Annotated[
    str, Meta(pattern=r"[^\x00-\x1f\x7f]*", description="one line of text in quotes")
]
EnvName = Annotated[
    str,
    Meta(
        pattern=r"(?!TRAINCTL_|(LOCAL_|GROUP_|NODE_)?RANK$|(LOCAL_)?WORLD_SIZE$|MASTER_ADDR$)"
        r"(?!MASTER_PORT$)[A-Za-z_][A-Za-z0-9_]*",
        description="names of variables, but TRAINCTL_* and those by which ranks find each other",
    ),
]
SlurmName = Annotated[
    str,
    Meta(
        pattern=r"[a-z][a-z0-9-]*",
        description="options of sbatch without their dashes, such as partition or mem-per-gpu",
    ),
]


class SizeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[size]`: how many nodes train, and how many wait."""

    nodes: AtLeastOne = 1
    gpus_per_node: Count = 0
    ranks_per_node: AtLeastOne = 1
    spares: Count = 0


class CheckpointConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[checkpoint]`: where they are; `dir` "" is RUN/checkpoints, "auto" looks at the files."""

    dir: PlainText = ""
    layout: Literal["auto", "trainctl"] = "auto"


class RestartConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[restart]`: when to go on and when to stop; see docs/design.md, "Policy"."""

    #: False: decide and journal, do nothing.
    act: bool = True
    #: In the run's whole life; None: no such limit.
    max_failures: AtLeastOne | None = None
    failures_without_progress: AtLeastOne = 50
    failures_per_hour: AtLeastOne = 10
    #: Planned stops that the run resumes from by itself (time limit, preemption).
    stops: AtLeastOne = 1000
    #: Two failures are the least that can be "the same again".
    crash_loop: Annotated[int, Meta(ge=2, le=1_000_000)] = 3
    early_deaths: AtLeastOne = 3
    backoff_base_s: Seconds = 10.0
    backoff_max_s: Seconds = 600.0
    stop_grace_s: Seconds = 120.0
    save_grace_s: Seconds = 30.0
    orphan_s: PositiveSeconds = 1800.0


class DetectConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[detect]`: how the run is watched. An agent that never writes its cell: `launch_s`."""

    launch_s: PositiveSeconds = 300.0
    gather_s: PositiveSeconds = 5.0
    teardown_s: PositiveSeconds = 30.0


class PreflightConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[preflight]`: whether nodes are checked before an attempt."""

    mode: Literal["quick", "off"] = "quick"


class PageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[page]`: a command that is given the message on its standard input; none: standard error."""

    command: Words = ()
    timeout_s: PositiveSeconds = 20.0


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """run.toml. Every key has its meaning and default in templates/run.toml.j2."""

    name: Name
    command: Command
    cluster: Literal["", "local", "slurm"] = ""
    launcher: Launcher = Launcher.TORCHRUN
    size: SizeConfig = SizeConfig()
    slurm: dict[SlurmName, PlainText | int | float | bool] = {}
    checkpoint: CheckpointConfig = CheckpointConfig()
    restart: RestartConfig = RestartConfig()
    detect: DetectConfig = DetectConfig()
    preflight: PreflightConfig = PreflightConfig()
    page: PageConfig = PageConfig()
    env: dict[EnvName, str] = {}


def load_run_config(
    path: Path | str | None, overrides: Sequence[str] = (), command: Sequence[str] = ()
) -> RunConfig:
    """
    The configuration at `path` (None: none, then `command` says what to run), with each
    `key=value` of `overrides` and the words of `command` in place of what it says.

    Raises ConfigError, one line that names the file or option, the key, what was found and what
    is allowed.
    """
    source = "command line" if path is None else str(path)
    raw = {} if path is None else tables.parse_toml(read_text(Path(path)), source)
    for override in overrides:
        _override(raw, override)
    if command:
        raw["command"] = list(command)
    if path is None and "command" in raw and "name" not in raw:
        raw["name"] = _name_for(raw["command"])
    return _run_config(raw, source)


def parse_run_config(text: str, source: str) -> RunConfig:
    """The configuration in `text`; `source` is what an error calls it. See `load_run_config`."""
    return _run_config(tables.parse_toml(text, source), source)


def dump_run_config(config: RunConfig) -> str:
    """The text of a run.toml that says all of `config`, defaults too, and reads back the same."""
    table = msgspec.to_builtins(config)
    table["restart"] = {k: v for k, v in table["restart"].items() if v is not None}
    return tables.format_toml(table)


def resolve_cluster(config: RunConfig, which: Callable[[str], str | None] = shutil.which) -> str:
    """The cluster that is meant: the one that is named, else Slurm where sbatch is found."""
    return config.cluster or ("slurm" if which("sbatch") else "local")


def read_text(path: Path) -> str:
    """A configuration file's text; ConfigError says why there is none to be had."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(tables.one_line(f"{path}: not a file"))
        if found.st_size > MAX_BYTES:
            raise ConfigError(
                tables.one_line(f"{path}: {found.st_size} bytes; allowed: {MAX_BYTES} at most")
            )
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(tables.one_line(f"{path}: line {line}: not UTF-8")) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(tables.one_line(f"{path}: cannot be read: {why}")) from None


@cache
def _kind() -> inspect.Type:
    return inspect.type_info(RunConfig)


def _run_config(raw: dict[str, Any], source: str) -> RunConfig:
    try:
        table = tables.check(_kind(), raw)
        command = table["command"]
        if command[0].endswith(".py"):
            table["command"] = [sys.executable or "python3", *command]
        _check_holes(command)
        config = msgspec.convert(table, RunConfig)
        _check_together(config)
    except (tables.Wrong, msgspec.ValidationError) as error:
        raise ConfigError(tables.one_line(f"{source}: {error}")) from None
    return config


def _override(raw: dict[str, Any], override: str) -> None:
    """Set one key by `key=value`; a value that is no TOML, or a word where text is due, is text."""
    key, equals, text = override.partition("=")
    key = key.strip()
    try:
        if not key or not equals:
            raise tables.Wrong("allowed: key=value, such as size.nodes=4")
        kind = tables.kind_at(_kind(), key)
        if tables.is_table(kind):
            raise tables.Wrong(f"{key} is a table; allowed: one of its keys, as in {key}.KEY=value")
        value = tables.check(kind, _typed(text, as_text=tables.wants_text(kind)), key)
    except tables.Wrong as error:
        raise ConfigError(tables.one_line(f"--set {override}: {error}")) from None
    table, _, name = key.rpartition(".") if key.count(".") <= 1 else key.partition(".")
    inner = raw.setdefault(table, {}) if table else raw
    if isinstance(inner, dict):  # else the file is wrong there, and the check of the whole says so
        inner[name] = value


def _typed(text: str, *, as_text: bool) -> object:
    try:
        value: object = tables.parse_toml(f"value = {text}", "")["value"]
    except ConfigError:
        return text
    if as_text and not isinstance(value, str | list):
        return text
    return value if isinstance(value, str | int | float | list | dict) else text


def _name_for(command: object) -> str:
    words = command if isinstance(command, list) else str(command).split()
    scripts = [word for word in words if str(word).endswith(".py")] or words
    stem = Path(str(scripts[0])).stem if scripts else ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:64] or "run"


def _check_holes(command: Sequence[str]) -> None:
    """A name in braces that is nearly one of ours is a typo; any other is the trainer's own."""
    for word in command:
        for name in re.findall(r"(?<![{$])\{([a-z_]+)\}", word):
            like = tables.close_to(name, HOLES)
            if like and name not in HOLES:
                known = ", ".join(f"{{{hole}}}" for hole in HOLES)
                raise tables.Wrong(
                    f"command: found {{{name}}}, nearly {{{like}}}; allowed: {known}"
                )


def _check_together(config: RunConfig) -> None:
    restart = config.restart
    if restart.backoff_max_s < restart.backoff_base_s:
        raise tables.Wrong(
            f"restart.backoff_max_s: found {restart.backoff_max_s}; "
            f"allowed: restart.backoff_base_s ({restart.backoff_base_s}) or more"
        )
