"""Cluster: the Ray that a session runs on: started here, joined, or the one that this process is connected to already.
And how far the clocks of its hosts are apart.

Law: Ray is shut down, with its directory, where it was started or joined here, and left alone otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray

from emu.actors.actor import HostInfo
from emu.actors.pickling import first_line
from emu.clock import wall_ns
from emu.errors import ConfigError
from emu.host import MALLOC, check_answers, new_directory, sweep

OBJECT_STORE_BYTES = 100 * 2**20


class Cluster:
    """``is_ours``: whether Ray was started or joined here."""

    def __init__(self) -> None:
        self.is_ours = False
        self._directory: Path | None = None

    def start(self, address: str | None) -> None:
        """Connect to the cluster at ``address``, or start Ray here.  Raises ConfigError."""
        if ray.is_initialized():
            if address is not None and ray.get_runtime_context().gcs_address != address:
                raise ConfigError(f"address {address}: this process is already connected to another Ray cluster; leave it out")
            return
        for name in ("ray", "ray._private.worker", "ray._private.authentication"):
            logging.getLogger(name).setLevel(logging.ERROR)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        _quieten()
        sweep()
        if address is not None:
            check_answers(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:
                raise ConfigError(
                    f"no Ray cluster answers at {address}: {first_line(error)}; start one with 'ray start --head'; where it"
                    " asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
                ) from error
            self.is_ours = True
            return
        self._directory = new_directory()
        self.is_ours = True
        terminated = signal.getsignal(signal.SIGTERM)
        try:
            with _environment(MALLOC):
                ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=str(self._directory),
                )
        except SystemExit:  # Ray's handler of SIGTERM, which is in place while it starts
            raise KeyboardInterrupt from None
        if threading.current_thread() is threading.main_thread() and terminated is not None:
            signal.signal(signal.SIGTERM, terminated)  # Ray has put its own there, which ends the process at once

    def stop(self) -> None:
        """Shut down what was started here.  May be called twice."""
        if self.is_ours:
            with contextlib.suppress(Exception):
                ray.shutdown()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """What Ray starts meanwhile, and its actors after it, inherit ``settings``; those that the user has made stay."""
    new = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


def clock_offsets(info: Mapping[int, HostInfo], here: str, describe: Callable[[int], HostInfo]) -> dict[str, int]:
    """Offset of each other host's monotonic clock, from the quickest of a few round trips; ``describe`` asks an actor."""
    offsets: dict[str, int] = {}
    for process, found in info.items():
        if found.node_id == here or found.node_id in offsets:
            continue
        best: tuple[int, int] | None = None
        for _ in range(8):
            before = wall_ns()
            there = describe(process).wall_ns
            after = wall_ns()
            if best is None or after - before < best[0]:
                best = after - before, there - (before + after) // 2
        offsets[found.node_id] = best[1] if best is not None else 0
    return offsets


def _quieten() -> None:
    """Keep the raylet's news off stdout, which is for data: Ray has no setting for it.  What matters is raised here anyway."""

    def to_log(data: dict[str, Any], ignore_prefix: bool) -> None:
        logging.getLogger("emu.ray").info("%s", data.get("lines"))

    worker = sys.modules.get("ray._private.worker")
    if worker is not None and hasattr(worker, "print_to_stdstream"):
        setattr(worker, "print_to_stdstream", to_log)  # noqa: B010
