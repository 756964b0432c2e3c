"""
site.env: what an administrator sets once for all runs; bash and Python read it the same.

A line is blank, a comment, `KEY=value` or `KEY='value'`. What bash's `source` would read in another
way than it stands there is refused, so a shell script may source a file that was parsed here.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trainctl.base import tables
from trainctl.base.config import read_text
from trainctl.model.errors import ConfigError

SITE_ENV = Path("/etc/trainctl/site.env")
"""Where the file is unless TRAINCTL_SITE_ENV names another; there need not be one."""

_LINE = re.compile(r"([A-Z][A-Z0-9_]*)=(?:([A-Za-z0-9_./:,@%+=-]*)|'([^']*)')[ \t]*")
_FORMS = "KEY=value (letters, digits and _ . / : , @ % + = -) or KEY='value', nothing after it"


class SiteConfig(msgspec.Struct, frozen=True):
    """site.env. Every key, in capitals there, has its default and one line in site.env.example."""

    site_dir: str = ""
    page_command: tuple[str, ...] = ()


def load_site_config(environ: Mapping[str, str] = os.environ) -> SiteConfig:
    """The site's configuration, or its defaults where there is no file; raises ConfigError."""
    named = environ.get("TRAINCTL_SITE_ENV", "")
    if not named and not SITE_ENV.exists():
        return SiteConfig()
    path = Path(named) if named else SITE_ENV
    return parse_site_config(read_text(path), str(path))


def parse_site_config(text: str, source: str) -> SiteConfig:
    """The configuration in `text`; ConfigError names the source, the line or key, and why."""
    values = parse_env(text, source)
    known = {name.upper(): name for name in SiteConfig.__struct_fields__}
    if unknown := sorted(values.keys() - known.keys()):
        like = tables.close_to(unknown[0], known)
        hint = f" (did you mean {like}?)" if like else ""
        names = ", ".join(sorted(known))
        raise ConfigError(f"{source}: unknown key {', '.join(unknown)}{hint}; known: {names}")
    if not (values.get("SITE_DIR") or "/").startswith("/"):
        found = values["SITE_DIR"]
        raise ConfigError(f"{source}: SITE_DIR: found {found}; allowed: an absolute path")
    fields: dict[str, object] = {known[key]: value for key, value in values.items() if value}
    if "page_command" in fields:
        fields["page_command"] = _words(values["PAGE_COMMAND"], f"{source}: PAGE_COMMAND")
    return msgspec.convert(fields, SiteConfig)


def parse_env(text: str, source: str) -> dict[str, str]:
    """The keys and values of an env file, as bash sets them; ConfigError where that is unsure."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{source}: line {number}"
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", line):
            raise ConfigError(
                f"{where}: found {tables.shown(line)}; allowed: no control characters"
            )
        if not line.strip(" \t") or line.lstrip(" \t").startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ConfigError(f"{where}: found {tables.shown(line)}; allowed: {_FORMS}")
        key, bare, quoted = match.groups()
        if key in values:
            raise ConfigError(f"{where}: {key} is set a second time; allowed: once")
        values[key] = bare if quoted is None else quoted
    return values


def _words(value: str, where: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        said = f"{where}: found {value}, which cannot be split into words: {error}"
        raise ConfigError(said) from None
