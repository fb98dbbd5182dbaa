"""Headroom, credits, marking thresholds and quanta by published formulas, for what a fabric's user leaves out.

Headroom is what can still arrive after a pause went out (SONiC, ``buffer_headroom_mellanox.lua``; IEEE 802.1Qbb, annex O):

    bytes on the cable, there and back    rate x (latency + latency of the way back)
    peer's response                       rate x pause response, in quanta of 512 bit times by rate
    one packet each                       the one that sets the pause off, the one that the sender had begun

All in wire bytes of the link that is paused.  Its latency holds gearboxes and MACs already.  A packet counts whole when its
head arrives, so packets are of one quantum.  Credits are what keeps a link busy until they come back; they come back in parts
of an eighth (``CREDIT_SHARE``).

Law: pure functions of the links and of what is given; integers, rounded up.  Where links differ, the largest need counts:
a fabric has one value for all its ports.

Not modelled: the occupancy of buffer cells; a headroom pool that ports share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final

from emu.topologies.graph import Link, NodeKind, Topology
from emu.topologies.switching import CREDIT_SHARE, PAUSE_QUANTUM_BITS, Marking
from emu.units import PS_PER_SECOND, duration_ps

GBPS: Final = 10**9
_RESPONSE_QUANTA: Final = {10: 67, 25: 80, 40: 118, 50: 147, 100: 394, 200: 453, 400: 905, 800: 905}
"""Gbit/s -> pause quanta until a sender obeys (SONiC, ``buffer_headroom_mellanox.lua``)."""

_DCQCN_MARKING: Final = {
    25: (100_000, 400_000, Fraction(1, 5)),
    50: (200_000, 800_000, Fraction(1, 5)),
    100: (400_000, 1_600_000, Fraction(1, 5)),
    200: (300_000, 1_200_000, Fraction(4, 5)),
    400: (800_000, 3_200_000, Fraction(1, 5)),
    1600: (600_000, 2_400_000, Fraction(1, 5)),
}
"""Gbit/s -> (Kmin, Kmax, Pmax): the ns-3 configurations of HPCC (SIGCOMM 2019) and SimAI (NSDI 2025).  They give no Pmax
for 25, 50 and 1600 Gbit/s; the 0.2 of 100 and 400 Gbit/s stands in."""

TOMAHAWK_BUFFER_BYTES: Final = 165_660_324
TOMAHAWK_RATE_BPS: Final = 51_200 * GBPS
"""Packet memory of a Tomahawk 5 and the sum of its ports (Arista 7060X6)."""

MOST_QUANTUM_BYTES: Final = 64 * 1024
_PROBES: Final = 8
_NOTHING_ADDED: Final[Mapping[int, int]] = {}


def pause_quanta(rate_bps: int) -> int:
    """Pause quanta until a sender at that rate obeys: the table, linear between its rates, its ends beyond them."""
    rates = sorted(_RESPONSE_QUANTA)
    if rate_bps <= rates[0] * GBPS:
        return _RESPONSE_QUANTA[rates[0]]
    for low, high in pairwise(rates):
        if rate_bps <= high * GBPS:
            step = _RESPONSE_QUANTA[high] - _RESPONSE_QUANTA[low]
            return _RESPONSE_QUANTA[low] + -(-step * (rate_bps - low * GBPS) // ((high - low) * GBPS))
    return _RESPONSE_QUANTA[rates[-1]]


def pause_response_ps(links: Iterable[Link]) -> int:
    """The slowest sender's."""
    return max(_ceil(pause_quanta(rate) * PAUSE_QUANTUM_BITS * PS_PER_SECOND, rate) for rate in {li.rate_bps for li in links})


def round_trips_ps(topology: Topology) -> list[int]:
    """Per link, its latency and that of the slowest way back to its sender; its own twice where none goes back."""
    back: dict[tuple[int, int], int] = {}
    for link in topology.links:
        key = link.target, link.source
        back[key] = max(back.get(key, 0), link.latency_ps)
    return [link.latency_ps + back.get((link.source, link.target), link.latency_ps) for link in topology.links]


def headroom_bytes(
    topology: Topology, *, quantum_bytes: int, response_ps: int, added_ps: Mapping[int, int] = _NOTHING_ADDED
) -> int:
    """What the port with the largest need wants for one class that pauses; see the module.

    ``added_ps``: by link, what impairments add to its latency at most.
    """
    return max(
        _moved_bytes(link.rate_bps, round_trip_ps + response_ps + added_ps.get(index, 0)) + 2 * link.wire_bytes(quantum_bytes)
        for index, (link, round_trip_ps) in enumerate(zip(topology.links, round_trips_ps(topology), strict=True))
    )


