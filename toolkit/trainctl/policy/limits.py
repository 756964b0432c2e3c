"""What the user allows the policy to do, as plain numbers: the policy reads no configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """
    The bounds within which `decide` acts. A count that *reaches* its limit ends the run.

    Failures, launch failures and planned stops are counted apart; none spends another's budget.
    """

    #: False: everything is decided and journaled as "would", nothing is done.
    act: bool = True
    #: Failures since the run was created or resumed; None: no such limit.
    max_failures: int | None = None
    failures_without_progress: int = 50
    failures_per_hour: int = 10
    #: Planned stops, without those of the operator, since the run was created or resumed.
    stops: int = 1000
    #: Launches in a row of which no rank came to life.
    launch_failures: int = 10
    #: Failures in a row of one fingerprint that no node explains.
    crash_loop: int = 3
    #: Attempts in a row without a new step, after which somebody is paged (once a streak).
    early_deaths: int = 3
    backoff_base_s: float = 10.0
    backoff_max_s: float = 600.0
    preflight: bool = False
    #: Rounds of checks before one attempt: each replaces the nodes that the last one condemned.
    preflight_rounds: int = 3
    #: The cluster can give one node more to a gang that stands.
    can_replace: bool = False
    #: Replacements and gangs asked for since the last progress (gangs: or planned stop).
    replacements: int = 20
    gangs: int = 10
    #: How long a replacement may stay pending before a new gang is asked for instead.
    replacement_wait_s: float = 3600.0
    #: What people type to name the run ("" is the run's name).
    run_dir: str = ""
