"""
The demo, again and again, by hand: repeat_demo.py TIMES OUTPUT

Appends a JSON line for each to OUTPUT: whether all was as it should be, how long it took, how each
attempt ended, and whether loss and parameters were the undisturbed run's. Exits with the number
that were not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def once(folder: Path) -> dict[str, object]:
    """One demo, and what it told."""
    argv = [sys.executable, "-m", "trainctl", "demo", "--json", "--run-dir", str(folder / "demo")]
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1800, check=False)
    took_s = round(time.monotonic() - began, 1)
    try:
        told = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"ok": False, "code": done.returncode, "took_s": took_s, "said": done.stderr[-4000:]}
    return {
        "ok": told["ok"],
        "code": done.returncode,
        "took_s": took_s,
        "attempts": [row["outcome"] for row in told["attempts"]],
        "loss_identical": told["loss_identical"],
        "parameters_identical": told["parameters_identical"],
        "loss": told["runs"]["faulted"]["loss"],
        "parameters_sha256": told["runs"]["faulted"]["parameters_sha256"],
        "problems": told["problems"],
        **({} if told["ok"] else {"said": done.stderr[-8000:]}),
    }


def main() -> None:
    """All of them, one after the other."""
    times, output = int(sys.argv[1]), Path(sys.argv[2])
    wrong = 0
    for number in range(1, times + 1):
        with tempfile.TemporaryDirectory() as folder:
            result = {"number": number, **once(Path(folder))}
        wrong += not result["ok"]
        with output.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{number}/{times}: {'ok' if result['ok'] else 'WRONG'} in {result['took_s']} s")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
