"""Small helpers shared by the policy's rules: names that are journaled, and how events compare."""

from __future__ import annotations

import msgspec

from trainctl.model.events import AnyEvent
from trainctl.policy.limits import Limits
from trainctl.policy.state import RunState


def bare(event: AnyEvent) -> AnyEvent:
    """`event` without its stamp and its `would`: equal when the same thing was decided."""
    return msgspec.structs.replace(
        event, v=0, term=0, seq=0, at_ms=0, boot="", mono_ms=0, would=False
    )


def run_name(state: RunState) -> str:
    """The run's name, which begins every name that we give to a cluster."""
    return state.created.run if state.created else "run"


def gang_name(state: RunState) -> str:
    """The unique name of the next gang."""
    return f"{run_name(state)}-g{state.gangs + 1:03d}"


def replacement_name(state: RunState) -> str:
    """The unique name of the next replacement."""
    return f"{run_name(state)}-r{state.replacements + 1:03d}"


def step_name(state: RunState, attempt: int) -> str:
    """The unique name of an attempt's step."""
    return f"{run_name(state)}-a{attempt:04d}"


def typed_name(state: RunState, limits: Limits) -> str:
    """What a person types to name the run."""
    return limits.run_dir or run_name(state)


def plural(number: int, noun: str) -> str:
    """`3 nodes`, `1 node`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
