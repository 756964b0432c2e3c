"""
How fast commands start, as ratios within one run; prints one JSON object. By hand: bench_cli.py [N]

`trainctl --help` beside the `--help` of a two-command hello-world typer app (bar: 1.3), and
`trainctl status --json` of a small run beside `python -c "import typer"` (bar: 1.5). The four are
started in turn, so that whatever else the machine does meets all alike; the medians are compared.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.journals import commit, created, ended, granted, launched, lay_out
from trainctl.model.outcome import Outcome, Seat

HELLO = '''
import typer

app = typer.Typer()


@app.command()
def hello(name: str):
    """Say hello."""
    print(f"Hello {name}")


@app.command()
def goodbye(name: str, formal: bool = False):
    """Say goodbye."""
    print(f"Goodbye {name}")


if __name__ == "__main__":
    app()
'''


def measure(commands: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each command, interleaved; the first round warms the caches and is dropped."""
    took: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, argv in commands.items():
            began = time.perf_counter()
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
            if number:
                took[name].append(time.perf_counter() - began)
    return took


def main() -> None:
    """Measure, print, and exit with 1 where a bar is missed."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    trainctl = str(Path(sys.executable).parent / "trainctl")
    with tempfile.TemporaryDirectory() as folder:
        hello = Path(folder) / "hello.py"
        hello.write_text(HELLO)
        story = [*granted()]
        for attempt in range(1, 6):
            at = 20 * attempt
            story += launched(attempt, at - 20 if attempt > 1 else None)
            story += [commit(attempt, at)]
            story += ended(
                attempt,
                Outcome.APP_ERROR,
                step_from=at - 20,
                step_to=at + 3,
                first=(Seat(1, "node-2"),),
                sentences=("rank 1 on node-2 raised RuntimeError: injected",),
            )
        run = lay_out(Path(folder) / "run", created(), story)
        took = measure(
            {
                "hello_help": [sys.executable, str(hello), "--help"],
                "trainctl_help": [trainctl, "--help"],
                "import_typer": [sys.executable, "-c", "import typer"],
                "status_json": [trainctl, "status", "--json", str(run.root)],
            },
            rounds,
        )
    median_ms = {name: round(1000 * statistics.median(times), 1) for name, times in took.items()}
    result = {
        "rounds": rounds,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "median_ms": median_ms,
        "help_ratio": round(median_ms["trainctl_help"] / median_ms["hello_help"], 2),
        "help_bar": 1.3,
        "status_ratio": round(median_ms["status_json"] / median_ms["import_typer"], 2),
        "status_bar": 1.5,
    }
    result["ok"] = result["help_ratio"] <= 1.3 and result["status_ratio"] <= 1.5
    print(json.dumps(result, indent=2))
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
