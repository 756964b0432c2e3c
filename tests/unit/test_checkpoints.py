"""Which checkpoint is resumed from, and what is said of the others."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainctl.adapters.checkpoints import Found, latest_committed
from trainctl.model.errors import CheckpointError, ConfigError
from trainctl.train.commit import (
    MANIFEST,
    MARKER,
    File,
    Manifest,
    Name,
    digest_file,
    parse_name,
    write_marker,
    write_whole,
)


def commit(folder: Path, step: int, attempt: int = 1, *, name: str = "") -> Path:
    """A committed checkpoint of two ranks."""
    path = folder / (name or str(Name(step, attempt)))
    path.mkdir(parents=True)
    for rank in range(2):
        (path / f"rank-{rank}.pt").write_bytes(os.urandom(1000 + rank))
    files = [
        File(file.name, file.stat().st_size, digest_file(file)) for file in sorted(path.iterdir())
    ]
    manifest = Manifest(step=step, attempt=attempt, world=2, files=tuple(files))
    write_whole(path / MANIFEST, manifest.encode())
    write_marker(path, manifest)
    return path


def reasons(found: Found) -> dict[str, str]:
    return {refused.path.name: refused.reason for refused in found.refused}


def test_the_newest_committed_one_is_found_among_partial_ones_and_each_refusal_says_why(
    tmp_path: Path,
) -> None:
    best = commit(tmp_path, 1000)
    commit(tmp_path, 900)
    (commit(tmp_path, 1200) / MARKER).unlink()
    os.truncate(commit(tmp_path, 1100) / "rank-1.pt", 10)
    commit(tmp_path, 1300).rename(tmp_path / "step-1300.a0001.tmp")
    flipped = commit(tmp_path, 1150) / "rank-0.pt"
    flipped.write_bytes(bytes(1000))
    (tmp_path / "latest").write_text("1200")
    (tmp_path / "step_1400").mkdir()

    found = latest_committed(tmp_path)

    assert found.best is not None
    assert (found.best.step, found.best.path) == (1000, best)
    said = reasons(found)
    assert "no marker" in said["step-1200.a0001"]
    assert "shorter than its manifest says: 10 bytes, not 1001" in said["step-1100.a0001"]
    assert ".tmp" in said["step-1300.a0001.tmp"]
    assert "digest differs" in said["step-1150.a0001"]
    assert "not a checkpoint" in said["latest"]
    assert "not a checkpoint" in said["step_1400"]
    assert "step-900.a0001" not in said


def test_names_are_compared_as_numbers_and_never_as_text(tmp_path: Path) -> None:
    commit(tmp_path, 900)
    commit(tmp_path, 1000)
    assert latest_committed(tmp_path).best == latest_committed(tmp_path).best
    best = latest_committed(tmp_path).best
    assert best is not None
    assert best.step == 1000


def test_of_one_step_the_highest_attempt_wins_as_a_number(tmp_path: Path) -> None:
    commit(tmp_path, 7, 9999)
    commit(tmp_path, 7, 10000)
    best = latest_committed(tmp_path).best
    assert best is not None
    assert best.attempt == 10000


def test_a_higher_step_of_an_older_attempt_wins_over_a_lower_step_of_a_newer_one(
    tmp_path: Path,
) -> None:
    commit(tmp_path, 50, 1)
    commit(tmp_path, 40, 2)
    best = latest_committed(tmp_path).best
    assert best is not None
    assert (best.step, best.attempt) == (50, 1)


def test_a_directory_that_is_not_there_or_empty_holds_none(tmp_path: Path) -> None:
    assert latest_committed(tmp_path / "none") == Found(best=None)
    assert latest_committed(tmp_path) == Found(best=None)


def test_a_name_that_differs_from_its_manifest_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, 5, 1, name="step-6.a0001")
    commit(tmp_path, 5, 1, name="step-5.a0002")
    found = latest_committed(tmp_path)
    assert found.best is None
    assert all("not what its name says" in reason for reason in reasons(found).values())


def test_a_symlink_is_never_a_checkpoint_nor_a_part_of_one(tmp_path: Path) -> None:
    real = commit(tmp_path / "elsewhere", 8)
    checkpoints = tmp_path / "checkpoints"
    best = commit(checkpoints, 5)
    (checkpoints / real.name).symlink_to(real)
    inside = commit(checkpoints, 7)
    (inside / "rank-0.pt").rename(tmp_path / "moved")
    (inside / "rank-0.pt").symlink_to(tmp_path / "moved")
    found = latest_committed(checkpoints)
    assert found.best is not None
    assert found.best.path == best
    assert "symbolic link" in reasons(found)["step-8.a0001"]
    assert "rank-0.pt is a symbolic link" in reasons(found)["step-7.a0001"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(lambda p: (p / MANIFEST).unlink(), "manifest.json is missing", id="missing"),
        pytest.param(lambda p: (p / MANIFEST).write_text("{"), "not JSON", id="torn"),
        pytest.param(lambda p: (p / MARKER).write_text(""), "COMMITTED is unreadable", id="marker"),
        pytest.param(
            lambda p: (p / MANIFEST).write_bytes((p / MANIFEST).read_bytes() + b" "),
            "marker does not fit",
            id="changed",
        ),
        pytest.param(lambda p: (p / "rank-1.pt").unlink(), "rank-1.pt is missing", id="file"),
        pytest.param(
            lambda p: (p / "rank-1.pt").write_bytes(bytes(2000)), "longer than", id="longer"
        ),
        pytest.param(
            lambda p: ((p / "rank-1.pt").unlink(), (p / "rank-1.pt").mkdir()),
            "not a regular file",
            id="folder",
        ),
    ],
)
def test_a_damaged_newest_one_is_refused_with_its_reason_and_the_older_one_serves(
    tmp_path: Path, damage: object, reason: str
) -> None:
    commit(tmp_path, 3)
    newest = commit(tmp_path, 4)
    assert callable(damage)
    damage(newest)
    found = latest_committed(tmp_path)
    assert found.best is not None
    assert found.best.step == 3
    assert reason in reasons(found)[newest.name]


@pytest.mark.parametrize(
    "change",
    [
        {"files": [{"path": "../secret", "size": 1, "sha256": ""}]},
        {"files": [{"path": "/etc/passwd", "size": 1, "sha256": ""}]},
        {"files": []},
        {"files": None},
        {"step": "4"},
        {"step": True},
        {"v": 2},
        {"world": -1},
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_and_never_followed(
    tmp_path: Path, change: dict[str, object]
) -> None:
    newest = commit(tmp_path, 4)
    manifest = newest / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    marker = {"v": 1, "manifest_sha256": digest_file(manifest)}
    (newest / MARKER).write_text(json.dumps(marker))
    found = latest_committed(tmp_path)
    assert found.best is None
    assert MANIFEST in reasons(found)[newest.name]


def test_digests_are_compared_within_the_limit_alone(tmp_path: Path) -> None:
    newest = commit(tmp_path, 4)
    (newest / "rank-0.pt").write_bytes(bytes(1000))
    assert latest_committed(tmp_path).best is None
    assert latest_committed(tmp_path, digest_limit=2001).best is None
    assert latest_committed(tmp_path, digest_limit=2000).best is not None
    assert latest_committed(tmp_path, digest_limit=0).best is not None
    assert latest_committed(tmp_path, digest_limit=None).best is None


def test_storage_that_would_not_say_is_an_error_and_never_an_empty_directory(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(CheckpointError, match="cannot be listed"):
        latest_committed(path)


def test_a_checkpoint_that_storage_will_not_show_is_an_error_unless_another_one_serves(
    tmp_path: Path,
) -> None:
    newest = commit(tmp_path, 4)
    (newest / "sub").symlink_to("sub")  # a loop: whatever is below it answers with an error
    manifest = Manifest(step=4, attempt=1, world=1, files=(File("sub/rank-0.pt", 1, ""),))
    (newest / MANIFEST).write_bytes(manifest.encode())
    write_marker(newest, manifest)
    with pytest.raises(CheckpointError, match="cannot be read"):
        latest_committed(tmp_path)
    commit(tmp_path, 3)
    found = latest_committed(tmp_path)
    assert found.best is not None
    assert found.best.step == 3


def test_an_unknown_layout_is_an_error_that_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known: auto, trainctl"):
        latest_committed(tmp_path, layout="zip")


@pytest.mark.parametrize(
    "text",
    ["step-1", "step-1.a1.tmp.tmp", "step--1.a0001", "step-1.a0001 ", "step-٣.a0001", "xstep-1.a1"],
)
def test_a_name_that_is_almost_ours_is_not_ours(text: str) -> None:
    assert parse_name(text) is None


def test_a_name_survives_being_written_and_read() -> None:
    for name in (Name(0, 0), Name(10**12, 123456, is_tmp=True), Name(120, 3)):
        assert parse_name(str(name)) == name
