"""
TOML tables checked against frozen structs: the first thing that is wrong, in one line, by its key.

What a key may hold is said once, by the type of the struct's field and its `msgspec.Meta`; both the
check and the words "allowed: …" are read from there.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import inspect

from trainctl.model.errors import ConfigError

SHOWN = 60
"""So many characters of a wrong value are shown."""


class Wrong(Exception):
    """The value at a dotted key cannot be used; whoever knows the source makes it a ConfigError."""


def one_line(text: str) -> str:
    """The text with everything that would break or colour a line made visible."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The text as a table; ConfigError names the source and the line of a mistake in the syntax."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        where = re.search(r" *\(at (line \d+), column \d+\)$", said)
        place = f"{source}: {where[1]}" if where else source
        said = said[: where.start()] if where else said
        raise ConfigError(one_line(f"{place}: not valid TOML: {said}")) from None


def format_toml(table: Mapping[str, Any]) -> str:
    """The table (values, lists, and tables of those) as TOML that `parse_toml` reads the same."""
    lines = [
        f"{_key(k)} = {format_value(v)}" for k, v in table.items() if not isinstance(v, Mapping)
    ]
    for name, inner in table.items():
        if isinstance(inner, Mapping):
            lines += [
                "",
                f"[{_key(name)}]",
                *(f"{_key(k)} = {format_value(v)}" for k, v in inner.items()),
            ]
    return "\n".join(lines) + "\n"


def format_value(value: object) -> str:
    """A value as it stands in TOML; TypeError for what TOML has no form for."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _quoted(value)
        case list() | tuple():
            return "[" + ", ".join(format_value(item) for item in value) + "]"
        case dict():
            return (
                "{ " + ", ".join(f"{_key(k)} = {format_value(v)}" for k, v in value.items()) + " }"
            )
        case _:
            raise TypeError(f"no TOML for {type(value).__name__}")


def check(kind: inspect.Type, value: object, key: str = "") -> Any:
    """
    The value as `msgspec.convert` takes it; Wrong, naming the key, where it is not of the kind.

    A list of words may be given as one string, which is split as a shell would split it.
    """
    bare = _bare(kind)
    if isinstance(bare, inspect.StructType | inspect.DictType):
        return _check_table(bare, value, key)
    if isinstance(bare, inspect.VarTupleType):
        return _check_words(kind, value, key)
    if not _fits(bare, value):
        raise Wrong(f"{key}: found {shown(value)}; allowed: {allowed(kind)}")
    return value


def kind_at(kind: inspect.Type, path: str) -> inspect.Type:
    """The kind of the value at a dotted path below `kind`; Wrong where there is no such key."""
    seen, rest = "", path
    while rest:
        kind = _bare(kind)
        if isinstance(kind, inspect.DictType):
            _check_name(kind, rest, seen)
            return kind.value_type
        if not isinstance(kind, inspect.StructType):
            raise Wrong(f"unknown key {path}: {seen} holds a value, not a table")
        first, _, rest = rest.partition(".")
        kind = _known(kind, [first], seen)[first].type
        seen = _join(seen, first)
    return kind


def is_table(kind: inspect.Type) -> bool:
    """True for what has keys of its own."""
    return isinstance(_bare(kind), inspect.StructType | inspect.DictType)


def wants_text(kind: inspect.Type) -> bool:
    """True where a word without quotes can only be meant as text, as on a command line."""
    bare = _bare(kind)
    return isinstance(
        bare, inspect.StrType | inspect.EnumType | inspect.LiteralType | inspect.VarTupleType
    )


def allowed(kind: inspect.Type) -> str:
    """In words, what a value of this kind may be."""
    if isinstance(kind, inspect.Metadata) and kind.extra_json_schema:  # Meta's description
        return str(kind.extra_json_schema["description"])
    bare = _bare(kind)
    match bare:
        case inspect.UnionType():
            parts = (allowed(t) for t in bare.types if not isinstance(t, inspect.NoneType))
            return " or ".join(parts)
        case inspect.EnumType() | inspect.LiteralType():
            return " or ".join(f'"{word}"' for word in _words(bare))
        case inspect.IntType() | inspect.FloatType():
            name = "a whole number" if isinstance(bare, inspect.IntType) else "a number"
            return name + _bounds(bare)
        case inspect.BoolType():
            return "true or false"
        case inspect.StructType() | inspect.DictType():
            return "a table"
        case _:
            return "text in quotes"


def shown(value: object) -> str:
    """A value as it would stand in TOML, cut where it is long."""
    try:
        text = format_value(value)
    except TypeError:
        text = str(value)
    return one_line(text) if len(text) <= SHOWN else one_line(text[: SHOWN - 1]) + "…"


def close_to(name: str, names: Iterable[str]) -> str:
    """The one of `names` that `name` was probably meant to be, or ""."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.7)), "")


