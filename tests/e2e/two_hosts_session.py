"""What test_two_hosts.py runs on the first host: a session over both; what it saw goes to stdout as JSON."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from pathlib import Path

import ray
import zmq
from zmq.utils.monitor import recv_monitor_message

import emu
from emu.bench.measure import measure_row, row_counts
from emu.bench.options import BenchOptions
from emu.bench.rows import Verdict
from emu.transport import Keys

STAR = {"ranks": "3", "rate": "1GB/s", "latency": "1ms"}
N_RANKS = 3
SIZE_BYTES = 1 << 14
OPTIONS = BenchOptions(collective="all_reduce", iterations=1, warmup=1, algorithm="ring")
HANDSHAKE_MOST_MS = 5000
DILATIONS = (100.0, 300.0, 900.0)
"""A host that others use is given more time, as by ``emu bench``."""


def actor_up(endpoint: str) -> dict[str, float]:
    """The actors that an exporter watches, and whether they live."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r'^emu_actor_up\{actor="(\w+)"\} (\S+)$', text, re.MULTILINE)}


def handshake(endpoint: str, *, own: Keys | None, server: Keys) -> list[str]:
    """What a peer sees that connects with its own keys, or none, until it is let in or refused."""
    context = zmq.Context()
    peer = context.socket(zmq.PUSH)
    if own is not None:
        peer.curve_publickey, peer.curve_secretkey, peer.curve_serverkey = own.public, own.secret, server.public
    monitor = peer.get_monitor_socket()
    seen: list[str] = []
    try:
        peer.connect(endpoint)
        while not {"HANDSHAKE_SUCCEEDED", "DISCONNECTED"} & set(seen) and not any("FAILED" in name for name in seen):
            if not monitor.poll(HANDSHAKE_MOST_MS):
                break
            seen.append(zmq.Event(recv_monitor_message(monitor)["event"]).name)
    finally:
        peer.disable_monitor()
        monitor.close(0)
        peer.close(0)
        context.term()
    return seen


def main() -> None:
    size = row_counts(OPTIONS, SIZE_BYTES, N_RANKS)
    with emu.Session("star", settings=STAR, address=os.environ["EMU_ADDRESS"], metrics="node:0") as session:
        actors = list(getattr(session, "_backend")._actors.values())  # noqa: B009  no interface tells where an endpoint is
        described = ray.get([actor.describe.remote() for actor in actors])
        host_names = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
        far = next(number for number, one in enumerate(described) if host_names[one.node_id] == "emu-host2")
        keys = ray.get(actors[far].__ray_call__.remote(lambda actor: actor._transport._keys))
        knocks = {
            name: handshake(described[far].endpoint, own=own, server=keys)
            for name, own in (("no key", None), ("a key of its own", Keys.make()), ("the session's key", keys))
        }
        for dilation in DILATIONS:
            side = measure_row(session, OPTIONS, size, n_ranks=N_RANKS, dilation=dilation, seed=0, in_place=False).out_of_place
            if side.verdict is Verdict.OK and not side.order_violations:
                break
        (file,) = Path(os.environ["EMU_FILE_SD"]).glob("*.json")
        exporters = {group["labels"]["node"]: group["targets"][0] for group in json.loads(file.read_text(encoding="utf-8"))}
        found = {
            "verdict": side.verdict,
            "late": side.late,
            "dilation": side.dilation,
            "n_wrong": side.n_wrong,
            "model_ps": side.model_ps,
            "order_violations": side.order_violations,
            "actors": [{"host": host_names[one.node_id], "endpoint": one.endpoint, "wall_ns": one.wall_ns} for one in described],
            "knocks": knocks,
            "exporters": exporters,
            "actor_up": {node: actor_up(endpoint) for node, endpoint in exporters.items()},
        }
    found["shared"] = os.environ["SHARED"]
    found["files_left"] = [path.name for path in file.parent.iterdir()]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
