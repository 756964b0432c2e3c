"""What the documents say is compared with what the code has."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer

from trainctl.adapters.checkpoints import LAYOUTS
from trainctl.adapters.cluster import Cluster
from trainctl.base.config import HOLES, CheckpointConfig, RunConfig
from trainctl.base.site import SiteConfig
from trainctl.cli.main import build
from trainctl.model import errors
from trainctl.model.events import EVENT_CLASSES, Event
from trainctl.model.outcome import DOMAIN_OF, END_EXIT_CODES

ROOT = Path(__file__).parents[2]
DOCS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *("docs/" + name for name in ("design.md", "events.md", "adapters.md")),
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def commands() -> dict[str, Any]:
    """Every command by what is typed after `trainctl`; groups by their commands."""
    found = {}
    waiting = [("", typer.main.get_command(build("*")))]
    while waiting:
        typed, command = waiting.pop()
        inner = getattr(command, "commands", None)
        if inner is None:
            found[typed] = command
        else:
            waiting += [(f"{typed} {name}".strip(), sub) for name, sub in inner.items()]
    return found


def shown_commands(text: str) -> list[list[str]]:
    """The words after `trainctl` wherever a document shows a command, in a line or a block."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`([^`\n]+)`", text)
    found = (re.match(r"(?:bin/|\$ )?(?:trainctl|demo) (.*)", line) for line in [*lines, *spans])
    return [
        ["demo", *shlex.split(match[1])] if "demo " in match[0] else shlex.split(match[1], True)
        for match in found
        if match
    ]


# --- commands -------------------------------------------------------------------------------------


def test_every_command_says_what_it_does() -> None:
    assert commands()
    for typed, command in commands().items():
        assert command.help, f"trainctl {typed} has no help"
        for parameter in command.params:
            assert getattr(parameter, "help", ""), f"trainctl {typed}: {parameter.name} has no help"


def test_every_command_has_a_line_in_the_readme() -> None:
    text = read("README.md")
    for typed in commands():
        assert re.search(rf"^\| `trainctl {typed}\b.*` \| .+ \|$", text, re.MULTILINE), typed


@pytest.mark.parametrize("name", [name for name in DOCS if name != "CHANGELOG.md"])
def test_every_command_that_is_shown_exists_with_its_options(name: str) -> None:
    known = commands()
    for words in shown_commands(read(name)):
        typed = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in known), None)
        assert typed, f"{name}: trainctl {' '.join(words)}"
        ours = words[: words.index("--")] if "--" in words else words
        options = {name for one in known[typed].params for name in one.opts} | {"--help"}
        for word in ours:
            if word.startswith("-"):
                assert word.partition("=")[0] in options, f"{name}: trainctl {' '.join(words)}"


def test_every_file_that_is_shown_exists() -> None:
    for name in DOCS:
        text = read(name)
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (ROOT / name).parent.joinpath(target).exists(), f"{name}: {target}"
        for path in re.findall(r"`((?:bin|docs|tests|templates)/[\w./-]+\w)`", text):
            assert (ROOT / path).exists(), f"{name}: {path}"


def test_every_python_module_that_is_named_exists() -> None:
    layers = "cli|usecases|adapters|node|policy|base|model|train"
    for name in DOCS:
        for path in re.findall(rf"`((?:{layers})/[a-z_]+\.py)`", read(name)):
            assert (ROOT / "toolkit/trainctl" / path).exists(), f"{name}: {path}"


# --- events, outcomes, codes, ports ---------------------------------------------------------------


def described() -> dict[str, list[str]]:
    """The events of docs/events.md with their fields; the stamp under ""."""
    found: dict[str, list[str]] = {}
    kind = None
    for line in read("docs/events.md").splitlines():
        if heading := re.match(r"#+ (?:`(\w+)`|(The stamp))?", line):
            kind = heading[1] or ("" if heading[2] else None)
            if kind is not None:
                found[kind] = []
        elif kind is not None and (field := re.match(r"- `(\w+)`: \S", line)):
            found[kind].append(field[1])
    return found


