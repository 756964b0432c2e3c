"""Whatever kills or starves a save, the last committed checkpoint is whole: the old or the new."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from support.mounts import needs_mounts, on_small_disk
from trainctl.adapters.checkpoints import latest_committed
from trainctl.model.agent import AnyTrainerLine, CommittedLine, SaveFailedLine
from trainctl.train.beats import create_beats

TESTS = Path(__file__).parents[1]
PYTHONPATH = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
SAVER = str(TESTS / "support" / "saving_rank.py")


class Run:
    """A run directory's worth of what a rank needs, without a supervisor."""

    def __init__(self, root: Path, checkpoints: Path | None = None) -> None:
        self.beats = create_beats(root / "beats", 1)
        self.log = root / "trainer.jsonl"
        self.log.touch()
        self.plan = root / "plan.json"
        self.checkpoints = checkpoints or root / "checkpoints"

    def env(self, attempt: int) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        return {
            **env,
            "TRAINCTL_BEATS": str(self.beats),
            "TRAINCTL_ATTEMPT": str(attempt),
            "TRAINCTL_TRAINER_LOG": str(self.log),
            "TRAINCTL_CHECKPOINT_DIR": str(self.checkpoints),
            "TRAINCTL_RESUME": "",
            "TRAINCTL_INJECT": str(self.plan),
        }

    def inject(self, point: str, action: str, attempt: int) -> None:
        fault = {"id": f"{attempt}", "point": point, "action": action, "attempt": attempt}
        self.plan.write_text(json.dumps({"faults": [fault]}))

    def start(self, step: int, attempt: int, size: int = 1000) -> subprocess.Popen[bytes]:
        argv = [sys.executable, SAVER, str(step), str(size)]
        return subprocess.Popen(argv, env=self.env(attempt))

    def save(self, step: int, attempt: int, size: int = 1000) -> int:
        return self.start(step, attempt, size).wait(20)

    def latest(self) -> tuple[int, int]:
        best = latest_committed(self.checkpoints, digest_limit=None).best
        return (best.step, best.attempt) if best else (-1, -1)

    def names(self) -> set[str]:
        return {path.name for path in self.checkpoints.iterdir()}

    def lines(self) -> list[AnyTrainerLine]:
        decoder = msgspec.json.Decoder(AnyTrainerLine)
        return [decoder.decode(line) for line in self.log.read_bytes().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.mark.parametrize(
    ("point", "latest"),
    [
        ("save.begin", 10),
        ("save.shard_written", 10),
        ("save.all_ranks_done", 10),
        ("save.manifest_written", 10),
        ("save.renamed", 10),
        ("save.marked", 20),
    ],
)
def test_a_rank_killed_at_any_stage_leaves_the_old_or_the_new_checkpoint_whole(
    run: Run, point: str, latest: int
) -> None:
    assert run.save(10, attempt=1) == 0
    run.inject(point, "sigkill", attempt=2)
    assert run.save(20, attempt=2) == -signal.SIGKILL
    assert run.latest()[0] == latest

    assert run.save(20, attempt=3) == 0
    assert run.latest() == (20, 3)
    assert not any(name.endswith(".tmp") for name in run.names())


@pytest.mark.parametrize("point", ["save.shard_written", "save.manifest_written", "save.renamed"])
def test_the_same_attempt_saves_again_over_what_its_own_failed_save_left(
    run: Run, point: str
) -> None:
    run.inject(point, "sigkill", attempt=1)
    assert run.save(10, attempt=1, size=5000) == -signal.SIGKILL
    assert run.save(10, attempt=1, size=100) == 0
    best = latest_committed(run.checkpoints, digest_limit=None).best
    assert best is not None
    assert (best.path / "model.pt").stat().st_size == 100


@pytest.mark.parametrize(
    "point", ["save.begin", "save.shard_written", "save.manifest_written", "save.renamed"]
)
def test_a_cut_off_rank_that_goes_on_writing_spoils_nothing(run: Run, point: str) -> None:
    run.inject(point, "sigstop", attempt=1)
    old = run.start(20, attempt=1, size=5000)
    try:
        end = time.monotonic() + 15
        while not run.plan.with_name("plan.json.1.fired").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        assert run.save(20, attempt=2) == 0
        before = run.latest()
        old.send_signal(signal.SIGCONT)
        old.wait(15)
    finally:
        old.kill()
        old.wait()
    assert before == (20, 2)
    assert run.latest() == (20, 2)
    best = latest_committed(run.checkpoints, digest_limit=None).best
    assert best is not None
    assert (best.path / "model.pt").stat().st_size == 1000


@pytest.mark.torch
@pytest.mark.timeout(90)
def test_two_ranks_agree_that_a_save_failed_though_one_of_them_could_write(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / "support" / "failing_save_ranks.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])

    assert said["full"]["codes"] == [0, 0], done.stderr
    assert said["full"]["0"] == said["full"]["1"] == [1, 1, 3]
    run = Run(tmp_path / "full")
    committed, failed, again = run.lines()
    assert isinstance(committed, CommittedLine)
    assert isinstance(again, CommittedLine)
    assert isinstance(failed, SaveFailedLine)
    assert (failed.step, failed.rank) == (2, 1)
    assert "No space left" in failed.reason
    assert run.names() == {"step-1.a0001", "step-3.a0001"}
    manifest = json.loads((run.checkpoints / "step-3.a0001" / "manifest.json").read_text())
    assert [file["path"] for file in manifest["files"]] == [
        "notes/shared.txt",
        "rank-0.pt",
        "rank-1.pt",
    ]

    assert said["killed"]["codes"][1] == -signal.SIGKILL
    assert said["killed"]["codes"][0] == 1
    assert Run(tmp_path / "killed").latest() == (-1, -1)


@needs_mounts
def test_a_full_disk_is_a_failed_save_and_the_last_checkpoint_stays(
    run: Run, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    run.checkpoints = disk / "checkpoints"
    program = (
        "import json, pathlib\n"
        "from trainctl import train\n"
        "from trainctl.adapters.checkpoints import latest_committed\n"
        "checkpoints = train.Checkpoints()\n"
        "believed = []\n"
        "for step, size in ((1, 8_000), (2, 100_000), (3, 9_000)):\n"
        "    with checkpoints.saving(step) as folder:\n"
        "        (folder / 'model.pt').write_bytes(bytes(size))\n"
        "    believed.append(checkpoints.committed_step)\n"
        "found = latest_committed(checkpoints.folder)\n"
        "names = sorted(path.name for path in checkpoints.folder.iterdir())\n"
        "print(json.dumps([believed, found.best.step, names]))\n"
    )
    argv = on_small_disk(disk, "64k", [sys.executable, "-c", program])
    done = subprocess.run(argv, capture_output=True, text=True, env=run.env(4), timeout=20)
    assert done.returncode == 0, done.stderr
    believed, best, names = json.loads(done.stdout.splitlines()[0])
    assert believed == [1, 1, 3]
    assert best == 3
    assert names == ["step-1.a0004", "step-3.a0004"]
    assert [type(line) for line in run.lines()] == [CommittedLine, SaveFailedLine, CommittedLine]
    assert "No space left" in done.stderr
