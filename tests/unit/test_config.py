"""run.toml: what is taken, what is refused, and in which words."""

from __future__ import annotations

import os
import re
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.adapters.templates import render_run_toml
from trainctl.base.config import (
    RunConfig,
    dump_run_config,
    load_run_config,
    parse_run_config,
    resolve_cluster,
)
from trainctl.model.errors import ConfigError

GOOD = 'name = "a"\ncommand = "train.py --lr 1e-4"\n'


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_run_config(text, "run.toml")
    assert caught.value.exit_code == 2
    said = str(caught.value)
    assert said.isprintable(), "one line, whatever stood in the file"
    assert said.startswith("run.toml: ")
    return said


def override_refusal(override: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run_config(None, [override], ["train.py"])
    assert str(caught.value).isprintable()
    return str(caught.value)


# --- what is taken --------------------------------------------------------------------------------


def test_a_command_may_be_a_line_or_a_list() -> None:
    line = parse_run_config('name="a"\ncommand="./go --text \'two words\'"', "run.toml")
    words = parse_run_config('name="a"\ncommand=["./go", "--text", "two words"]', "run.toml")
    assert line.command == words.command == ("./go", "--text", "two words")


def test_a_python_file_gets_python_in_front() -> None:
    assert parse_run_config(GOOD, "run.toml").command == (
        sys.executable,
        "train.py",
        "--lr",
        "1e-4",
    )


def test_a_whole_number_will_do_for_seconds() -> None:
    config = parse_run_config(GOOD + "[restart]\nstop_grace_s = 5\n", "run.toml")
    assert config.restart.stop_grace_s == 5.0


def test_a_byte_order_mark_and_carriage_returns_do_no_harm() -> None:
    text = "\ufeff" + GOOD.replace("\n", "\r\n")
    assert parse_run_config(text, "run.toml") == parse_run_config(GOOD, "run.toml")


def test_braces_that_are_not_ours_are_left_to_the_trainer() -> None:
    words = ["go", "{step}", '{"a": 1}', "${checkpoin}", "{{checkpont}}", "{checkpoint}"]
    assert load_run_config(None, command=words).command == tuple(words)


def test_without_a_file_the_name_is_the_scripts() -> None:
    assert load_run_config(None, command=["python", "my exp/train_big.py", "x"]).name == "train_big"
    assert load_run_config(None, command=["./.go now.sh"]).name == "go-now"
    assert load_run_config(None, command=["_"]).name == "run"
    assert load_run_config(None, ["name=b"], ["train.py"]).name == "b"


def test_a_command_on_the_command_line_replaces_the_files(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(GOOD)
    config = load_run_config(path, ["size.nodes=4"], ["other.py"])
    assert (config.name, config.size.nodes) == ("a", 4)
    assert config.command[1:] == ("other.py",)


def test_slurm_is_the_default_only_where_sbatch_is_found() -> None:
    config = parse_run_config(GOOD, "run.toml")
    assert resolve_cluster(config, which=lambda _: None) == "local"
    assert resolve_cluster(config, which=lambda name: f"/usr/bin/{name}") == "slurm"
    named = msgspec.structs.replace(config, cluster="local")
    assert resolve_cluster(named, which=lambda name: f"/usr/bin/{name}") == "local"


# --- overrides ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("size.nodes=4", "size.nodes", 4),
        (" size.nodes = 4", "size.nodes", 4),
        ("restart.act=false", "restart.act", False),
        ("restart.backoff_base_s=1e-1", "restart.backoff_base_s", 0.1),
        ("name=007", "name", "007"),
        ('name="x"', "name", "x"),
        ("cluster=local", "cluster", "local"),
        ("checkpoint.dir=/scratch/a b", "checkpoint.dir", "/scratch/a b"),
        ("page.command=mail -s 'x y' me", "page.command", ("mail", "-s", "x y", "me")),
        ('command=["a", "b"]', "command", ("a", "b")),
        ("env.OMP_NUM_THREADS=1", "env", {"OMP_NUM_THREADS": "1"}),
        ("env.A=b=c", "env", {"A": "b=c"}),
        ("slurm.time=01:00:00", "slurm", {"time": "01:00:00"}),
        ("slurm.time=1-00:00:00", "slurm", {"time": "1-00:00:00"}),
        ("slurm.mem-per-gpu=64", "slurm", {"mem-per-gpu": 64}),
    ],
)
def test_an_override_is_typed_by_what_its_key_holds(
    override: str, path: str, value: object
) -> None:
    command = [] if override.startswith("command") else ["go"]
    names = [] if override.lstrip().startswith("name") else ["name=x"]
    found: object = load_run_config(None, [override, *names], command)
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