def credit_bytes(topology: Topology, *, quantum_bytes: int) -> int:
    """The least input buffer with which one flow keeps every link busy.

    From sending a packet until its credit is back: the round trip, the head's MTU, the time to pass it on; and up to
    1/8 of all credits waits at the receiver to be sent together.
    """
    need = max(
        _moved_bytes(link.rate_bps, round_trip_ps) + 2 * link.wire_bytes(quantum_bytes) + link.mtu_bytes + link.header_bytes
        for link, round_trip_ps in zip(topology.links, round_trips_ps(topology), strict=True)
    )
    return _ceil(need * CREDIT_SHARE, CREDIT_SHARE - 1)


def longest_round_trip_ps(topology: Topology) -> int:
    """Twice the largest latency of a shortest way from one of some ranks, evenly chosen, to any other.

    Exact where ranks are alike, as in the generic topologies.
    """
    out = topology.out_links()
    ranks = topology.ranks
    probes = sorted({ranks[i * len(ranks) // _PROBES] for i in range(_PROBES)})
    furthest = max(_furthest_ps(topology, out, probe) for probe in probes)
    return 2 * furthest


def _furthest_ps(topology: Topology, out: list[list[int]], source: int) -> int:
    ends = set(topology.ranks)
    seen = {source: 0}
    frontier, furthest = {source: 0}, 0
    while frontier:
        following: dict[int, int] = {}
        for node, latency_ps in frontier.items():
            for index in out[node]:
                link = topology.links[index]
                if link.target not in seen:
                    following[link.target] = max(following.get(link.target, 0), latency_ps + link.latency_ps)
        seen |= following
        furthest = max(furthest, *(latency_ps for node, latency_ps in following.items() if node in ends), 0)
        frontier = following
    return furthest


def bandwidth_delay_bytes(topology: Topology) -> int:
    """The longest round trip at the rate of the slowest link."""
    return _moved_bytes(min(link.rate_bps for link in topology.links), longest_round_trip_ps(topology))


def access_rate_bps(topology: Topology) -> int:
    """The slowest link that leaves an accelerator: an adapter's rate."""
    leaving = [link.rate_bps for link in topology.links if topology.nodes[link.source].kind is NodeKind.ACCELERATOR]
    return min(leaving or [link.rate_bps for link in topology.links])


def dcqcn_marking(*, rate_bps: int, delay_bytes: int, mtu_bytes: int) -> Marking:
    """Kmin, Kmax and Pmax of the table by ``rate_bps``; at other rates those of the nearest one, the sizes in proportion to it.

    At least one and four MTU, as queues of less are no congestion.
    """
    nearest = min(_DCQCN_MARKING, key=lambda known: (abs(known * GBPS - rate_bps), known))
    kmin, kmax, pmax = _DCQCN_MARKING[nearest]
    kmin, kmax = (size * rate_bps // (nearest * GBPS) for size in (kmin, kmax))
    return Marking(kmin_bytes=max(kmin, mtu_bytes), kmax_bytes=max(kmax, 4 * mtu_bytes), pmax=pmax)


def nscc_marking(*, rate_bps: int, delay_bytes: int, mtu_bytes: int) -> Marking:
    """Between 25 % and 75 % of a bandwidth-delay product (``delay_bytes``), always above: htsim's setting for UEC's NSCC.

    At least as above.
    """
    kmin, kmax = max(delay_bytes // 4, mtu_bytes), max(3 * delay_bytes // 4, 4 * mtu_bytes)
    return Marking(kmin_bytes=kmin, kmax_bytes=kmax, pmax=Fraction(1))


def quantum_bytes(topology: Topology, limits_bytes: Sequence[int]) -> int:
    """The largest MTU x power of two within all limits, 1/8 of a bandwidth-delay product and 64 KiB; at least one MTU."""
    mtu = max(link.mtu_bytes for link in topology.links)
    most = min(MOST_QUANTUM_BYTES, bandwidth_delay_bytes(topology) // 8, *limits_bytes)
    return mtu << max(0, (most // mtu).bit_length() - 1)


def buffer_bytes(topology: Topology, *, claimed_bytes: int, pool_bytes: int) -> int:
    """A Tomahawk 5's memory in proportion to the rates of the node's ports, for the node that has most of them.

    At least twice what its ports claim (``claimed_bytes``), and ``pool_bytes`` beyond it.
    """
    into = [0] * len(topology.nodes)
    for link in topology.links:
        into[link.target] += link.rate_bps
    share = TOMAHAWK_BUFFER_BYTES * max(into) // TOMAHAWK_RATE_BPS
    return max(share, 2 * claimed_bytes, claimed_bytes + pool_bytes)


def most_ports(topology: Topology) -> tuple[int, int]:
    """(the node that most links enter, how many)."""
    n_ports = [0] * len(topology.nodes)
    for link in topology.links:
        n_ports[link.target] += 1
    most = max(n_ports)
    return n_ports.index(most), most


def packet_ps(topology: Topology, payload_bytes: int) -> int:
    """A packet's time on the slowest link."""
    return max(duration_ps(link.wire_bytes(payload_bytes), link.rate_bps) for link in topology.links)


def _moved_bytes(rate_bps: int, time_ps: int) -> int:
    return _ceil(rate_bps * time_ps, 8 * PS_PER_SECOND)


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
