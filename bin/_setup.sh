# shellcheck shell=bash
#
# Summary: make sure that the virtual environment is there and current; sourced by bin/*.
# Gives:   ROOT (the checkout), VENV (the environment); VENV/bin is put first on PATH
# Reads:   TRAINCTL_VENV    the environment's folder        (the checkout's .venv)
#          TRAINCTL_PYTHON  the Python to make it with      (the first one >= 3.11 that is found)
#          TRAINCTL_TORCH   what to install as torch: a requirement, a wheel's path, or a
#                           requirement with pip's options  (a torch that is there, else the
#                           version in constraints.txt)
#
# Says what it does on standard error, and nothing when there is nothing to do. The stamp is written
# last and names what the environment was made from, so an environment that a set-up left half way
# is never taken for a whole one. flock keeps two set-ups of one checkout apart; it is a matter of
# this machine alone, and ends with its process.

set -euo pipefail

ROOT=$(CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=${TRAINCTL_VENV:-$ROOT/.venv}
MIN_TORCH='2.4'

say() { printf 'trainctl set-up: %s\n' "$*" >&2; }

die() {
  say "$*"
  exit 1
}

fingerprint() { # of what the environment is made from
  cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | sha256sum
}

# The stamp's lines: the checkout, its fingerprint, TRAINCTL_PYTHON and TRAINCTL_TORCH as they were.
read_stamp() { mapfile -t stamp <"$VENV/trainctl-stamp"; }

is_sound() { # it is where it was made, by the Python that is wanted, and was finished once
  local stamp
  [[ -x $VENV/bin/python && -r $VENV/trainctl-stamp && ! -e $VENV/trainctl-unfinished ]] || return
  read_stamp
  [[ ${stamp[0]-} == "$ROOT" && ${TRAINCTL_PYTHON:-${stamp[2]-}} == "${stamp[2]-}" ]]
}

is_current() {
  local stamp
  is_sound || return
  read_stamp
  [[ ${stamp[1]-} == "$(fingerprint)" && ${TRAINCTL_TORCH:-${stamp[3]-}} == "${stamp[3]-}" ]]
}

is_usable() { # <python>: it runs (a pyenv shim may not) and is new enough
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

can_make_venv() { # <python>
  "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

find_python() { # prints the Python to use: one that can make an environment before one that cannot
  local name found=''
  for name in ${TRAINCTL_PYTHON:+"$TRAINCTL_PYTHON"} python3 python3.{11..20}; do
    is_usable "$name" || continue
    if can_make_venv "$name"; then
      printf '%s\n' "$name"
      return
    fi
    found=${found:-$name}
  done
  [[ -n $found ]] || die "no Python >= 3.11 found (tried python3, python3.11, …); install one, or set TRAINCTL_PYTHON"
  add_venv_module "$found"
  printf '%s\n' "$found"
}

add_venv_module() { # <python>: Debian and Ubuntu keep ensurepip in a package of its own
  local version package
  version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  package=python$version-venv
  if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
    die "$1 cannot make virtual environments; install the package $package (as root: apt-get install $package)"
  fi
  say "installing $package, which $1 needs to make virtual environments"
  {
    apt-get update -qq || true # an old list may still name the package
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"
  } >&2 </dev/null || die "apt-get install $package failed"
  can_make_venv "$1" || die "$1 still cannot make virtual environments, though $package is installed"
}

has_torch() { # <python>: it has a torch that works and is new enough
  "$1" - "$MIN_TORCH" >/dev/null 2>&1 <<'PYTHON'
import sys

import numpy, torch

least = tuple(int(part) for part in sys.argv[1].split("."))
sys.exit(tuple(int(part) for part in torch.__version__.split(".")[:2]) < least)
PYTHON
}

pip_install() { # <argument>...: pip's own lines go to the log, what it downloads is shown
  PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 "$VENV/bin/python" -m pip install \
    --progress-bar off --no-input "$@" </dev/null 2>&1 |
    tee -a "$VENV/trainctl-setup.log" | sed -n 's/^ *Downloading /  downloading /p' >&2 ||
    {
      tail -n 15 "$VENV/trainctl-setup.log" >&2
      die "pip install failed; all it said is in $VENV/trainctl-setup.log"
    }
}

install_torch() {
  local asked=()
  if [[ -n ${TRAINCTL_TORCH:-} ]]; then
    # A path may hold spaces; anything else is split into a requirement and pip's options.
    if [[ -e $TRAINCTL_TORCH ]]; then asked=("$TRAINCTL_TORCH"); else read -ra asked <<<"$TRAINCTL_TORCH"; fi
    say "installing torch as TRAINCTL_TORCH says: $TRAINCTL_TORCH"
    pip_install "${asked[@]}" numpy
  elif has_torch "$VENV/bin/python"; then
    say "using torch $("$VENV/bin/python" -c 'import torch; print(torch.__version__)'), which is already there"
  else
    asked=("$(grep '^torch==' "$ROOT/constraints.txt")")
    say "installing ${asked[0]}; where pip's default build is the CUDA one this downloads several GB"
    say "(to have another, interrupt and set TRAINCTL_TORCH to a requirement, a wheel, or pip's options)"
    pip_install -c "$ROOT/constraints.txt" "${asked[@]}" numpy
  fi
}

install_package() { # built by the pinned tools, so without pip's own environment for builds
  local pins="$VENV/trainctl-constraints.txt" own=()
  grep -v '^torch==' "$ROOT/constraints.txt" >"$pins"
  # Tools of the Python below have their commands elsewhere: have our own.
  if grep -q '^include-system-site-packages = true' "$VENV/pyvenv.cfg"; then own=(--ignore-installed); fi
  say "installing the package and its tools"
  pip_install -c "$pins" "${own[@]}" hatchling editables
  pip_install -c "$pins" "${own[@]}" --no-build-isolation -e "${ROOT}[dev]"
  # An editable package is not compiled by pip, and agents start as often as attempts do.
  "$VENV/bin/python" -m compileall -q "$ROOT/toolkit/trainctl" || say "the package could not be compiled ahead"
}

make_venv() {
  local python options=()
  python=$(find_python)
  # The environment looks into its Python's own packages only where a torch is there.
  if [[ -z ${TRAINCTL_TORCH:-} ]] && has_torch "$python"; then options=(--system-site-packages); fi
  say "making $VENV with $("$python" --version)"
  mkdir -p "$VENV"
  : >"$VENV/trainctl-unfinished"
  "$python" -m venv "${options[@]}" "$VENV" >&2 || die "$python could not make $VENV"
}

set_up() {
  # Left half way, moved, or of another Python: made anew. Made by hand, without a stamp: kept.
  if ! is_sound && [[ -e $VENV/trainctl-stamp || -e $VENV/trainctl-unfinished || ! -x $VENV/bin/python ]]; then
    rm -rf "$VENV"
  fi
  [[ -d $VENV ]] || make_venv
  : >"$VENV/trainctl-unfinished"
  : >"$VENV/trainctl-setup.log"
  install_torch
  install_package
  printf '%s\n' "$ROOT" "$(fingerprint)" "${TRAINCTL_PYTHON:-}" "${TRAINCTL_TORCH:-}" >"$VENV/trainctl-stamp"
  rm "$VENV/trainctl-unfinished"
  say "done"
}

if ! is_current; then
  mkdir -p "$(dirname "$VENV")" 2>/dev/null || true
  { exec {lock}>"$VENV.lock"; } 2>/dev/null || die "cannot write beside $VENV; set TRAINCTL_VENV to a folder of your own"
  flock --nonblock "$lock" || {
    say "another set-up of $VENV is running; waiting for it"
    flock --timeout 3600 "$lock" || die "it did not end within an hour"
  }
  is_current || set_up
  exec {lock}>&-
fi
export PATH="$VENV/bin:$PATH"
