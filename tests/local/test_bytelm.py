"""The shipped trainer: interrupted and resumed it ends with the bits of an undisturbed run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from support.mounts import needs_mounts, on_small_disk
from trainctl.adapters.checkpoints import latest_committed
from trainctl.model.agent import AnyTrainerLine, DoneLine, LoadedLine, StopAgreedLine
from trainctl.train.beats import create_beats, set_flag

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

BYTELM = ["-m", "trainctl.examples.bytelm", "--log-every", "1"]


def clean_env(**more: str) -> dict[str, str]:
    ours = ("TRAINCTL_", "TORCHELASTIC_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return {**env, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **more}


def run(argv: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=100, env=env or clean_env(), check=False
    )


def result(out: str) -> tuple[str, str, str]:
    """Last step, final loss and the parameters' digest, as the trainer prints them."""
    (found,) = re.findall(r"done at step (\d+) loss (\S+) params_sha256 (\w{64})", out)
    return found


def losses(out: str) -> dict[str, str]:
    return dict(re.findall(r"step (\d+)/\d+ loss (\S+)", out))


def torchrun(ranks: int, *args: str) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [sys.executable, *launcher, *BYTELM, *args]


def test_three_ranks_resumed_from_a_checkpoint_end_with_the_bits_of_those_that_never_stopped(
    tmp_path: Path,
) -> None:
    # three, since the sum of two gradients is the same in any order
    args = ["--steps", "9", "--save-every", "4", "--checkpoints"]
    undisturbed = run(torchrun(3, *args, str(tmp_path / "a")))
    assert undisturbed.returncode == 0, undisturbed.stderr
    kept = latest_committed(tmp_path / "a").best
    assert kept is not None
    assert kept.step == 9
    shutil.copytree(tmp_path / "a" / "step-4.a0001", tmp_path / "b" / "step-4.a0001")

    resumed = run(torchrun(3, *args, str(tmp_path / "b")))

    assert resumed.returncode == 0, resumed.stderr
    assert "starts at step 4" in resumed.stdout
    assert result(resumed.stdout) == result(undisturbed.stdout)
    assert len(losses(undisturbed.stdout)) == 9
    assert losses(resumed.stdout).items() <= losses(undisturbed.stdout).items()
    assert set(losses(resumed.stdout)) == {"5", "6", "7", "8", "9"}


def under_agent(
    tmp_path: Path, attempt: int, resume: str, plan: Path | None = None
) -> dict[str, str]:
    beats = create_beats(tmp_path / f"beats-{attempt}", 1)
    (tmp_path / f"trainer-{attempt}.jsonl").touch()
    env = {
        "TRAINCTL_BEATS": str(beats),
        "TRAINCTL_ATTEMPT": str(attempt),
        "TRAINCTL_TRAINER_LOG": str(tmp_path / f"trainer-{attempt}.jsonl"),
        "TRAINCTL_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        "TRAINCTL_RESUME": resume,
    }
    return clean_env(**env, **({"TRAINCTL_INJECT": str(plan)} if plan else {}))


def lines(tmp_path: Path, attempt: int) -> list[AnyTrainerLine]:
    decoder = msgspec.json.Decoder(AnyTrainerLine)
    log = (tmp_path / f"trainer-{attempt}.jsonl").read_bytes()
    return [decoder.decode(line) for line in log.splitlines()]


def test_killed_stopped_and_resumed_it_ends_with_the_bits_of_an_undisturbed_run(
    tmp_path: Path,
) -> None:
    alone = [sys.executable, *BYTELM, "--steps", "12", "--save-every", "3"]
    undisturbed = run([*alone, "--checkpoints", str(tmp_path / "undisturbed")])
    assert undisturbed.returncode == 0, undisturbed.stderr

    plan = tmp_path / "plan.json"
    fault = {"id": "k", "point": "save.renamed", "step": 6, "action": "sigkill"}
    plan.write_text(json.dumps({"faults": [fault]}))
    killed = run(alone, under_agent(tmp_path, 1, "", plan))
    assert killed.returncode == -signal.SIGKILL
    best = latest_committed(tmp_path / "checkpoints").best
    assert best is not None
    assert best.step == 3

    env = under_agent(tmp_path, 2, str(best.path))
    set_flag(tmp_path / "beats-2", stop=1)
    stopped = run(alone, env)
    assert stopped.returncode == 0, stopped.stderr
    assert isinstance(lines(tmp_path, 2)[0], LoadedLine)
    assert any(isinstance(line, StopAgreedLine) for line in lines(tmp_path, 2))
    assert not any(isinstance(line, DoneLine) for line in lines(tmp_path, 2))
    best = latest_committed(tmp_path / "checkpoints").best
    assert best is not None
    assert (best.step, best.attempt) == (4, 2)

    resumed = run(alone, under_agent(tmp_path, 3, str(best.path)))
    assert resumed.returncode == 0, resumed.stderr
    assert result(resumed.stdout) == result(undisturbed.stdout)
    done = lines(tmp_path, 3)[-1]
    assert isinstance(done, DoneLine)
    step, loss, digest = result(undisturbed.stdout)
    assert done.step == int(step)
    assert done.result == {"loss": float(loss), "params_sha256": digest}


@needs_mounts
def test_on_a_full_disk_training_goes_on_but_is_not_called_done(tmp_path: Path) -> None:
    bytelm = [sys.executable, *BYTELM, "--steps", "8", "--save-every", "2"]
    done = run(on_small_disk(tmp_path, "4m", [*bytelm, "--checkpoints", str(tmp_path)]))
    assert done.returncode == 1
    assert "the save of step 6 failed" in done.stderr
    assert "No space left on device" in done.stderr
    assert "step 8/8" in done.stdout
    assert "done at step" not in done.stdout
    assert "step 8, the last one, could not be saved" in done.stderr
    assert done.stdout.splitlines()[-2:] == ["step-2.a0001", "step-4.a0001"]
