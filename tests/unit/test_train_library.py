"""The library as a training program sees it: under an agent, and outside trainctl."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from trainctl import train
from trainctl.model.agent import (
    AnyTrainerLine,
    CommittedLine,
    DoneLine,
    LoadedLine,
    LossLine,
    SaveFailedLine,
    StopAgreedLine,
)
from trainctl.train import inject, this_rank
from trainctl.train.beats import create_beats, read_beat, set_flag
from trainctl.train.trainer_log import TrainerLog, plain


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No agent, no ranks, and no memory of an earlier test."""
    for name in list(os.environ):
        if name.startswith(("TRAINCTL_", "TORCHELASTIC_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    this_rank.made.clear()
    yield
    this_rank.made.clear()


class Agent:
    """What an agent prepares for its ranks."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.beats = create_beats(tmp_path / "beats", 2)
        self.log = tmp_path / "trainer.jsonl"
        self.log.touch()
        self.checkpoints = tmp_path / "committed"
        self.plan = tmp_path / "plan.json"
        self._monkeypatch = monkeypatch
        for name, value in (
            ("TRAINCTL_BEATS", self.beats),
            ("TRAINCTL_ATTEMPT", "7"),
            ("TRAINCTL_TRAINER_LOG", self.log),
            ("TRAINCTL_CHECKPOINT_DIR", self.checkpoints),
            ("TRAINCTL_RESUME", ""),
        ):
            monkeypatch.setenv(name, str(value))

    def inject(self, *faults: dict[str, object]) -> None:
        self.plan.write_text(json.dumps({"faults": faults}))
        self._monkeypatch.setenv("TRAINCTL_INJECT", str(self.plan))

    def lines(self) -> list[AnyTrainerLine]:
        decoder = msgspec.json.Decoder(AnyTrainerLine)
        return [decoder.decode(line) for line in self.log.read_bytes().splitlines()]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    return Agent(tmp_path, monkeypatch)


def write(folder: Path, text: str = "weights") -> None:
    (folder / "model.pt").write_text(text)


# --- outside trainctl ---------------------------------------------------------------------------


def test_importing_it_imports_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; before = set(sys.modules); from trainctl import train; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(out) <= {*sys.stdlib_module_names, "trainctl"}
    program = "import sys; from trainctl import train; print(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    ours = {name for name in out if name.startswith("trainctl")}
    assert {name for name in ours if not name.startswith("trainctl.train")} == {"trainctl"}
    assert not {"torch", "typer", "msgspec", "numpy"} & set(out)


def test_outside_trainctl_nothing_happens_but_checkpoints_work(tmp_path: Path) -> None:
    checkpoints = train.Checkpoints()
    assert checkpoints.latest() is None
    train.loaded(0)
    train.beat(1, loss=0.5)
    with train.phase("eval"):
        train.beat(2)
    assert train.stop_agreed() is False
    train.done(2, loss=0.5)
    assert list(tmp_path.iterdir()) == []

    with checkpoints.saving(2) as folder:
        write(folder)
    found = checkpoints.latest()
    assert found is not None
    assert (found.step, (found.path / "model.pt").read_text()) == (2, "weights")
    assert found.path.parent == tmp_path / "checkpoints"


def test_outside_trainctl_each_training_writes_under_a_number_of_its_own(tmp_path: Path) -> None:
    for expected in (1, 2):
        checkpoints = train.Checkpoints(tmp_path / "c")
        with checkpoints.saving(5) as folder:
            write(folder)
        found = checkpoints.latest()
        assert found is not None
        assert found.attempt == expected


def test_an_unknown_phase_is_an_error_inside_and_outside_trainctl(agent: Agent) -> None:
    with pytest.raises(ValueError, match="evaluate"):
        train.phase("evaluate")


def test_ranks_that_cannot_agree_do_not_save_half_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="init_process_group"):
        train.Checkpoints(tmp_path).saving(1)


# --- under an agent -----------------------------------------------------------------------------


def test_beats_and_phases_reach_the_agent(agent: Agent) -> None:
    train.beat(3)
    with train.phase("eval"):
        beat = read_beat(agent.beats, 0)
        assert beat is not None
        assert (beat.step, beat.phase) == (3, "eval")
        with train.phase("load"):
            pass
        beat = read_beat(agent.beats, 0)
        assert beat is not None
        assert beat.phase == "eval"
    beat = read_beat(agent.beats, 0)
    assert beat is not None
    assert beat.phase == "step"


def test_every_line_decodes_as_what_the_supervisor_reads(agent: Agent) -> None:
    checkpoints = train.Checkpoints()
    train.loaded(0, checkpoints.latest())
    train.beat(1, loss=0.25)
    with checkpoints.saving(1) as folder:
        write(folder)
    with checkpoints.saving(2):
        raise OSError(28, "No space left on device")
    set_flag(agent.beats, stop=1)
    assert train.stop_agreed()
    train.done(2, loss=0.5, digest="abc", steps=2, good=True, bad=float("nan"), what=None)

    loaded, loss, committed, failed, stopped, done = agent.lines()
    assert loaded == LoadedLine(attempt=7, at_ms=loaded.at_ms, step=0, path="")
    assert loss == LossLine(attempt=7, at_ms=loss.at_ms, step=1, loss=0.25)
    assert isinstance(committed, CommittedLine)
    assert committed.path == str(agent.checkpoints / "step-1.a0007")
    assert isinstance(failed, SaveFailedLine)
    assert (failed.step, failed.rank) == (2, 0)
    assert "No space left" in failed.reason
    assert isinstance(stopped, StopAgreedLine)
    assert isinstance(done, DoneLine)
    assert done.result == {
        "loss": 0.5,
        "digest": "abc",
        "steps": 2,
        "good": 1,
        "bad": "nan",
        "what": "None",
    }
    now_ms = time.time_ns() // 1_000_000
    assert all(now_ms - 60_000 < line.at_ms <= now_ms for line in agent.lines())


def test_only_global_rank_0_writes_lines(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    train.loaded(0)
    train.beat(1, loss=1.0)
    train.done(1)
    assert agent.lines() == []
    beat = read_beat(agent.beats, 1)
    assert beat is not None
    assert beat.step == 1


def test_a_loss_is_sampled_rarely_and_not_even_looked_at_in_between(agent: Agent) -> None:
    class Loss:
        looks = 0

        def __float__(self) -> float:
            Loss.looks += 1
            return 1.5

    for step in range(100):
        train.beat(step, Loss())
    assert Loss.looks == 1
    assert [type(line) for line in agent.lines()] == [LossLine]


def test_a_loss_with_a_gradient_is_detached_before_it_is_read() -> None:
    class Tensor:
        def detach(self) -> float:
            return 2.5

        def __float__(self) -> float:
            raise AssertionError("torch warns here, and warnings may be errors")

    assert plain(Tensor()) == 2.5


def test_a_loss_that_is_no_number_is_not_written(agent: Agent) -> None:
    train.beat(1, loss=float("nan"))
    assert agent.lines() == []


def test_a_stop_is_agreed_once_and_stays(agent: Agent) -> None:
    train.beat(1)
    assert not train.stop_agreed()
    set_flag(agent.beats, stop=1)
    assert train.stop_agreed()
    set_flag(agent.beats, stop=0)
    assert train.stop_agreed()
    assert [type(line) for line in agent.lines()] == [StopAgreedLine]


def test_the_start_is_the_supervisors_choice_and_not_the_newest(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = train.Checkpoints("elsewhere")
    for step in (5, 10):
        with checkpoints.saving(step) as folder:
            write(folder)
    assert checkpoints.folder == agent.checkpoints
    assert checkpoints.latest() is None
    monkeypatch.setenv("TRAINCTL_RESUME", str(agent.checkpoints / "step-5.a0007"))
    found = checkpoints.latest()
    assert found is not None
    assert (found.step, found.attempt) == (5, 7)
    monkeypatch.setenv("TRAINCTL_RESUME", "/other/iter_0000040")
    monkeypatch.setenv("TRAINCTL_RESUME_STEP", "40")
    found = checkpoints.latest()
    assert found is not None
    assert found.step == 40


def test_the_agent_sees_which_step_is_committed(agent: Agent) -> None:
    checkpoints = train.Checkpoints()
    with checkpoints.saving(4) as folder:
        write(folder)
        beat = read_beat(agent.beats, 0)
        assert beat is not None
        assert (beat.phase, beat.committed) == ("save", -1)
    beat = read_beat(agent.beats, 0)
    assert beat is not None
    assert (beat.phase, beat.committed) == ("init", 4)


def test_a_missing_beat_folder_does_not_stop_the_training(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINCTL_BEATS", "/nowhere")
    train.beat(1)
    assert not train.stop_agreed()
    assert "no beats" in capsys.readouterr().err


def test_a_lost_line_costs_the_training_nothing_but_a_lost_done_mark_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = TrainerLog(tmp_path, 1)  # a folder: whatever is opened there fails
    assert log.write("loaded", 1, {}) is False
    assert "was lost" in capsys.readouterr().err
    with pytest.raises(OSError, match="could not be written"):
        log.must_write("done", 1, {}, patience_s=0.0)


def test_a_result_that_json_cannot_hold_becomes_text() -> None:
    assert plain([1.0]) == "[1.0]"
    assert plain(float("-inf")) == "-inf"
    assert plain(2**70) == 2**70


def test_a_step_opens_no_file_and_asks_the_kernel_for_nothing(agent: Agent) -> None:
    program = (
        "import sys\n"
        "from trainctl import train\n"
        "train.beat(0)\n"
        "events = []\n"
        "sys.addaudithook(lambda name, args: events.append(name))\n"
        "for step in range(1, 1000):\n"
        "    train.beat(step)\n"
        "    assert not train.stop_agreed()\n"
        "seen = [name for name in events if name.partition('.')[0] in ('open', 'os', 'socket')]\n"
        "print(len(events), seen)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "0 []\n", done.stderr


# --- saves --------------------------------------------------------------------------------------


def test_a_bug_in_a_save_is_raised_and_commits_nothing(agent: Agent) -> None:
    checkpoints = train.Checkpoints()

    def save() -> None:
        with checkpoints.saving(1) as folder:
            write(folder)
            raise KeyError("model")

    with pytest.raises(KeyError):
        save()
    assert checkpoints.committed_step == -1
    assert agent.lines() == []
    assert [path.name for path in agent.checkpoints.iterdir()] == ["step-1.a0007.tmp"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
    ],
)
def test_a_save_that_storage_refused_leaves_the_last_one_and_nothing_else(
    agent: Agent, error: Exception
) -> None:
    checkpoints = train.Checkpoints()
    with checkpoints.saving(1) as folder:
        write(folder)
    with checkpoints.saving(2) as folder:
        write(folder)
        raise error
    assert checkpoints.committed_step == 1
    assert [path.name for path in agent.checkpoints.iterdir()] == ["step-1.a0007"]
    with checkpoints.saving(3) as folder:
        write(folder)
    assert checkpoints.committed_step == 3


def test_a_broken_connection_within_a_save_is_no_failed_save(agent: Agent) -> None:
    checkpoints = train.Checkpoints()
    with pytest.raises(ConnectionResetError), checkpoints.saving(1):
        raise ConnectionResetError(104, "Connection reset by peer")


def test_a_folder_that_cannot_be_made_is_a_failed_save_whatever_the_block_does(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.checkpoints.write_text("a file where the folder should be")
    checkpoints = train.Checkpoints()
    with checkpoints.saving(1) as folder:
        raise RuntimeError(f"Parent directory {folder} does not exist.")  # as torch.save says it
    (line,) = agent.lines()
    assert isinstance(line, SaveFailedLine)
    assert checkpoints.committed_step == -1


def test_a_save_without_any_file_is_a_failed_save(agent: Agent) -> None:
    with train.Checkpoints().saving(1):
        pass
    (line,) = agent.lines()
    assert isinstance(line, SaveFailedLine)
    assert "no rank wrote a file" in line.reason


def test_saving_a_step_twice_keeps_the_first(agent: Agent) -> None:
    checkpoints = train.Checkpoints()
    for text in ("first", "second"):
        with checkpoints.saving(1) as folder:
            write(folder, text)
    assert (agent.checkpoints / "step-1.a0007" / "model.pt").read_text() == "first"
    assert [type(line) for line in agent.lines()] == [CommittedLine]
    assert [path.name for path in agent.checkpoints.iterdir()] == ["step-1.a0007"]


def test_files_in_folders_are_committed_too_and_scraps_of_ours_are_not(agent: Agent) -> None:
    with train.Checkpoints().saving(1) as folder:
        (folder / "shards").mkdir()
        (folder / "shards" / "__0_0.distcp").write_text("x")
        (folder / ".metadata").write_text("y")
    manifest = json.loads((agent.checkpoints / "step-1.a0007" / "manifest.json").read_text())
    assert [file["path"] for file in manifest["files"]] == [".metadata", "shards/__0_0.distcp"]


def test_leftovers_of_older_attempts_are_removed_and_those_of_newer_ones_never(
    agent: Agent,
) -> None:
    for name in ("step-9.a0003.tmp", "step-9.a0008.tmp", "step-9.a0006", "step-9.tmp"):
        (agent.checkpoints / name).mkdir(parents=True)
    with train.Checkpoints().saving(1) as folder:
        write(folder)
    left = {path.name for path in agent.checkpoints.iterdir()}
    assert left == {"step-1.a0007", "step-9.a0008.tmp", "step-9.a0006", "step-9.tmp"}


# --- injected faults ----------------------------------------------------------------------------


def test_a_fault_fires_once_at_its_place_in_its_rank_and_attempt(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.inject({"id": "a", "point": "step", "step": 5, "attempt": 7, "action": "exception"})
    inject.point("step", 4)
    inject.point("save.begin", 6)
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(inject.InjectedFault):
        inject.point("step", 6)
    inject.point("step", 7)
    said = json.loads(inject.fired_file(agent.plan, "a").read_text())
    assert (said["rank"], said["attempt"], said["step"]) == (3, 7, 6)


def test_a_fault_of_another_rank_or_attempt_does_not_fire(agent: Agent) -> None:
    agent.inject(
        {"id": "a", "point": "step", "rank": 1, "action": "exception"},
        {"id": "b", "point": "step", "attempt": 6, "action": "exception"},
    )
    inject.point("step", 1)


def test_no_plan_yet_is_no_fault_and_a_plan_that_makes_no_sense_is_an_error(
    agent: Agent,
) -> None:
    agent.inject()
    agent.plan.unlink()
    inject.point("step", 1)
    agent.inject({"id": "a", "point": "step", "action": "explode"})
    with pytest.raises(ValueError, match="explode"):
        inject.point("step", 1)


def test_a_held_stop_is_not_seen_before_its_step(agent: Agent) -> None:
    agent.inject({"id": "h", "action": "hold_stop", "rank": 0, "step": 3})
    set_flag(agent.beats, stop=1)
    seen = []
    for step in range(1, 5):
        train.beat(step)
        seen.append(train.stop_agreed())
    assert seen == [False, False, True, True]


def test_an_exit_within_a_save_is_no_failed_save(agent: Agent) -> None:
    agent.inject({"id": "e", "point": "save.manifest_written", "action": "exit", "code": 4})
    with pytest.raises(SystemExit), train.Checkpoints().saving(1) as folder:
        write(folder)
    assert agent.lines() == []


# --- what else is restored, and last words ------------------------------------------------------


def test_random_numbers_go_on_where_they_were_saved() -> None:
    state = json.loads(json.dumps(train.save_rng()["python"]))
    expected = [random.random() for _ in range(3)]
    train.restore_rng({"python": state})
    assert [random.random() for _ in range(3)] == expected


def last_words(tmp_path: Path, program: str, **env: str) -> tuple[str, object]:
    error_file = tmp_path / "error.json"
    told = {"TORCHELASTIC_ERROR_FILE": str(error_file), **env}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **told}
    )
    assert done.returncode == 1
    return done.stderr, json.loads(error_file.read_text()) if error_file.exists() else None


def test_an_uncaught_exception_is_left_where_torchelastic_looks_for_it(
    tmp_path: Path, agent: Agent
) -> None:
    stderr, data = last_words(
        tmp_path, "from trainctl import train\ndef step(): raise ValueError('bad batch')\nstep()"
    )
    assert "ValueError: bad batch" in stderr
    assert isinstance(data, dict)
    message = data["message"]
    assert message["message"] == "ValueError: bad batch"
    assert message["extraInfo"]["py_callstack"].startswith("Traceback (most recent call last)")
    assert "in step" in message["extraInfo"]["py_callstack"]
    assert abs(int(message["extraInfo"]["timestamp"]) - time.time()) < 60


def test_last_words_that_somebody_else_wrote_stay(tmp_path: Path, agent: Agent) -> None:
    program = (
        "import os, sys\n"
        "sys.excepthook = lambda *a: print('chained', file=sys.stderr)\n"
        "from trainctl import train\n"
        "open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{\"message\": \"first\"}')\n"
        "raise ValueError('second')"
    )
    stderr, data = last_words(tmp_path, program)
    assert data == {"message": "first"}
    assert "chained" in stderr


def test_outside_trainctl_the_exception_hook_is_left_alone(tmp_path: Path) -> None:
    _, data = last_words(tmp_path, "from trainctl import train\nraise ValueError('x')")
    assert data is None
