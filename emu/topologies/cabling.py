"""Cabling: the parameters that all links share, and the builder that turns cables into links.

Law: a cable is two links, one per direction, that never share capacity.  The planes of a cable
always add up to its rate.

* ``striped`` planes (NVLink) are one link whose ``planes_bps`` are its parts: every chunk uses all.
* ``hashed`` planes (Ethernet) are links of their own, ``a0->s0#0``, ``a0->s0#1``, ...: a flow
  takes one of them by ECMP.  ECMP does not weigh: unequal hashed planes get equal shares of the flows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from emu.errors import ConfigError
from emu.parameters import Planes, PositiveBytes, RateBps, SizeBytes, TimePs
from emu.topologies.graph import Link, Node, NodeKind, Router, Structure, Topology, full_duplex


class LinkParameters(BaseModel):
    """What can be said of the links of any topology."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    rate: RateBps = 400 * 10**9
    """Rate per direction, summed over planes."""
    latency: TimePs = 1_000_000
    """One way latency."""
    mtu: PositiveBytes = 4096
    """Payload bytes per packet."""
    header: SizeBytes = 0
    """Bytes that every packet carries besides its payload."""
    planes: Planes = (1,)
    """Parallel planes: their number (4), or the lanes of each (5+4+4+5)."""
    plane_mode: Literal["striped", "hashed"] = "striped"
    """striped: every chunk uses all planes; hashed: a flow takes one of them."""
    window: PositiveBytes | None = None
    """Most bytes a connection may have in flight; left out, emu covers rate times round trip."""
    drain_rate: RateBps | None = None
    """How fast an accelerator consumes what arrives; left out, at once."""
    host_size: int = Field(default=1, ge=1)
    """Accelerators that share a host (NCCL's node), in the order of their numbers."""
    multicast: bool = False
    """Whether switches reduce and multicast in the network."""


def split_rate(rate_bps: int, lanes: tuple[int, ...]) -> tuple[int, ...]:
    """Shares of ``rate_bps`` in proportion to ``lanes``; they add up to it exactly.  Raises ConfigError."""
    total = sum(lanes)
    before = 0
    shares = []
    for count in lanes:
        shares.append(rate_bps * (before + count) // total - rate_bps * before // total)
        before += count
    if min(shares) < 1:
        raise ConfigError(f"{rate_bps} bit/s is too little for {len(lanes)} planes; raise rate or use fewer planes")
    return tuple(shares)


class Cabling:
    """Collects nodes and cables in the order in which they are laid, then makes the topology of them."""

    def __init__(self, parameters: LinkParameters) -> None:
        self.parameters = parameters
        self.names: list[str] = []
        self._nodes: list[Node] = []
        self._links: list[Link] = []

    def accelerators(self, n_accelerators: int) -> range:
        """Add a0, a1, ...; returns their node indices.  Called once, before :meth:`switches`."""
        return self._add("a", n_accelerators, NodeKind.ACCELERATOR, self.parameters.drain_rate)

    def switches(self, n_switches: int) -> range:
        """Add s0, s1, ...; returns their node indices.  Called once."""
        return self._add("s", n_switches, NodeKind.SWITCH, None)

    def cpus(self, n_cpus: int) -> range:
        """Add c0, c1, ..., which carry no ranks; returns their node indices.  Called once, after :meth:`accelerators`."""
        return self._add("c", n_cpus, NodeKind.CPU, None)

    def cable(self, a: int, b: int, *, rate_bps: int | None = None, latency_ps: int | None = None, n_parallel: int = 1) -> None:
        """Both directions between nodes ``a`` and ``b``, with the planes and the plane mode of the parameters.

        ``n_parallel`` cables of the same rate each; several links are numbered ``#0``, ``#1``, ...
        """
        rate = self.parameters.rate if rate_bps is None else rate_bps
        latency = self.parameters.latency if latency_ps is None else latency_ps
        lanes = self.parameters.planes
        shares_bps = split_rate(rate, lanes)
        hashed = self.parameters.plane_mode == "hashed"
        planes_bps = shares_bps if len(lanes) > 1 and not hashed else ()
        rates_bps = (shares_bps if hashed else (rate,)) * n_parallel
        for number, rate_bps in enumerate(rates_bps):
            suffix = f"#{number}" if len(rates_bps) > 1 else ""
            self.wire(a, b, rate_bps=rate_bps, latency_ps=latency, planes_bps=planes_bps, suffix=suffix)

    def wire(
        self,
        a: int,
        b: int,
        *,
        rate_bps: int,
        latency_ps: int,
        back_latency_ps: int | None = None,
        planes_bps: tuple[int, ...] = (),
        suffix: str = "",
    ) -> None:
        """One link each way, as said; ``back_latency_ps`` is that of b to a where it differs."""
        there, back = full_duplex(
            self.names,
            a,
            b,
            rate_bps=rate_bps,
            latency_ps=latency_ps,
            mtu_bytes=self.parameters.mtu,
            header_bytes=self.parameters.header,
            planes_bps=planes_bps,
            window_bytes=self.parameters.window,
            suffix=suffix,
        )
        self._links += there, back if back_latency_ps is None else replace(back, latency_ps=back_latency_ps)

    def topology(
        self,
        name: str,
        description: str,
        router: Router,
        *,
        structure: Structure | None = None,
        nesting: tuple[int, ...] = (),
    ) -> Topology:
        """The finished topology: rank i is accelerator ai."""
        ranks = tuple(i for i, node in enumerate(self._nodes) if node.kind is NodeKind.ACCELERATOR)
        return Topology(
            name=name,
            nodes=tuple(self._nodes),
            links=tuple(self._links),
            router=router,
            ranks=ranks,
            description=description,
            structure=structure or Structure(),
            nesting=nesting,
        )

    def _add(self, letter: str, count: int, kind: NodeKind, drain_rate_bps: int | None) -> range:
        first = len(self._nodes)
        for number in range(count):
            size = self.parameters.host_size
            shares = kind is NodeKind.ACCELERATOR and size > 1
            self._nodes.append(
                Node(
                    name=f"{letter}{number}",
                    kind=kind,
                    drain_rate_bps=drain_rate_bps,
                    host=f"h{number // size}" if shares else "",
                    multicast=kind is NodeKind.SWITCH and self.parameters.multicast,
                )
            )
            self.names.append(f"{letter}{number}")
        return range(first, first + count)
