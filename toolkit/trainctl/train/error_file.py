"""
A rank's last words: an uncaught exception is left in torchelastic's error file.

torchrun names the file in TORCHELASTIC_ERROR_FILE and expects the program to wrap its main in
`@record`. Most do not, and then nobody knows why a rank died. This hook writes the same thing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from types import TracebackType

from trainctl.train.environment import ERROR_FILE


def install() -> None:
    """Write the error file on an uncaught exception, then do what was done before."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, Exception):
            with contextlib.suppress(OSError):
                _write(error)
        before(kind, error, trace)

    sys.excepthook = hook


def _write(error: BaseException) -> None:
    path = os.environ.get(ERROR_FILE)
    if not path:
        return
    extra = {
        "py_callstack": "".join(traceback.format_exception(error)),
        "timestamp": str(int(time.time())),
    }
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    with open(path, "x", encoding="utf-8") as file:  # `@record` may have written it: that stays
        json.dump({"message": message}, file)
