"""What is installed: the wheel holds the templates, and the commands of bin/ hold together."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from trainctl.base.assets import asset, assets_root
from trainctl.model.errors import TrainctlError

ROOT = Path(__file__).parents[2]


def test_a_checkout_reads_its_own_templates() -> None:
    assert assets_root() == ROOT
    assert asset("templates/run.toml.j2") == (ROOT / "templates/run.toml.j2").read_text()


@pytest.mark.parametrize("name", ["templates/none", "pyproject.toml", "templates/../LICENSE", ""])
def test_only_templates_and_prolog_are_assets(name: str) -> None:
    with pytest.raises(TrainctlError, match=r"cannot be read|not a file of trainctl"):
        asset(name)


@pytest.mark.slow
def test_an_installed_wheel_reads_the_templates_it_brought(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("trainctl_slurm-*.whl")
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    assert (target / "trainctl/py.typed").exists()
    code = (
        "from trainctl.base.assets import asset, assets_root;"
        "print(assets_root()); print(asset('templates/run.toml.j2'), end='')"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(target)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout
    root, _, text = said.partition("\n")
    assert Path(root) == target / "trainctl/_assets"
    assert text == asset("templates/run.toml.j2")


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["torch"], *extras["dev"]]
    rows = (ROOT / "constraints.txt").read_text().lower().splitlines()
    pinned = {row.partition("==")[0].replace("_", "-") for row in rows if "==" in row}
    for requirement in asked:
        name = requirement.partition(">=")[0].lower()
        assert name in pinned, f"{name} is not in constraints.txt"


def test_what_bin_starts_can_be_executed() -> None:
    for name in ("bin/check", "bin/test", "bin/demo", ".ci/run"):
        assert (ROOT / name).stat().st_mode & 0o111, name
