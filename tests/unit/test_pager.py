"""Pagers: a command, standard error, and what is said when a page does not go out."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from trainctl.adapters.pager import CommandPager, PagerError, StderrPager


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_command_is_given_the_message_on_its_standard_input(tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = f"import sys; open({str(said)!r}, 'w').write(sys.stdin.read())"
    CommandPager(python(code), 20.0).page("run stopped: crash loop\nnext: trainctl resume r")
    assert said.read_text() == "run stopped: crash loop\nnext: trainctl resume r\n"


def test_a_command_that_fails_is_an_error_with_its_own_words() -> None:
    pager = CommandPager(python("import sys; sys.exit('no such\\nchannel')"), 20.0)
    with pytest.raises(PagerError, match=r"exit code 1: no such channel$"):
        pager.page("x")


def test_a_command_that_is_missing_is_an_error_that_names_it() -> None:
    with pytest.raises(PagerError, match="/no/such/pager"):
        CommandPager(("/no/such/pager",), 5.0).page("x")


def test_a_command_that_hangs_is_given_up() -> None:
    pager = CommandPager(python("import time; time.sleep(600)"), 0.5)
    with pytest.raises(PagerError, match=r"within 0\.5 s"):
        pager.page("x")


def test_a_command_that_reads_nothing_is_no_failure() -> None:
    CommandPager(python("pass"), 20.0).page("x" * 1_000_000)


def test_standard_error_gets_the_message() -> None:
    stream = io.StringIO()
    StderrPager(stream).page("run stopped: crash loop\n")
    assert stream.getvalue() == "trainctl: PAGE: run stopped: crash loop\n"


def test_a_closed_standard_error_is_an_error_that_can_be_journaled() -> None:
    stream = io.StringIO()
    stream.close()
    with pytest.raises(PagerError, match="standard error"):
        StderrPager(stream).page("x")
