"""
Everything trainctl raises on purpose, and the exit code each ends in.

    TrainctlError            1   any of ours; the message says what, where and what to do
    ├── UsageError           1   the command line cannot be obeyed
    ├── ConfigError          2   run.toml, site.env or the run directory is not usable
    ├── ClusterError         3   the cluster refused, is away, or spoke nonsense
    ├── LeaseLost            3   another supervisor owns the run now
    ├── CellError            3   a cell could not be read whole, or not be written
    ├── StorageError         3   the run directory could not be read or written
    └── CheckpointError      13  a checkpoint cannot be used

The codes are those of docs/design.md, "Exit codes"; only `cli.main` turns one into the other.
"""

from __future__ import annotations


class TrainctlError(Exception):
    """Base of all errors that trainctl raises on purpose."""

    exit_code = 1


class UsageError(TrainctlError):
    """The command line cannot be obeyed as it stands."""


class ConfigError(TrainctlError):
    """A configuration file, or the run directory, is not usable; nothing was created."""

    exit_code = 2


class ClusterError(TrainctlError):
    """The cluster refused, is away, or gave an answer we cannot read."""

    exit_code = 3


class LeaseLost(TrainctlError):
    """This process no longer owns the run and must not act on it."""

    exit_code = 3


class CellError(TrainctlError):
    """A cell could not be read whole: torn at every try, or not a cell at all."""

    exit_code = 3


class StorageError(TrainctlError):
    """The run directory could not be read or written: storage is full, away, or not ours to use."""

    exit_code = 3


class CheckpointError(TrainctlError):
    """A checkpoint that was named cannot be used."""

    exit_code = 13
