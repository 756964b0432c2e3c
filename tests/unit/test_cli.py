"""The command line: help for all, exit codes, one JSON object, and errors in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.journals import commit, created, ended, granted, launched, lay_out
from trainctl.base.rundir import RunDir
from trainctl.cli.main import COMMANDS, run
from trainctl.model import events as ev
from trainctl.model.outcome import EndKind, Outcome, Seat

STEP = "rank 1 on node-2 raised RuntimeError: boom in train.py:step at step 57"


@pytest.fixture
def ended_run(tmp_path: Path) -> RunDir:
    """A run that was stopped by its operator after one crash."""
    history = [
        *granted(),
        *launched(1),
        commit(1, 40),
        *ended(
            1,
            Outcome.APP_ERROR,
            step_from=0,
            step_to=57,
            first=(Seat(1, "node-2"),),
            sentences=(STEP,),
        ),
        *launched(2, 40),
        *ended(2, Outcome.STOP_OPERATOR, step_from=40, step_to=60, fingerprint=None),
        *(ev.NodeReleased(node=f"node-{i}") for i in (1, 2, 3)),
        ev.RunStopped(end=EndKind.OPERATOR, reason="a stop was asked by ada"),
    ]
    return lay_out(tmp_path / "run", created(), history)


@pytest.fixture
def running(tmp_path: Path) -> RunDir:
    """A run in its first attempt, whose supervisor nobody sees."""
    return lay_out(tmp_path / "running", created(), [*granted(), *launched(1)])


# --- help and usage -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: trainctl {command}")
    options = said.partition("Options:")[2]
    assert len(options.splitlines()) >= 3
    undescribed = [line for line in options.splitlines() if line.strip().startswith("--")]
    assert all(len(line.split()) > 1 for line in undescribed)


@pytest.mark.parametrize("argv", [["--help"], [], ["-h"]])
def test_help_lists_every_command_in_one_line_each(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in COMMANDS)
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("command", ["status", "report", "events", "logs", "stop", "demo"])
def test_every_report_has_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    run([command, "--help"])
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["init", "submit", "supervise", "stop", "resume"])
def test_every_act_has_a_dry_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    run([command, "--help"])
    assert "--dry-run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["statsu"], "No such command"),
        (["status", "--nonsense"], "--nonsense"),
        (["status", "a", "b"], "b"),
        (["logs", "--rank", "x"], "--rank"),
        (["stop", "--wait", "-1"], "--wait"),
        (["submit", "--set"], "--set"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_1(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("trainctl: ")
    assert words in said.err
    assert len(said.err.splitlines()) == 1


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("trainctl 0.")


# --- which run ----------------------------------------------------------------------------------

ON_A_RUN = ("status", "report", "events", "logs", "stop", "resume", "supervise")


@pytest.mark.parametrize("command", ON_A_RUN)
def test_what_is_no_run_directory_is_a_configuration_error(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert run([command, str(tmp_path / "nowhere")]) == 2
    assert "no such run directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_directory_names_the_runs_below_it(
    ended_run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status", str(ended_run.root.parent)]) == 2
    assert f"runs here: {ended_run.root}" in capsys.readouterr().err


def test_a_run_toml_without_a_run_says_how_to_start_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text("")
    assert run(["status", str(tmp_path)]) == 2
    assert "trainctl submit" in capsys.readouterr().err


def test_the_run_is_this_folder_or_the_environments_or_a_name_below_runs(
    ended_run: RunDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("TRAINCTL_RUN_DIR", raising=False)
    monkeypatch.chdir(ended_run.root)
    assert run(["status"]) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINCTL_RUN_DIR", str(ended_run.root))
    assert run(["status"]) == 0
    (tmp_path / "runs").mkdir()
    ended_run.root.rename(tmp_path / "runs" / "mine")
    assert run(["status", "mine"]) == 0
    assert str(tmp_path / "runs" / "mine") in capsys.readouterr().out


# --- what they print ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["status", "--json"],
        ["status", "--json", "--json"],
        ["report", "--json"],
        ["events", "--json"],
        ["events", "--why", "--json"],
        ["stop", "--json"],
        ["stop", "--json", "--dry-run"],
        ["logs", "--list", "--json"],
    ],
)
def test_json_is_one_object(
    argv: list[str], ended_run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([argv[0], str(ended_run.root), *argv[1:]]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run_dir"] == str(ended_run.root)


def test_the_quick_way_to_status_json_says_the_same_as_the_other(
    ended_run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainctl.cli.main import build

    assert run(["status", str(ended_run.root), "--json"]) == 0
    quick = capsys.readouterr().out
    argv = ["status", str(ended_run.root), "--json"]
    assert build("status")(argv, prog_name="trainctl", standalone_mode=False)() == 0
    assert capsys.readouterr().out == quick


@pytest.mark.parametrize("command", ["status", "report"])
def test_tables_fit_80_columns_without_colour(
    command: str, ended_run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, str(ended_run.root)]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    rows = [line for line in said.splitlines() if "node-" in line and "attempt" not in line]
    assert max((len(line) for line in rows), default=0) <= 80
    assert said.rstrip().splitlines()[-1].endswith(f"next: trainctl resume {ended_run.root}")


def test_report_prints_attempts_reasons_and_sums(
    ended_run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["report", str(ended_run.root)])
    said = capsys.readouterr().out
    assert f"attempt 1: {STEP}" in said
    assert "0 to 57" in said
    assert "77 steps done: 40 kept, 37 lost" in said


def test_events_why_prints_the_sentences(
    ended_run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["events", str(ended_run.root), "--why"]) == 0
    assert capsys.readouterr().out.count(STEP) == 1


# --- stop ---------------------------------------------------------------------------------------


def test_stopping_a_run_that_has_ended_is_said_and_no_error(
    ended_run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["stop", str(ended_run.root), "--wait", "5"]) == 0
    assert "nothing to stop" in capsys.readouterr().out
    assert list(ended_run.requests.iterdir()) == []


def test_stop_writes_one_request(running: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    from trainctl.adapters.requests import read_requests

    assert run(["stop", str(running.root), "--now"]) == 0
    (request,) = read_requests(running)
    assert (request.kind, request.now, request.attempt) == ("stop", True, 1)
    assert "no supervisor owns it" in capsys.readouterr().out


def test_a_dry_run_of_stop_writes_nothing(running: RunDir) -> None:
    assert run(["stop", str(running.root), "--dry-run"]) == 0
    assert list(running.requests.iterdir()) == []


def test_waiting_for_a_stop_is_bounded(running: RunDir) -> None:
    assert run(["stop", str(running.root), "--wait", "0.3"]) == 21


# --- init, submit -------------------------------------------------------------------------------


def test_init_writes_a_run_toml_that_is_valid_and_overwrites_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainctl.base.config import load_run_config

    monkeypatch.chdir(tmp_path)
    assert run(["init", "--dry-run"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert run(["init"]) == 0
    assert load_run_config(tmp_path / "run.toml").name
    capsys.readouterr()
    before = (tmp_path / "run.toml").read_bytes()
    assert run(["init"]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert run(["init", str(tmp_path)]) == 2
    assert (tmp_path / "run.toml").read_bytes() == before


def test_init_into_a_folder_that_is_not_there_is_a_configuration_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", str(tmp_path / "no" / "run.toml")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_submit_without_anything_to_run_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["submit"]) == 1
    assert "trainctl init" in capsys.readouterr().err


def test_what_follows_the_bare_dashes_is_the_users_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = [
        "submit",
        "--dry-run",
        "--set",
        'cluster="local"',
        "--",
        "train.py",
        "--help",
        "--",
        "x",
    ]
    assert run(argv) == 0
    said = capsys.readouterr().out
    assert "train.py" in said
    assert '"--help", "--", "x"' in said
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_key_is_a_configuration_error_and_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["submit", "--set", "sise.nodes=3", "--", "train.py"]) == 2
    said = capsys.readouterr().err
    assert "sise" in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


# --- the boundary, as a process -----------------------------------------------------------------


def trainctl(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainctl", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )


def test_an_unexpected_error_is_one_line_and_a_traceback_on_demand(ended_run: RunDir) -> None:
    code = (
        "import sys; import trainctl.usecases.report as r; r.report_of = None; "
        "from trainctl.cli.main import main; main()"
    )
    argv = [sys.executable, "-c", code, "report", str(ended_run.root)]
    short = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert short.returncode == 1
    assert len(short.stderr.splitlines()) == 1
    assert "TypeError" in short.stderr
    assert "TRAINCTL_DEBUG=1" in short.stderr
    env = {**os.environ, "TRAINCTL_DEBUG": "1"}
    long = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert "Traceback" in long.stderr


def test_a_journal_that_cannot_be_read_is_named(ended_run: RunDir) -> None:
    ended_run.journal(3).symlink_to(ended_run.journal(3))
    done = trainctl("report", str(ended_run.root))
    assert done.returncode in (0, 2, 3)
    assert "0003.jsonl" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_quiet(ended_run: RunDir) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "trainctl", "events", str(ended_run.root)],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141


def test_reading_a_run_imports_nothing_heavy(ended_run: RunDir) -> None:
    heavy = ("torch", "jinja2", "rich", "submitit", "typer", "asyncio")
    code = (
        "import sys; from trainctl.cli.main import run; "
        f"run(['status', '--json', {str(ended_run.root)!r}]); "
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.strip() == "[]"


def test_help_imports_no_command(ended_run: RunDir) -> None:
    code = (
        "import sys; from trainctl.cli.main import run; run(['--help']); "
        "print([m for m in sys.modules if m.startswith('trainctl.usecases')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.strip() == "[]"


def test_the_module_is_the_command() -> None:
    assert trainctl("--version").stdout.startswith("trainctl ")
