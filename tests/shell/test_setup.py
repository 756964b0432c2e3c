"""
The set-up that bin/* share, with a stand-in for Python and pip: what it does, says, and survives.

The stand-in knows the few calls that the set-up makes and fails loudly on any other.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = "bash cat cp dirname env flock grep head mkdir rm sed sha256sum sleep tail tee touch"

PYTHON = r"""#!/bin/bash
note() { printf '%s\n' "$*" >>"$STUB/calls"; }
on() { [[ -e $STUB/$1 ]]; }
case "$*" in
--version) echo "Python 3.11.0" ;;
*'sys.version_info < (3, 11)'*) [[ ! -e $STUB/old-${0##*/} ]] ;;
'-c import ensurepip, venv') ! on no-ensurepip ;;
'- 2.4') cat >/dev/null && on torch ;;
*'print(torch.__version__)') echo 2.9.0 ;;
*'print("%d.%d"'*) echo 3.11 ;;
'-m venv '*)
  note "$*"
  dir=${!#}
  mkdir -p "$dir/bin" && cp "$0" "$dir/bin/python" && touch "$dir/pyvenv.cfg"
  if [[ $* == *--system-site* ]]; then
    echo 'include-system-site-packages = true' >"$dir/pyvenv.cfg"
  fi
  ;;
'-m pip install '*)
  note "$*"
  echo "  Downloading x.whl (1 kB)"
  if on slow-pip; then sleep 30; fi
  if on broken-pip; then echo 'ERROR: no network' && exit 1; fi
  venv=$(cd "$(dirname "$0")" && pwd)
  printf '#!/bin/bash\necho "trainctl: $*"\n' >"$venv/trainctl" && chmod +x "$venv/trainctl"
  ;;
