"""
What a beat costs on the step path: `train.beat` and the look at the stop flag, in a loop that
computes.

    python tests/bench/bench_beat.py [--steps N] [--work memory|torch]

Between two beats the loop works, so that caches are as cold as a training leaves them: `memory`
touches a quarter of a MiB, `torch` does a forward and backward pass. Prints one JSON line; `ok` is
median ≤ 1 µs and p99 ≤ 5 µs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

from trainctl.train.beats import create_beats


def memory_work() -> Callable[[], None]:
    """Writes to every line of a buffer."""
    buffer = bytearray(256 * 1024)

    def work() -> None:
        buffer[::64] = bytes(len(buffer) // 64)

    return work


def torch_work() -> Callable[[], None]:
    """A small network, forwards and backwards."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    data = torch.randn(16, 128)

    def work() -> None:
        model.zero_grad()
        model(data).sum().backward()

    return work


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--work", choices=["memory", "torch"], default="torch")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        create_beats(folder, 8)
        os.environ.update(TRAINCTL_BEATS=folder, LOCAL_RANK="3", RANK="3")
        from trainctl import train

        work = torch_work() if args.work == "torch" else memory_work()
        now = time.perf_counter_ns
        train.beat(0)
        clocks, costs = [], []
        for step in range(1, args.steps + 1):
            work()
            began = now()
            clocks.append(now() - began)  # the clock's own cost, with caches as cold
            work()
            began = now()
            train.beat(step)
            train.stop_agreed()
            costs.append(now() - began)
    clock_ns = statistics.median(clocks)
    costs.sort()
    median_us = (statistics.median(costs) - clock_ns) / 1000
    p99_us = (costs[int(len(costs) * 0.99)] - clock_ns) / 1000
    result = {
        "bench": "beat",
        "work": args.work,
        "steps": args.steps,
        "median_us": round(median_us, 3),
        "p99_us": round(p99_us, 3),
        "ok": median_us <= 1 and p99_us <= 5,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
