"""site.env: what Python reads is what bash would set, and everything else is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainctl.base.site import SiteConfig, load_site_config, parse_env, parse_site_config
from trainctl.model.errors import ConfigError

BASH = shutil.which("bash") or "bash"
EXAMPLE = Path(__file__).parents[2] / "site.env.example"


def bash_reads(text: str, keys: list[str]) -> dict[str, str]:
    """What `source` sets, asked of bash itself; no other variable may change."""
    names = " ".join(keys)
    script = f'set -eu; source /dev/stdin; for k in {names}; do printf "%s\\0" "$k" "${{!k}}"; done'
    done = subprocess.run(
        [BASH, "--norc", "--noprofile", "-c", script],
        input=os.fsencode(text),
        env={"PATH": "/nowhere"},
        capture_output=True,
        timeout=10,
        check=True,
    )
    assert done.stderr == b""
    parts = os.fsdecode(done.stdout).split("\0")[:-1]
    return dict(zip(parts[::2], parts[1::2], strict=True))


KEYS = ("SITE_DIR", "PAGE_COMMAND", "K1")
tricky = st.text(
    st.sampled_from(" \t'\"\\$`#~!*?[]{}()<>|&;=:%@+-_./,^\r\x00\x01\x85\u2028éaZ9\n"), max_size=12
)
lines = st.one_of(
    st.builds("{}={}".format, st.sampled_from(KEYS), tricky),
    st.builds("{}='{}'".format, st.sampled_from(KEYS), tricky),
    st.builds(
        "{}={}".format, st.sampled_from(KEYS), st.from_regex(r"[\w./:,@%+=-]*", fullmatch=True)
    ),
    st.builds("#{}".format, tricky),
    tricky,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(lines, max_size=6).map("\n".join))
@example("SITE_DIR=/a:~/b")
@example("SITE_DIR=~")
@example("SITE_DIR='a'b")
@example("SITE_DIR=a   \n # x \\\nK1='$HOME `id` \"\\ #'\t")
@example("K1='a\u2028b'\nSITE_DIR=é")
def test_bash_and_python_agree_on_whatever_is_taken(text: str) -> None:
    try:
        values = parse_env(text, "site.env")
    except ConfigError:
        return
    assert bash_reads(text, list(values)) == values


@given(st.lists(lines, max_size=6).map("\n".join))
def test_a_refusal_is_one_line_that_names_the_line(text: str) -> None:
    said = "site.env: line 1: "
    try:
        parse_env(text, "site.env")
    except ConfigError as error:
        said = str(error)
    assert said.isprintable()
    assert re.match(r"site\.env: line \d+: ", said)


@pytest.mark.parametrize(
    "line",
    [
        "SITE_DIR=$HOME",
        "SITE_DIR=`id`",
        "SITE_DIR=$(id)",
        "SITE_DIR=a b",
        "SITE_DIR=a # comment",
        "SITE_DIR=a#b",
        'SITE_DIR="a"',
        "SITE_DIR='a' 'b'",
        "SITE_DIR='a",
        "SITE_DIR='it'\\''s'",
        "SITE_DIR=~/a",
        "SITE_DIR=a\\",
        "SITE_DIR=a;id",
        "SITE_DIR=a&",
        "SITE_DIR=(a)",
        "SITE_DIR+=a",
        "SITE_DIR =a",
        "SITE_DIR= a",
        " SITE_DIR=a",
        "export SITE_DIR=a",
        "site_dir=a",
        "SITE_DIR",
        "SITE_DIR=a\r",
        "SITE_DIR=a\0",
        "SITE_DIR='\x1b[31m'",
        "\ufeffSITE_DIR=a",
        "id",
        "[section]",
    ],
)
def test_what_bash_would_interpret_is_refused(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_env(f"# first\n{line}", "site.env")
    assert str(caught.value).startswith("site.env: line 2: ")
    assert "allowed: " in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_key_set_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="line 2: SITE_DIR is set a second time"):
        parse_env("SITE_DIR=/a\nSITE_DIR=/b", "site.env")


def test_an_unknown_key_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown key SITE_DIRS \(did you mean SITE_DIR\?\); known"
    ):
        parse_site_config("SITE_DIRS=/a", "site.env")


def test_the_folder_of_the_site_is_an_absolute_path() -> None:
    with pytest.raises(ConfigError, match="SITE_DIR: found a/b; allowed: an absolute path"):
        parse_site_config("SITE_DIR=a/b", "site.env")


def test_the_page_command_is_split_into_words() -> None:
    config = parse_site_config("PAGE_COMMAND='mail -s \"a run\" oncall'", "site.env")
    assert config.page_command == ("mail", "-s", "a run", "oncall")
    with pytest.raises(ConfigError, match=r"PAGE_COMMAND: found .* cannot be split"):
        parse_site_config("PAGE_COMMAND='mail \"'", "site.env")


def test_a_named_file_must_be_there_and_the_usual_one_need_not(tmp_path: Path) -> None:
    path = tmp_path / "site.env"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_site_config({"TRAINCTL_SITE_ENV": str(path)})
    path.write_text("SITE_DIR='/shared/train ctl'\n")
    config = load_site_config({"TRAINCTL_SITE_ENV": str(path)})
    assert config == SiteConfig(site_dir="/shared/train ctl")


def test_the_example_names_every_key_with_its_default_and_a_line() -> None:
    text = EXAMPLE.read_text()
    assert parse_site_config(text, "site.env.example") == SiteConfig()
    assert set(parse_env(text, "site.env.example")) == {
        name.upper() for name in SiteConfig.__struct_fields__
    }
    rows = text.splitlines()
    for before, line in pairwise(rows):
        if re.match("[A-Z]", line):
            assert before.startswith("# "), line
