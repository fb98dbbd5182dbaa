"""Command: an action that a loop's thread carries out for another thread, which waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Command:
    """Called in the loop's thread.  Who gave it waits for ``done``, then asks :meth:`check`."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._failed: BaseException | None = None
        self.done = threading.Event()

    def __call__(self) -> None:
        try:
            self._action()
        except BaseException as error:
            self._failed = error
        finally:
            self.done.set()

    def check(self) -> None:
        """Raises what the action raised."""
        if self._failed is not None:
            raise self._failed