def test_an_override_leaves_the_rest_of_its_table_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(GOOD + "[size]\nnodes = 2\nspares = 1\n")
    size = load_run_config(path, ["size.nodes=3"]).size
    assert (size.nodes, size.spares) == (3, 1)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("size.nodes=-1", "size.nodes: found -1; allowed: a whole number from 1"),
        ("size.nodes=two", 'size.nodes: found "two"; allowed: a whole number'),
        (
            "size.nodez=1",
            "unknown key size.nodez (did you mean size.nodes?); known in [size]: gpus",
        ),
        ("size=1", "size is a table; allowed: one of its keys"),
        ("size.nodes.x=1", "unknown key size.nodes.x: size.nodes holds a value"),
        ("nodes=1", "unknown key nodes; known: checkpoint,"),
        ("size.nodes", "allowed: key=value"),
        ("=1", "allowed: key=value"),
        ("restart.act=no", 'restart.act: found "no"; allowed: true or false'),
        ("env.A B=1", 'env: found the key "A B"; allowed: names of variables'),
        ("name=a\nb", 'name: found "a\\u000ab"; allowed: up to 64 letters'),
    ],
)
def test_a_wrong_override_is_named_with_what_is_allowed(override: str, words: str) -> None:
    said = override_refusal(override)
    assert said.startswith("--set ")
    assert words in said


