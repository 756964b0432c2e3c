"""README's "Your own run", done word by word: its trainer, its commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def trainer() -> str:
    (text,) = (block for block in blocks("python") if block.startswith("# train.py"))
    return text


def test_a_trainer_is_changed_in_at_most_a_dozen_lines() -> None:
    ours = re.findall(r"  # (\d+)$", trainer(), re.MULTILINE)
    assert ours == [str(number + 1) for number in range(len(ours))]
    assert len(ours) <= 12
    for line in trainer().splitlines()[1:]:
        if re.search(r"\b(train\.\w+|checkpoints|trainctl|stop)\b", line):
            assert re.search(r"  # \d+$|^    if stop or step %", line), line


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(180)
def test_the_readme_run_finishes_as_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "train.py").write_text(trainer())
    (commands,) = (block for block in blocks("sh") if "trainctl init" in block)
    bash = shutil.which("bash")
    assert bash is not None
    env = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "TRAINCTL_LOCAL_ROOT": str(tmp_path / "nodes"),
    }
    done = subprocess.run(
        [bash, "-e", "-c", commands],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    status = subprocess.run(
        [sys.executable, "-m", "trainctl", "status", "my-run", "--json"],
        cwd=folder,
        env=env,
        capture_output=True,
        timeout=30,
        check=True,
    )
    said = msgspec.json.decode(status.stdout)
    assert said["end"] == "finished"
    assert said["committed"] == 200
