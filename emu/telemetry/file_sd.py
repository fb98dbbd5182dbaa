"""file_sd: where exporters serve, and how Prometheus learns of it.

Law: a session's file is there as a whole or not at all, and goes with the session; those of sessions whose process was killed are
swept.  The directory is $EMU_FILE_SD, else $XDG_RUNTIME_DIR/emu/file_sd, else ~/.cache/emu/file_sd, and this in prometheus.yml
finds all of it:

    scrape_configs:
      - job_name: emu
        scrape_interval: 5s
        file_sd_configs:
          - files: [DIRECTORY/*.json]
            refresh_interval: 5s

Source of the format: Prometheus documentation, Configuration, <file_sd_config>.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from emu.errors import ConfigError
from emu.host import is_alive

METRICS_NAMES: Final = ("emu", "nccl-inspector")
"""Whose metrics: emu's, or NCCL Inspector's beside them."""
AUTO: Final = "auto"
"""A free port: of 127.0.0.1 where all is on one host, else of each node's address."""
NODE_ADDRESS: Final = "node"
"""Stands for the address that a cluster knows a node by."""
DIRECTORY_VARIABLE: Final = "EMU_FILE_SD"
JOB: Final = "emu"


def parse_endpoint(text: str) -> tuple[str, int]:
    """``"127.0.0.1:0"`` -> host and port; :data:`AUTO` and :data:`NODE_ADDRESS` stand for hosts.  Raises ConfigError."""
    if text == AUTO:
        return AUTO, 0
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(
            f"metrics {text!r}: write ADDRESS:PORT with a port from 0 (a free one) to 65535, or auto for 127.0.0.1:0"
        )
    if host == NODE_ADDRESS:
        return host, int(port)
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise ConfigError(
            f"metrics {text!r}: {host!r} is no address; use 127.0.0.1, an address of the node, or 'node' for the cluster's"
        ) from None
    if address.is_unspecified:
        raise ConfigError(f"metrics {text!r} would serve on every network of the host; name one address, or node:{port}")
    return str(address), int(port)


def serving_host(host: str, *, several: bool) -> str:
    """What a host of :func:`parse_endpoint` comes to on one host, or on several.  Raises ConfigError."""
    if host == AUTO:
        return NODE_ADDRESS if several else "127.0.0.1"
    if several and host != NODE_ADDRESS:
        raise ConfigError(f"metrics {host}: the actors are on several hosts, which need an address each; use node:0")
    return host


def check_metrics_names(names: str) -> bool:
    """Whether NCCL Inspector's are among them.  Raises ConfigError."""
    if names not in METRICS_NAMES:
        raise ConfigError(f"metrics names {names!r}: use one of {', '.join(METRICS_NAMES)}")
    return names == METRICS_NAMES[1]


def directory(environment: Mapping[str, str] | None = None) -> Path:
    """Where the files are."""
    found = os.environ if environment is None else environment
    if DIRECTORY_VARIABLE in found:
        return Path(found[DIRECTORY_VARIABLE])
    if "XDG_RUNTIME_DIR" in found:
        return Path(found["XDG_RUNTIME_DIR"]) / "emu" / "file_sd"
    return Path.home() / ".cache" / "emu" / "file_sd"


def publish(endpoints: Mapping[str, str], session: str, *, place: Path | None = None) -> Path:
    """Write the file of a session: ``endpoints`` is HOST:PORT by node.  Raises OSError."""
    place = directory() if place is None else place
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep(place)
    groups = [
        {"targets": [endpoint], "labels": {"job": JOB, "session": session, "node": node}}
        for node, endpoint in sorted(endpoints.items())
    ]
    path = place / f"emu-{os.getpid()}-{session}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(groups, indent=1) + "\n", encoding="utf-8")
    os.replace(new, path)
    return path


def sweep(place: Path | None = None) -> tuple[Path, ...]:
    """Remove the files of processes that are gone; which they were."""
    place = directory() if place is None else place
    swept = []
    for path in place.glob("emu-*-*.*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not is_alive(int(owner)):
            path.unlink(missing_ok=True)
            swept.append(path)
    return tuple(swept)
