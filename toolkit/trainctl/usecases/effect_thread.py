"""
Effects run beside the loop, one at a time, so that neither the lease nor the look at the run waits
for them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator

from trainctl.model.events import AnyEvent
from trainctl.policy import actions as do


class EffectThread:
    """Runs one effect at a time beside the loop and hands its events over."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[AnyEvent | BaseException | None] = queue.SimpleQueue()
        self.action: do.Action | None = None

    def start(self, action: do.Action, events: Callable[[], Iterable[AnyEvent]]) -> None:
        """Begin; `action` is what is in flight until its last event was taken."""
        self.action = action

        def work() -> None:
            try:
                for event in events():
                    self._queue.put(event)
            except BaseException as error:  # noqa: BLE001 — handed to the loop, which raises it
                self._queue.put(error)
            else:
                self._queue.put(None)

        threading.Thread(target=work, name=type(action).__name__, daemon=True).start()

    def take(self, wait_s: float) -> Iterator[AnyEvent]:
        """
        The events that came; waits up to `wait_s` for the first. Raises what the effect raised.
        """
        try:
            item = self._queue.get(timeout=wait_s)
            while True:
                if item is None:
                    self.action = None
                elif isinstance(item, BaseException):
                    self.action = None
                    raise item
                else:
                    yield item
                item = self._queue.get_nowait()
        except queue.Empty:
            return