def test_every_event_is_described_with_its_fields() -> None:
    stamp = [*Event.__struct_fields__]
    expected = {
        kind: sorted(name for name in cls.__struct_fields__ if name not in stamp)
        for kind, cls in EVENT_CLASSES.items()
    }
    assert {kind: sorted(names) for kind, names in described().items() if kind} == expected
    assert sorted(described()[""]) == sorted(["kind", *stamp])


def test_every_event_is_described_in_words() -> None:
    for kind, after in re.findall(r"^### `(\w+)`\n\n(.*)$", read("docs/events.md"), re.MULTILINE):
        assert re.match(r"[A-Z].*", after), kind


def test_every_outcome_is_described_with_its_domain() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \| .+ \|$", read("docs/design.md"), re.MULTILINE))
    assert rows == {str(outcome): str(domain) for outcome, domain in DOMAIN_OF.items()}


@pytest.mark.parametrize("name", ["README.md", "docs/design.md"])
def test_every_exit_code_is_described(name: str) -> None:
    rows = {int(code) for code in re.findall(r"^\| (\d+) \| .+ \|$", read(name), re.MULTILINE)}
    ours = {
        cls.exit_code
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.TrainctlError)
    }
    assert rows >= ours | set(END_EXIT_CODES.values()) | {0}


def test_every_call_of_the_cluster_port_is_described_for_every_cluster() -> None:
    calls = [name for name in vars(Cluster) if not name.startswith("_")]
    text = read("docs/adapters.md")
    for name in calls:
        assert re.search(rf"^\| `{name}\(", text, re.MULTILINE), name
    parts = re.split(r"^### ", text.partition("## The pager")[0], flags=re.MULTILINE)[1:]
    assert [part.partition("\n")[0] for part in parts] == [
        "local",
        "Slurm",
        "A simulated world",
        "Ray",
        "Kubernetes",
    ]
    for part in parts:
        for name in calls:
            assert f"`{name}`" in part, f"{name} in {part[:20]!r}"


# --- configuration --------------------------------------------------------------------------------


def test_every_key_of_site_env_is_in_its_example() -> None:
    for name in SiteConfig.__struct_fields__:
        assert re.search(rf"^{name.upper()}=", read("site.env.example"), re.MULTILINE), name


def test_every_table_of_run_toml_that_is_named_exists() -> None:
    for name in DOCS:
        for table in re.findall(r"`\[(\w+)\]`", read(name)):
            assert table in RunConfig.__struct_fields__, f"{name}: [{table}]"


def test_layouts_and_holes_are_those_that_others_fill() -> None:
    layouts = get_args(get_type_hints(CheckpointConfig)["layout"])
    assert set(layouts) == {"auto", *LAYOUTS}
    launcher = (ROOT / "toolkit/trainctl/node/launcher.py").read_text()
    for hole in HOLES:
        assert hole in launcher
        assert f"{{{hole}}}" in read("templates/run.toml.j2")


# --- layout and words -----------------------------------------------------------------------------


def test_the_layout_is_the_one_that_the_contracts_know() -> None:
    contracts = tomllib.loads(read("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    packages = {path.parent.name for path in (ROOT / "toolkit/trainctl").glob("*/__init__.py")}
    assert packages == {*layers, "examples"}
    for name in ("bin/demo", "bin/test", "bin/check", ".ci/run", "LICENSE", "site.env.example"):
        assert (ROOT / name).is_file(), name
    for layer in layers:
        assert f" {layer}/ " in read("docs/design.md"), layer


@pytest.mark.parametrize("name", DOCS)
def test_a_document_uses_our_words(name: str) -> None:
    text = re.sub(r"`[^`]*`", "", read(name)).lower()
    for word in ("blacklist", "simply", "just ", "easily", "powerful", "seamless", "robust"):
        assert word not in text or (word == "just " and name == "CONTRIBUTING.md"), word
