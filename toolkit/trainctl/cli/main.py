"""
The command `trainctl`: finds the command that is meant, runs it, and is the one error boundary.

    0 done or ok          10 stopped by the operator   20 node bad
    1 usage               11 crash loop                21 could not tell
    2 bad configuration   12 budget exhausted
    3 cluster refused     13 needs a human

Only the module of the command that was typed is imported: start-up time is a feature, and
`--help` of all needs no more than the table below.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trainctl.model.errors import ConfigError, TrainctlError, UsageError

if TYPE_CHECKING:
    from typer import Typer

COMMANDS: dict[str, str] = {
    "init": "Write a commented run.toml.",
    "submit": "Start a run: check it, make its directory, supervise it.",
    "supervise": "Own a run, or stand by for whoever owns it.",
    "status": "Say where a run stands.",
    "logs": "Show what the ranks of an attempt printed.",
    "events": "Show the journal of a run.",
    "stop": "Ask a run to save and stop.",
    "resume": "Take an ended run up again at its last committed checkpoint.",
    "report": "Say what happened: attempts, outcomes, evidence, steps kept and lost.",
    "demo": "Show it all on this machine: a real training under injected faults.",
}
"""Every command and its one line; the function is `command` in the module trainctl.cli.NAME."""

INTERRUPTED = 130
BROKEN_PIPE = 141
"""As a shell reports a program that was ended by SIGINT or SIGPIPE."""


def main() -> None:
    """The entry point: run the command that was typed and exit with its code."""
    argv = sys.argv[1:]
    if argv[:1] == ["status"]:
        import gc

        gc.disable()  # in a tenth of a second it finds nothing, and costs a twentieth of it
    sys.exit(run(argv))


def run(argv: Sequence[str]) -> int:
    """Run one command line, without the program's name; returns its exit code and never raises."""
    try:
        code = _quick_status(argv)
        if code is None:
            code = _through_typer(list(argv) or ["--help"])
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except TrainctlError as error:
        _complain(str(error))
        return error.exit_code
    except OSError as error:
        if error.filename is None:
            return _unexpected(error)
        _complain(f"{error.filename}: {error.strerror}")
        return ConfigError.exit_code
    except Exception as error:  # noqa: BLE001 - the one error boundary: a traceback helps nobody
        return _unexpected(error)


def build(wanted: str = "") -> Typer:
    """
    The application, with the options of the command `wanted` alone (of none: ""; of all: "*").
    """
    import typer

    app = typer.Typer(
        name="trainctl",
        help="Keep one large training run going: launch, watch, blame, restart, account.",
        epilog="Exit codes: 0 ok, 1 usage, 2 configuration, 3 cluster, 10 operator, 11 crash loop, "
        "12 budget, 13 needs a human.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def options(
        version: bool = typer.Option(False, "--version", help="Say which version this is."),
    ) -> int:
        return _say_version() if version else 0

    app.callback(invoke_without_command=True)(options)
    for name, line in COMMANDS.items():
        function = _load(name) if wanted in (name, "*") else _unloaded
        app.command(name, short_help=line)(_deferred(function))
    return app


def _unloaded() -> int:
    """Stand in for a command that was not typed, in the list of commands."""
    raise UsageError("options of a command stand after its name; see: trainctl --help")


def _deferred(function: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """Let typer parse only: it has its own ideas of broken pipes and of Ctrl-C."""

    @functools.wraps(function)
    def bind(*args: object, **options: object) -> Callable[[], int]:
        return functools.partial(function, *args, **options)

    return bind


def _say_version() -> int:
    from trainctl import __version__

    print(f"trainctl {__version__}")
    return 0


def _load(name: str) -> Callable[..., int]:
    from importlib import import_module

    function: Callable[..., int] = import_module(f"trainctl.cli.{name}").command
    return function


def _through_typer(argv: list[str]) -> int:
    import typer

    # What follows a bare `--` is a program of the user's with options of its own.
    cut = argv.index("--") if argv[0] == "submit" and "--" in argv else len(argv)
    words, rest = argv[:cut], tuple(argv[cut + 1 :])
    app = build(next((word for word in words if word in COMMANDS), ""))
    bad_usage: type[Exception] = next(
        c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
    )
    try:
        bound = app(words, prog_name="trainctl", standalone_mode=False, obj=rest)
    except typer.Abort:
        return INTERRUPTED
    except bad_usage as error:
        raise UsageError(_usage(error, words)) from None
    code = bound() if callable(bound) else bound
    return code if isinstance(code, int) else 0


def _usage(error: BaseException, words: Sequence[str]) -> str:
    said = str(getattr(error, "format_message", error.__str__)()).strip().rstrip(".")
    command = f"trainctl {words[0]}" if words and words[0] in COMMANDS else "trainctl"
    return f"{said}; see: {command} --help"


def _quick_status(argv: Sequence[str]) -> int | None:
    """`status --json` is what scripts poll: it does without typer. None: not that command."""
    if not argv or argv[0] != "status" or "--json" not in argv:
        return None
    others = [word for word in argv[1:] if word != "--json"]
    if len(others) > 1 or any(word.startswith("-") for word in others):
        return None
    from trainctl.cli.output import print_json
    from trainctl.cli.runs import find_run
    from trainctl.usecases.status import status_of

    print_json(status_of(find_run(others[0] if others else None)))
    return 0


def _unexpected(error: Exception) -> int:
    if os.environ.get("TRAINCTL_DEBUG"):
        raise error
    what = " ".join(f"{type(error).__name__}: {error}".split())
    _complain(f"unexpected {what}; this is a bug of ours: TRAINCTL_DEBUG=1 shows where")
    return 1


def _complain(message: str) -> None:
    try:
        print(f"trainctl: {message}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
