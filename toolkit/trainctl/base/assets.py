"""
The files that trainctl ships beside its code: templates/ and prolog/, by name.

They are the checkout's own where the package runs from one, and `trainctl/_assets` in an installed
wheel.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from trainctl.model.errors import TrainctlError

_PACKAGE = Path(__file__).resolve().parent.parent
_INSTALLED = _PACKAGE / "_assets"


@cache
def assets_root() -> Path:
    """The folder that holds templates/ and prolog/."""
    return _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent.parent


def asset(name: str) -> str:
    """The text of the file `name`, such as `templates/run.toml.j2`."""
    path = assets_root() / name
    if ".." in path.parts or not name.startswith(("templates/", "prolog/")):
        raise TrainctlError(f"{name}: not a file of trainctl's; they are in templates/ and prolog/")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TrainctlError(
            f"{path}: cannot be read: {error.strerror}; is the installation whole?"
        ) from None
