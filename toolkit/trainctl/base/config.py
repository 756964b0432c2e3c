"""
run.toml and site.env, read once into frozen values; a typo is an error that names what is allowed.
"""

from __future__ import annotations

import msgspec

from trainctl.model.agent import Launcher


class SizeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[size]`: how many nodes train, and how many wait."""

    nodes: int = 1
    gpus_per_node: int = 0
    ranks_per_node: int = 1
    spares: int = 0


class CheckpointConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[checkpoint]`: `dir` "" is RUN/checkpoints; `layout` "auto" looks at the directory itself."""

    dir: str = ""
    layout: str = "auto"


class RestartConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[restart]`: when to go on and when to stop; see docs/design.md, "Policy"."""

    #: False: decide and journal, do nothing.
    act: bool = True
    #: In the run's whole life; None: no such limit.
    max_failures: int | None = None
    failures_without_progress: int = 50
    failures_per_hour: int = 10
    #: Planned stops that the run resumes from by itself (time limit, preemption).
    stops: int = 1000
    crash_loop: int = 3
    early_deaths: int = 3
    backoff_base_s: float = 10.0
    backoff_max_s: float = 600.0
    stop_grace_s: float = 120.0
    save_grace_s: float = 30.0
    orphan_s: float = 1800.0


class DetectConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[detect]`: how the run is watched. An agent that never writes its cell: `launch_s`."""

    launch_s: float = 300.0
    gather_s: float = 5.0
    teardown_s: float = 30.0


class PreflightConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[preflight]`: `mode` is "quick" or "off" for now."""

    mode: str = "quick"


class PageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[page]`: a command that is given the message on its standard input; empty: standard error."""

    command: tuple[str, ...] = ()
    timeout_s: float = 20.0


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """run.toml. Every key has its meaning and default in templates/run.toml.j2."""

    name: str
    command: tuple[str, ...]
    cluster: str = ""
    launcher: Launcher = Launcher.TORCHRUN
    size: SizeConfig = SizeConfig()
    slurm: dict[str, str | int | float | bool] = {}
    checkpoint: CheckpointConfig = CheckpointConfig()
    restart: RestartConfig = RestartConfig()
    detect: DetectConfig = DetectConfig()
    preflight: PreflightConfig = PreflightConfig()
    page: PageConfig = PageConfig()
    env: dict[str, str] = {}