def _bare(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _join(key: str, name: str) -> str:
    quoted = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
    return f"{key}.{quoted}" if key else quoted


def _known(kind: inspect.StructType, found: Iterable[str], key: str) -> dict[str, inspect.Field]:
    """The fields by name; Wrong, with the known keys and the likely one, for a key unknown."""
    fields = {field.encode_name: field for field in kind.fields}
    unknown = [name for name in found if name not in fields]
    if unknown:
        like = close_to(unknown[0], fields)
        hint = f" (did you mean {_join(key, like)}?)" if like else ""
        listed = ", ".join(_join(key, name) for name in unknown)
        where = f"known in [{key}]" if key else "known"
        raise Wrong(f"unknown key {listed}{hint}; {where}: {', '.join(sorted(fields))}")
    return fields


def _check_table(
    kind: inspect.StructType | inspect.DictType, value: object, key: str
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Wrong(f"{key}: found {shown(value)}; allowed: a table, [{key}]")
    if isinstance(kind, inspect.DictType):
        for name in value:
            _check_name(kind, name, key)
        return {name: check(kind.value_type, v, _join(key, name)) for name, v in value.items()}
    fields = _known(kind, value, key)
    for name, field in fields.items():
        if field.required and name not in value:
            raise Wrong(f"{_join(key, name)}: missing; allowed: {allowed(field.type)}")
    return {name: check(fields[name].type, v, _join(key, name)) for name, v in value.items()}


def _check_name(kind: inspect.DictType, name: str, key: str) -> None:
    if not _fits(_bare(kind.key_type), name):
        raise Wrong(f"{key}: found the key {shown(name)}; allowed: {allowed(kind.key_type)}")


def _check_words(kind: inspect.Type, value: object, key: str) -> list[str]:
    bare = _bare(kind)
    assert isinstance(bare, inspect.VarTupleType)
    words = value
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise Wrong(f"{key}: found {shown(value)}, which cannot be split: {error}") from None
    least = bare.min_length or 0
    if not isinstance(words, list) or len(words) < least or (words and words[0] == ""):
        raise Wrong(f"{key}: found {shown(value)}; allowed: {allowed(kind)}")
    return [check(bare.item_type, word, f"{key}[{i}]") for i, word in enumerate(words)]


def _fits(kind: inspect.Type, value: object) -> bool:
    """The value is one of this kind, and within its bounds."""
    match kind:
        case inspect.UnionType():
            return any(_fits(_bare(one), value) for one in kind.types)
        case inspect.EnumType() | inspect.LiteralType():
            return isinstance(value, str) and value in _words(kind)
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return not isinstance(value, bool) and isinstance(value, int) and _within(kind, value)
        case inspect.FloatType():
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            return _within(kind, value)
        case inspect.StrType():
            return isinstance(value, str) and _is_text(kind, value)
        case _:
            return False


def _words(kind: inspect.EnumType | inspect.LiteralType) -> list[str]:
    if isinstance(kind, inspect.EnumType):
        return [member.value for member in kind.cls]
    return [str(word) for word in kind.values]


def _within(kind: inspect.IntType | inspect.FloatType, value: float) -> bool:
    # TOML has inf and nan, which are bounds of nothing.
    if not -math.inf < value < math.inf:
        return False
    return (kind.ge is None or value >= kind.ge) and (kind.le is None or value <= kind.le)


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is None:
        return ""
    return f", {kind.ge} or more" if kind.le is None else f" from {kind.ge} to {kind.le}"


def _is_text(kind: inspect.StrType, value: str) -> bool:
    # NUL ends a C string, and a lone surrogate (an argument that is not UTF-8) cannot be written.
    if re.search("[\0\ud800-\udfff]", value):
        return False
    return kind.pattern is None or re.fullmatch(kind.pattern, value) is not None


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\u{ord(m[0]):04x}", escaped) + '"'
