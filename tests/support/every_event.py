"""Hypothesis strategies for every class of event, by its own fields' types."""

from __future__ import annotations

import types
import typing
from enum import StrEnum
from typing import Any

import msgspec
from hypothesis import strategies as st

from trainctl.model.events import EVENT_CLASSES, Event

STAMP = ("v", "term", "seq", "at_ms", "boot", "mono_ms")

_TEXT = st.text(max_size=12)
_PLAIN: dict[object, st.SearchStrategy[Any]] = {
    str: _TEXT,
    int: st.integers(-(2**62), 2**62),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    types.NoneType: st.none(),
}


def value_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of an annotated type."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if set(args) == {str, int, float}:
            args = (str, int, float)
        return st.one_of([value_of(arg) for arg in args])
    if origin is tuple:
        return st.lists(value_of(args[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(value_of(args[0]), value_of(args[1]), max_size=2)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return st.sampled_from(list(kind))
    return struct_of(kind)


def struct_of(kind: type[msgspec.Struct], skip: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    """Any value of a Struct."""
    hints = typing.get_type_hints(kind)
    fields = {name: value_of(hints[name]) for name in kind.__struct_fields__ if name not in skip}
    return st.builds(kind, **fields)


def event_of(kind: type[Event]) -> st.SearchStrategy[Any]:
    """Any event of a class, not stamped yet."""
    return struct_of(kind, STAMP)


EVENTS = st.one_of([event_of(kind) for kind in EVENT_CLASSES.values()])
