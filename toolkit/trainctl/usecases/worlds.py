"""Which cluster, pager and limits a configuration asks for."""

from __future__ import annotations

from trainctl.adapters.cluster import Cluster
from trainctl.adapters.local import LocalCluster
from trainctl.adapters.pager import CommandPager, Pager, StderrPager
from trainctl.base.config import RunConfig
from trainctl.base.rundir import RunDir
from trainctl.base.site import load_site_config
from trainctl.model.errors import ConfigError
from trainctl.policy.limits import Limits


def make_cluster(config: RunConfig, run: RunDir, run_id: str) -> Cluster:
    """The adapter for `cluster`; ConfigError for one that this version does not have."""
    if config.cluster == "local":
        return LocalCluster(run, run_id)
    raise ConfigError(
        f"{run.config}: cluster: found {config.cluster!r}; this version runs on 'local' only"
    )


def make_pager(config: RunConfig) -> Pager:
    """The page command of run.toml, else the site's, else standard error."""
    command = config.page.command or load_site_config().page_command
    if command:
        return CommandPager(command, config.page.timeout_s)
    return StderrPager()


def limits_of(config: RunConfig, run: RunDir) -> Limits:
    """The policy's limits as run.toml has them; `run` is named in what people are told to type."""
    restart = config.restart
    return Limits(
        act=restart.act,
        max_failures=restart.max_failures,
        failures_without_progress=restart.failures_without_progress,
        failures_per_hour=restart.failures_per_hour,
        stops=restart.stops,
        crash_loop=restart.crash_loop,
        early_deaths=restart.early_deaths,
        backoff_base_s=restart.backoff_base_s,
        backoff_max_s=restart.backoff_max_s,
        preflight=config.preflight.mode != "off",
        can_replace=True,
        run_dir=str(run.root),
    )
