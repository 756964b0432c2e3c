"""
States of random number generators, saved and restored: without them a resumed run differs.

Only what the program has loaded is saved. The values are plain, so that
`torch.load(weights_only=True)` takes them.
"""

from __future__ import annotations

import random
import sys
from typing import Any

RngState = dict[str, Any]


def save_rng() -> RngState:
    """The states of Python's, NumPy's and torch's (CPU, and CUDA where it is in use) generators."""
    state: RngState = {"python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = (name, [int(key) for key in keys], *(_number(value) for value in rest))
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _number(value: Any) -> int | float:
    """A NumPy scalar as Python's own number."""
    return float(value) if isinstance(value, float) else int(value)


def restore_rng(state: RngState) -> None:
    """Put the generators where `save_rng` found them; the last thing before the next step."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "numpy" in state:
        import numpy  # the program that saved had it loaded

        numpy.random.set_state(tuple(state["numpy"]))
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if "torch" in state:
        torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        for device, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(one.cpu(), device)