*) echo "stand-in for Python: unknown call: $*" >&2 && exit 99 ;;
esac
"""


@dataclass
class Checkout:
    """A copy of what the set-up reads, in a path with a space, and a PATH of its own."""

    root: Path
    stub: Path
    tools: Path
    env: dict[str, str] = field(default_factory=dict)

    def python(self, name: str) -> None:
        """Put the stand-in on PATH under this name."""
        path = self.tools / name
        path.write_text(PYTHON)
        path.chmod(0o755)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """bin/demo with these arguments, in a group of its own, from another folder."""
        return subprocess.Popen(
            [str(self.root / "bin/demo"), *args],
            cwd=self.stub,
            env={"PATH": str(self.tools), "STUB": str(self.stub), "CDPATH": "/", **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def demo(self, *args: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        process = self.start(*args)
        out, err = process.communicate(timeout=20)
        return process.returncode, out, err

    def turn(self, switch: str, *, on: bool = True) -> None:
        """A switch of the stand-in."""
        (self.stub / switch).touch() if on else (self.stub / switch).unlink()

    def calls(self) -> list[str]:
        """What was asked of venv and pip since the last time."""
        path = self.stub / "calls"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path / "a checkout", tmp_path / "stub", tmp_path / "tools")
    for folder in (made.root, made.stub, made.tools):
        folder.mkdir()
    shutil.copytree(ROOT / "bin", made.root / "bin")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, made.root / name)
    for name in (*TOOLS.split(), "chmod"):
        found = shutil.which(name)
        assert found is not None, name
        (made.tools / name).symlink_to(found)
    made.python("python3")
    return made


def test_the_first_call_sets_up_and_the_second_has_nothing_to_say(checkout: Checkout) -> None:
    code, out, err = checkout.demo("--json", "a b")
    assert (code, out) == (0, "trainctl: demo --json a b\n")
    assert "making " in err
    assert "downloads several GB" in err
    assert err.endswith("trainctl set-up: done\n")
    venv, torch, tools, package = checkout.calls()
    assert venv.startswith("-m venv ")
    assert "torch==" in torch
    assert "hatchling editables" in tools
    assert package.endswith(f"--no-build-isolation -e {checkout.root}[dev]")

    began = time.monotonic()
    assert checkout.demo("x") == (0, "trainctl: demo x\n", "")
    assert time.monotonic() - began < 3
    assert checkout.calls() == []


def test_a_changed_pin_installs_again_into_the_same_environment(checkout: Checkout) -> None:
    checkout.demo()
    checkout.calls()
    checkout.turn("torch")
    with (checkout.root / "constraints.txt").open("a") as file:
        file.write("extra==1\n")
    code, _, err = checkout.demo()
    assert code == 0
    assert "using torch 2.9.0, which is already there" in err
    assert [call.split()[1] for call in checkout.calls()] == ["pip", "pip"]


def test_a_set_up_that_failed_is_said_and_begun_anew(checkout: Checkout) -> None:
    checkout.turn("broken-pip")
    code, out, err = checkout.demo()
    assert code != 0
    assert out == ""
    assert "ERROR: no network" in err
    assert "pip install failed; all it said is in" in err
    (checkout.root / ".venv/left-over").touch()

    checkout.turn("broken-pip", on=False)
    assert checkout.demo()[0] == 0
    assert not (checkout.root / ".venv/left-over").exists()


def test_a_set_up_that_was_killed_leaves_nothing_that_is_taken_for_whole(
    checkout: Checkout,
) -> None:
    checkout.turn("slow-pip")
    process = checkout.start()
    deadline = time.monotonic() + 15
    while not any("-m pip" in call for call in checkout.calls()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    (checkout.root / ".venv/left-over").touch()

    checkout.turn("slow-pip", on=False)
    assert checkout.demo()[0] == 0
    assert not (checkout.root / ".venv/left-over").exists()


def test_two_set_ups_at_once_are_one(checkout: Checkout) -> None:
    both = [checkout.start("1"), checkout.start("2")]
    said = [process.communicate(timeout=20) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [out for out, _ in said] == ["trainctl: demo 1\n", "trainctl: demo 2\n"]
    assert len(checkout.calls()) == 4


def test_a_checkout_that_was_moved_gets_a_new_environment(checkout: Checkout) -> None:
    checkout.demo()
    checkout.calls()
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    code, _, err = checkout.demo()
    assert code == 0
    assert f"making {checkout.root}/.venv" in err


def test_an_environment_made_by_hand_is_kept(checkout: Checkout) -> None:
    folder = checkout.root / ".venv/bin"
    folder.mkdir(parents=True)
    shutil.copy(checkout.tools / "python3", folder / "python")
    (folder.parent / "pyvenv.cfg").touch()
    (folder.parent / "mine").touch()
    assert checkout.demo()[0] == 0
    assert (folder.parent / "mine").exists()
    assert not any("-m venv" in call for call in checkout.calls())


def test_the_environment_may_lie_elsewhere(checkout: Checkout) -> None:
    checkout.env["TRAINCTL_VENV"] = str(checkout.stub / "deep/venv")
    assert checkout.demo()[0] == 0
    assert (checkout.stub / "deep/venv/trainctl-stamp").exists()
    assert not (checkout.root / ".venv").exists()


def test_an_old_python_is_passed_over(checkout: Checkout) -> None:
    checkout.turn("old-python3")
    checkout.python("python3.13")
    assert checkout.demo()[0] == 0


def test_without_a_python_that_will_do_it_says_so(checkout: Checkout) -> None:
    checkout.turn("old-python3")
    code, out, err = checkout.demo()
    assert (code, out) == (1, "")
    assert err.startswith("trainctl set-up: no Python >= 3.11 found")
    assert len(err.splitlines()) == 1


def test_a_python_without_venv_is_completed_by_root_and_named_to_others(
    checkout: Checkout,
) -> None:
    checkout.turn("no-ensurepip")
    apt = checkout.tools / "apt-get"
    apt.write_text(
        '#!/bin/bash\nprintf "apt %s\\n" "$*" >>"$STUB/calls"\n'
        '[[ $1 != install ]] || rm "$STUB/no-ensurepip"\n'
    )
    apt.chmod(0o755)
    code, _, err = checkout.demo()
    if os.geteuid() == 0:
        assert code == 0
        installs = [call for call in checkout.calls() if call.startswith("apt install")]
        assert installs == ["apt install -y -qq --no-install-recommends python3.11-venv"]
    else:
        assert code == 1
        assert "as root: apt-get install python3.11-venv" in err


def test_torch_that_is_there_is_used_and_the_tools_are_the_environments_own(
    checkout: Checkout,
) -> None:
    checkout.turn("torch")
    code, _, err = checkout.demo()
    assert code == 0
    assert "several GB" not in err
    venv, tools, package = checkout.calls()
    assert "--system-site-packages" in venv
    assert "--ignore-installed" in tools
    assert "--ignore-installed" in package


@pytest.mark.parametrize(
    ("asked", "installed"),
    [
        ("torch==2.9.0 --index-url https://x/cpu", "torch==2.9.0 --index-url https://x/cpu numpy"),
        ("{stub}/a wheel.whl", "{stub}/a wheel.whl numpy"),
    ],
)
def test_torch_is_what_was_asked_for(checkout: Checkout, asked: str, installed: str) -> None:
    (checkout.stub / "a wheel.whl").touch()
    checkout.env["TRAINCTL_TORCH"] = asked.format(stub=checkout.stub)
    code, _, err = checkout.demo()
    assert code == 0
    assert "several GB" not in err
    assert checkout.calls()[1].endswith("--no-input " + installed.format(stub=checkout.stub))
    del checkout.env["TRAINCTL_TORCH"]
    assert checkout.demo()[2] == "", "what was asked for once stands"
