"""Interrupt: how another thread, or a client that hangs up, ends what the main thread is in the midst of."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

POLL_S: Final = 0.1
REPEAT_S: Final = 1.0
"""A KeyboardInterrupt that falls into a callback is lost, so it is raised again until it is heard."""


@contextmanager
def interrupted_when(stopped: Callable[[], bool]) -> Iterator[None]:
    """KeyboardInterrupt in the body, which is the main thread's, soon after ``stopped()`` is true; it is asked in a thread."""
    ended = threading.Event()
    inside = True
    main = threading.get_ident()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if inside:
            raise KeyboardInterrupt

    def watch() -> None:
        while not ended.wait(POLL_S):
            if stopped():
                signal.pthread_kill(main, signal.SIGUSR1)
                ended.wait(REPEAT_S)

    signal.signal(signal.SIGUSR1, interrupt)  # and left there: outside of the body it does nothing
    watcher = threading.Thread(target=watch, name="emu-watch", daemon=True)
    watcher.start()
    try:
        try:
            yield
        finally:
            inside = False
    finally:  # twice, as the interrupt may fall between
        inside = False
        ended.set()
        watcher.join()