def test_a_wrong_value_in_the_file_is_not_blamed_on_an_override(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(GOOD + "size = 3\n")
    with pytest.raises(ConfigError, match=r"run\.toml: size: found 3; allowed: a table, \[size\]"):
        load_run_config(path, ["size.nodes=4"])


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "name: missing; allowed: up to 64 letters"),
        ('name = "a"', "command: missing; allowed: a list of words"),
        ('name = 3\ncommand = "x"', "name: found 3; allowed: up to 64"),
        ('name = "a"\ncommand = ""', 'command: found ""; allowed: a list of words'),
        ('name = "a"\ncommand = "  "', 'command: found "  "; allowed'),
        ('name = "a"\ncommand = []', "command: found []; allowed"),
        ('name = "a"\ncommand = [""]', 'command: found [""]; allowed'),
        ('name = "a"\ncommand = ["a", 1]', "command[1]: found 1; allowed: text in quotes"),
        ('name = "a"\ncommand = "a\\u0000"', 'command[0]: found "a\\u0000"; allowed'),
        ('name = "a"\ncommand = "a \'b"', "which cannot be split: No closing quotation"),
        ('name = "a"\ncommand = "a {chekpoint}"', "found {chekpoint}, nearly {checkpoint}"),
        (GOOD + 'cluster = "slrm"', 'cluster: found "slrm"; allowed: "" or "local" or "slurm"'),
        (GOOD + 'launcher = "x"', 'launcher: found "x"; allowed: "torchrun" or "plain"'),
        (GOOD + "nodes = 1", "unknown key nodes; known: checkpoint, cluster, command"),
        (GOOD + "[size]\nnodez = 1", "unknown key size.nodez (did you mean size.nodes?)"),
        (GOOD + "[size]\na = 1\nb = 1", "unknown key size.a, size.b; known in [size]: gpus_per"),
        (GOOD + '"a\\nb" = 1', 'unknown key "a\\nb"; known'),
        (GOOD + "[size]\nnodes = 0", "size.nodes: found 0; allowed: a whole number from 1"),
        (GOOD + "[size]\nnodes = true", "size.nodes: found true; allowed: a whole number"),
        (GOOD + "[size]\nnodes = 1.0", "size.nodes: found 1.0; allowed: a whole number"),
        (GOOD + '[size]\nnodes = "1"', 'size.nodes: found "1"; allowed: a whole number'),
        (GOOD + "[size]\nspares = -1", "size.spares: found -1; allowed: a whole number from 0"),
        (GOOD + "[[size]]\nnodes = 1", "size: found [{ nodes = 1 }]; allowed: a table, [size]"),
        (GOOD + "[restart]\ncrash_loop = 1", "restart.crash_loop: found 1; allowed"),
        (GOOD + "[restart]\nact = 1", "restart.act: found 1; allowed: true or false"),
        (GOOD + "[restart]\nmax_failures = 0", "restart.max_failures: found 0; allowed"),
        (GOOD + "[restart]\nbackoff_base_s = nan", "restart.backoff_base_s: found nan; allowed"),
        (GOOD + "[restart]\nbackoff_max_s = inf", "restart.backoff_max_s: found inf; allowed"),
        (GOOD + "[restart]\nbackoff_base_s = 700", "allowed: restart.backoff_base_s (700.0) or mo"),
        (GOOD + "[detect]\nlaunch_s = 0", "detect.launch_s: found 0; allowed: a number from 0.1"),
        (
            GOOD + '[preflight]\nmode = "full"',
            'preflight.mode: found "full"; allowed: "off" or "quick"',
        ),
        (GOOD + "[page]\ncommand = 3", "page.command: found 3; allowed: a list of words"),
        (GOOD + "[slurm]\ntime = 01:00:00", "slurm.time: found 01:00:00; allowed: one line of t"),
        (GOOD + "[slurm]\ntime = [1]", "slurm.time: found [1]; allowed"),
        (GOOD + '[slurm]\ntime = "a\\nb"', 'slurm.time: found "a\\u000ab"; allowed'),
        (GOOD + '[slurm]\n"--time" = 1', 'slurm: found the key "--time"; allowed: options of sb'),
        (GOOD + "[env]\nA = 1", "env.A: found 1; allowed: text in quotes"),
        (GOOD + '[env]\nRANK = "1"', 'env: found the key "RANK"; allowed'),
        (GOOD + '[env]\nMASTER_PORT = "1"', 'env: found the key "MASTER_PORT"; allowed'),
        (GOOD + '[env]\nTRAINCTL_X = "1"', 'env: found the key "TRAINCTL_X"; allowed'),
        ("a = " + "[" * 20_000, "not valid TOML: it is nested too deeply"),
        ("a = " + "9" * 5_000, "not valid TOML: Exceeds the limit"),
        ("a = 1\na = 2\nb = 3", "line 2: not valid TOML: Cannot overwrite a value"),
        ("# fine\nname == 3\n", "line 2: not valid TOML: Invalid value"),
    ],
    ids=lambda value: re.sub(r"[^ -~]", "?", str(value)[:40]),
)
def test_what_is_wrong_is_named_with_what_is_allowed(text: str, words: str) -> None:
    assert words in refusal(text)


@pytest.mark.parametrize("name", ["", " a", "a b", "a/b", "..", "-a", "a\n", "é", "a" * 65, "a$b"])
def test_a_name_that_cannot_be_a_file_and_a_slurm_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="allowed: up to 64 letters"):
        load_run_config(None, [f'name="{name}"'], ["go"])


def test_a_long_wrong_value_is_shown_cut() -> None:
    said = refusal(f'name = "{"a" * 5000}"\ncommand = "x"')
    assert "…" in said
    assert len(said) < 250


