"""Exporter: one actor on each node of the cluster that serves what the session's actors there have counted, over HTTP.

It is a process of its own, so that it outlives the others and says which of them died.  At a scrape it asks all of them at
once and waits for at most :data:`ANSWER_S`; who has not answered by then is asked nothing more until it has.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from emu.actors.actor import DEATHS
from emu.actors.pickling import first_line
from emu.drivers.placement import Placement
from emu.errors import ConfigError, EmuError
from emu.telemetry import file_sd
from emu.telemetry.file_sd import NODE_ADDRESS
from emu.telemetry.prometheus import Collector
from emu.telemetry.snapshot import About, Reading
from emu.topologies.graph import Topology

ANSWER_S: Final = 1.0
START_TIMEOUT_S: Final = 120.0


@dataclass(slots=True)
class Watched:
    """An actor whose snapshots are taken: ``asked`` is what it has not answered yet."""

    name: str
    role: str
    handle: Any
    node: str
    """Ray's id of the node that it is on."""
    asked: Any = None
    is_alive: bool = True
    answer: Any = None


class Watch:
    """The last snapshots of some actors."""

    def __init__(self, watched: list[Watched]) -> None:
        self._watched = watched

    def readings(self) -> list[Reading]:
        """Ask those that have answered, and wait a while."""
        for one in self._watched:
            if one.is_alive and one.asked is None:
                one.asked = one.handle.snapshot.remote()
        asked = {one.asked: one for one in self._watched if one.asked is not None}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S) if asked else ([], [])
        for ref in ready:
            one = asked[ref]
            one.asked = None
            try:
                one.answer = ray.get(ref)
            except DEATHS:
                one.is_alive = False
            except ray.exceptions.RayTaskError:
                pass  # its loop is over: it is as it was when it last answered
        return [self._reading(one) for one in self._watched]

    def _reading(self, one: Watched) -> Reading:
        read_s, snapshot = one.answer or (0.0, None)
        return Reading(actor=one.name, role=one.role, is_alive=one.is_alive, read_s=read_s, snapshot=snapshot)


class ExporterActor:
    """Serves the metrics of ``watched``."""

    def __init__(self, topology: Topology, about: About, watched: list[Watched]) -> None:
        self._collector = Collector(topology, about=about, readings=Watch(watched).readings)

    def serve(self, host: str, port: int) -> str:
        """Start serving at ``host`` (or this node's address) and ``port`` (0: a free one); where.  Raises ConfigError."""
        address = ray.util.get_node_ip_address() if host == NODE_ADDRESS else host
        return f"{address}:{self._collector.serve(address, port)}"


class Exporters:
    """The exporters of a session, and the file that tells Prometheus of them."""

    def __init__(self) -> None:
        self.endpoints: dict[str, str] = {}
        """HOST:PORT by host name."""
        self._actors: dict[str, Any] = {}
        self._file: Path | None = None

    def start(self, host: str, port: int, about: About, topology: Topology, of_nodes: list[Watched]) -> None:
        """One on every node that has actors.  Raises ConfigError; what was started is ended by :meth:`close`."""
        nodes = dict.fromkeys(one.node for one in of_nodes)
        host = file_sd.serving_host(host, several=len(nodes) > 1)
        shared = ray.put(topology)
        names = _names(set(nodes))
        for node in nodes:
            pinned = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            actor_class = ray.remote(ExporterActor).options(
                num_cpus=0, max_concurrency=2, max_restarts=0, scheduling_strategy=pinned
            )
            self._actors[names[node]] = actor_class.remote(shared, about, [one for one in of_nodes if one.node == node])
        try:
            found = ray.get([actor.serve.remote(host, port) for actor in self._actors.values()], timeout=START_TIMEOUT_S)
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, EmuError) else EmuError(f"an exporter failed: {error.cause!r}") from None
        except (ray.exceptions.GetTimeoutError, *DEATHS) as error:
            raise EmuError(f"an exporter did not start: {first_line(error)}") from None
        self.endpoints = dict(zip(self._actors, found, strict=True))
        try:
            self._file = file_sd.publish(self.endpoints, about.session)
        except OSError as error:
            where = f"{error.filename}: {error.strerror}"
            raise ConfigError(f"metrics: {where}; set {file_sd.DIRECTORY_VARIABLE} to a directory that can be written") from None

    def close(self) -> None:
        """End them, and take the file away."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None
        with contextlib.suppress(Exception):
            for actor in self._actors.values():
                ray.kill(actor)
        self._actors.clear()
        self.endpoints.clear()


def _names(nodes: set[str]) -> dict[str, str]:
    """Host names of nodes, with a part of Ray's id where several have the same."""
    hosts = {node["NodeID"]: str(node["NodeManagerHostname"]) for node in ray.nodes() if node["NodeID"] in nodes}
    same = Counter(hosts.values())
    return {node: host if same[host] == 1 else f"{host}-{node[:8]}" for node, host in hosts.items()}


def watched(topology: Topology, placement: Placement, actors: Mapping[int, Any], nodes: Mapping[int, str] = {}) -> list[Watched]:
    """The actors as an exporter knows them; ``nodes``: where they are, by process."""
    ranks = set(topology.ranks)
    found = []
    for process, handle in actors.items():
        hosted = [node for node, owner in enumerate(placement.owner) if owner == process]
        role = "accelerator" if ranks & set(hosted) else "switch"
        found.append(Watched(topology.nodes[hosted[0]].name, role, handle, nodes.get(process, "")))
    return found
