"""How long to wait before the next try: exponential, bounded, with jitter that a replay repeats."""

from __future__ import annotations

import hashlib

from trainctl.policy.limits import Limits

_MOST_DOUBLINGS = 40


def wait_ms(times: int, limits: Limits, *, run_id: str, attempt: int) -> int:
    """
    Milliseconds to wait after `times` bad tries in a row, before `attempt`; 0 after none.

    Between 3/4 and all of the doubled base, so that many runs that failed together do not come back
    together, each wait below the bound is longer than the last, and none is above the bound.
    """
    if times <= 0:
        return 0
    doubled = limits.backoff_base_s * 2.0 ** min(times - 1, _MOST_DOUBLINGS)
    full_ms = 1000 * min(doubled, limits.backoff_max_s)
    digest = hashlib.sha256(f"{run_id}/{attempt}".encode()).digest()
    share = int.from_bytes(digest[:4], "big") / 2**32
    return round(full_ms * (0.75 + 0.25 * share))


def still_waits(until_ms: int, now_ms: int, limits: Limits) -> bool:
    """Whether a wait lasts; one longer than any that we ask for is a clock that was set back."""
    return 0 < until_ms - now_ms <= round(1000 * limits.backoff_max_s)