def test_an_argument_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"command line: command\[1\]: found"):
        load_run_config(None, command=["go", os.fsdecode(b"\xff")])


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'name = "a"\n# caf\xe9\n')
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (1 << 20) + b"\n")
    for path, why in {
        tmp_path / "none.toml": "cannot be read: No such file",
        tmp_path: "not a file",
        Path("/dev/zero"): "not a file",
        Path("a\0b"): "cannot be read",
        latin: "line 2: not UTF-8",
        large: "allowed: 1048576 at most",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_run_config(path)
        assert why in str(caught.value)
        assert str(caught.value).isprintable()


# --- what is written ------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
plain = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
overrides = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
        "command": st.lists(words, min_size=1).filter(lambda found: found[0] != ""),
    },
    optional={
        "slurm": st.dictionaries(
            st.from_regex(r"[a-z][a-z0-9-]*", fullmatch=True),
            st.one_of(plain, numbers, st.booleans(), st.integers(-(2**63), 2**63 - 1)),
        ),
        "env": st.dictionaries(st.from_regex(r"X[A-Za-z0-9_]*", fullmatch=True), words),
        "checkpoint": st.fixed_dictionaries({"dir": plain}),
        "page": st.fixed_dictionaries({"command": st.lists(words.filter(bool))}),
        "restart": st.fixed_dictionaries(
            {"max_failures": st.none() | st.integers(1, 99), "act": st.booleans()},
        ),
        "detect": st.fixed_dictionaries({"gather_s": st.floats(0.1, 1e6)}),
    },
)


@given(overrides)
def test_a_configuration_that_is_written_reads_back_the_same(fields: dict[str, object]) -> None:
    config = msgspec.convert(fields, RunConfig)
    again = parse_run_config(dump_run_config(config), "run.toml")
    if config.command[0].endswith(".py"):
        again = msgspec.structs.replace(again, command=again.command[1:])
    assert again == config


def test_a_written_configuration_says_its_defaults_too() -> None:
    text = dump_run_config(parse_run_config(GOOD, "run.toml"))
    assert "failures_per_hour = 10\n" in text
    assert "launch_s = 300.0\n" in text


# --- the template of `trainctl init` --------------------------------------------------------------


def _uncommented(text: str) -> str:
    """The template with every key in force."""
    return re.sub(r"^# ([A-Za-z_]+ = .*)$", r"\1", text, flags=re.MULTILINE)


def test_the_template_parses_to_the_defaults() -> None:
    config = parse_run_config(render_run_toml("a", "train.py"), "run.toml")
    assert config == load_run_config(None, ["name=a"], ["train.py"])


def test_the_template_names_every_key_with_its_default() -> None:
    text = _uncommented(render_run_toml("a", "train.py"))
    shown = msgspec.to_builtins(parse_run_config(text, "run.toml"))
    assert shown.pop("slurm") == {"partition": "gpu"}
    assert shown.pop("env") == {"OMP_NUM_THREADS": "1"}
    assert shown["restart"].pop("max_failures") == 100, "the one that has no default"

    defaults = msgspec.to_builtins(load_run_config(None, ["name=a"], ["train.py"]))
    for table in ("slurm", "env"):
        del defaults[table]
    del defaults["restart"]["max_failures"]
    assert shown == defaults
    for name, value in defaults.items():
        assert re.search(rf"^{name} = |^\[{name}\]$", text, flags=re.MULTILINE), name
        for key in value if isinstance(value, dict) else ():
            assert re.search(rf"^{key} = ", text, flags=re.MULTILINE), f"{name}.{key}"


def test_every_key_of_the_template_is_preceded_by_words() -> None:
    lines = render_run_toml("a", "train.py").splitlines()
    for before, line in pairwise(lines):
        if re.match(r"(# )?[A-Za-z_]+ = ", line):
            assert before.startswith("# ") or re.match(r"[A-Za-z_]+ = ", before), line


def test_a_command_with_quotes_survives_the_template() -> None:
    command = ["go", 'say "hi"', "a\\b", "c'd"]
    config = parse_run_config(render_run_toml("a", command, nodes=3, spares=1), "run.toml")
    assert list(config.command) == command
    assert (config.size.nodes, config.size.spares) == (3, 1)
