"""
What a rank said before it ended: torchelastic's error file, else the end of its error output.

Both are written by the program and may hold anything; what cannot be read is no error of ours,
there are then no last words. Only the last 64 KiB of a log are read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from trainctl.model.evidence import RankError

MESSAGE_LIMIT = 2_000
_TAIL_BYTES = 64 * 1024
_ERROR_FILE_LIMIT = 1 << 20
#: A crash in native code; the other signals come from outside and a log says nothing about them.
_CRASHES = frozenset({4, 5, 6, 7, 8, 11, 31})
#: A traceback further from the end than this was survived, when a signal ended the rank.
_STILL_THE_END = 40
_FAR = 200

_PREFIX = re.compile(r"^(\[rank\d+\]:\s?|\s*[|+]\s)+")
"""torch puts the rank before each line of an uncaught exception; exception groups draw a margin."""
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line \d+(?:, in (?P<function>.+))?$')
_RAISED = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::\s?(?P<text>.*))?$")
_NOT_OF_THE_USER = re.compile(
    r"/(site|dist)-packages/|/lib/python\d|^<frozen |/trainctl/(train|node|base|model)/"
)
_TELLING = re.compile(
    r"error|exception|fatal|terminate called|what\(\):|timed? ?out|failed|out of memory|abort",
    re.IGNORECASE,
)
#: Frames of native stacks and of tracebacks, and the program's own lines quoted in these.
_NO_WORDS = re.compile(r'^(frame #\d+|Exception raised from |\s+File "|\s{4,}|Traceback \()')


def last_words(
    error_file: Path | None, log: Path, code: int | None, signal: int | None
) -> RankError | None:
    """The last words of a rank that failed; None where it said nothing that tells."""
    if error_file is not None and (error := from_error_file(error_file)) is not None:
        return error
    if signal is not None and signal not in _CRASHES:
        return None
    return from_log(log, within=None if code else _STILL_THE_END)


def from_error_file(path: Path) -> RankError | None:
    """
    torchelastic's error file: `message` is a string, or {message, extraInfo: {py_callstack,
    timestamp}} with the timestamp in whole seconds, as a string.
    """
    try:
        with path.open("rb") as file:
            data: Any = json.loads(file.read(_ERROR_FILE_LIMIT))
    except (OSError, ValueError, RecursionError):
        return None
    extra: dict[str, Any] = {}
    for _ in range(4):  # a launcher within a launcher wraps the message once more
        if not isinstance(data, dict):
            break
        if isinstance(data.get("extraInfo"), dict):
            extra = data["extraInfo"]
        data = data.get("message", "")
    if not isinstance(data, str) or not (data or extra):
        return None
    stamp, stack = extra.get("timestamp"), extra.get("py_callstack")
    at_ms = (
        int(stamp) * 1000
        if isinstance(stamp, str | int) and re.fullmatch(r"[0-9]{1,12}", str(stamp))
        else 0
    )
    said = _traceback(stack.splitlines()) if isinstance(stack, str) else None
    raised = _RAISED.match(data.partition("\n")[0])
    name = _class_name(raised["name"]) if raised and raised["text"] is not None else ""
    return RankError(
        message=data[:MESSAGE_LIMIT],
        exception=name or (said.exception if said else ""),
        place=said.place if said else "",
        at_ms=at_ms,
    )


def from_log(path: Path, within: int | None = None) -> RankError | None:
    """
    The last traceback of a log, else its last telling lines.

    `within`: only a traceback that ends in the last so many lines counts.
    """
    lines = tail(path)
    if (said := _traceback(lines, within)) is not None:
        return said
    plain = [line for line in lines if line.strip() and not _NO_WORDS.match(line)]
    telling = [line for line in plain[-(within or _FAR) :] if _TELLING.search(line)]
    return RankError(message="\n".join(telling[-10:])[:MESSAGE_LIMIT]) if telling else None


def tail(path: Path) -> list[str]:
    """The last lines of a log; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return []
    return [_PREFIX.sub("", line) for line in text.replace("\0", "").splitlines()]


def _traceback(lines: list[str], within: int | None = None) -> RankError | None:
    """The last whole traceback in these lines."""
    heads = [number for number, line in enumerate(lines) if line.strip() == _HEAD]
    for head in reversed(heads):
        frames: list[tuple[str, str]] = []
        for number in range(head + 1, len(lines)):
            line = lines[number]
            if frame := _FRAME.match(line):
                frames.append((frame["file"], frame["function"] or "<module>"))
            elif line and not line[0].isspace():
                if within is not None and len(lines) - number > within:
                    return None
                return _raised(lines[number:], frames)
    return None


def _raised(lines: list[str], frames: list[tuple[str, str]]) -> RankError | None:
    found = _RAISED.match(lines[0])
    if found is None:
        return None
    message = [lines[0]]
    for line in lines[1:20]:  # a message may have several lines; the next record ends it
        if not line.strip() or line.startswith(("[", "Traceback", "Exception ignored")):
            break
        message.append(line)
    return RankError(
        message="\n".join(message)[:MESSAGE_LIMIT],
        exception=_class_name(found["name"]),
        place=_place(frames),
    )


def _place(frames: list[tuple[str, str]]) -> str:
    """The innermost frame of the program itself, else the innermost of all."""
    own = [frame for frame in frames if not _NOT_OF_THE_USER.search(frame[0])]
    chosen = (own or frames)[-1:]
    return "".join(f"{Path(file).name}:{function}" for file, function in chosen)


def _class_name(dotted: str) -> str:
    return dotted.rpartition(".")[2]
