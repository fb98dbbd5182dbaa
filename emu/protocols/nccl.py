"""NCCL's tuner: ``time = latency x correction + S / bandwidth`` by its own tables; the smallest of all pairs is taken.

Not a prediction: NCCL's constants were set by hand for its own choice, and emu's times come from steps on links.  It says which
pair NCCL would take, right or not, and so which one a measurement ran.  Source: NCCL 2.30, ``src/graph/tuning.cc``.

It knows ring, tree, nvls, nvlstree and grouped sends and receives.  Not modelled: CollNet and PAT, which NCCL has and this tuner
never takes, nor NVLS over several hosts, which is CollNet's; the CPU's vendor (AMD's network overhead, its row of LL bandwidths).
"""

from __future__ import annotations

import math
from typing import Final

from emu.protocols.costs import Generation, Interconnect
from emu.protocols.legal import Protocol, is_grouped, is_nvls, usual_protocols
from emu.protocols.question import Choice, Question, Way
from emu.units import PS_PER_MICROSECOND

LL, LL128, SIMPLE = Protocol.LL, Protocol.LL128, Protocol.SIMPLE
GROUPED_ALGORITHMS: Final = ("direct", "pxn")
"""What grouped sends and receives are in emu, the first where there is a choice."""
_Row = dict[Protocol, float]


def _row(ll: float, ll128: float, simple: float) -> _Row:
    return {LL: ll, LL128: ll128, SIMPLE: simple}


BASE_US: Final = {"tree": _row(6.8, 14.0, 8.4), "ring": _row(6.6, 14.0, 8.4), "nvls": _row(0, 0, 0), "nvlstree": _row(0, 0, 0)}
HOP_US: Final = {
    Interconnect.NVLINK: {
        "tree": _row(0.6, 1.25, 4.0), "ring": _row(0.6, 1.9, 3.4), "nvls": _row(0, 0, 25), "nvlstree": _row(0, 0, 25),
    },
    Interconnect.PCI: {
        "tree": _row(1.0, 1.9, 4.0), "ring": _row(1.0, 2.5, 5.7), "nvls": _row(0, 0, 0), "nvlstree": _row(0, 0, 0),
    },
}  # fmt: skip
NETWORK_HOP_US: Final = {
    "tree": _row(5.0, 8.5, 14), "ring": _row(2.7, 4.0, 14), "nvls": _row(0, 0, 18), "nvlstree": _row(0, 0, 20.9),
}  # fmt: skip
NETWORK_OVERHEAD_US: Final = _row(1.0, 1.0, 3.0)
"""By generation, for 1, 2 and 4 or more hosts; GB/s."""
MOST_LL: Final = {
    Generation.VOLTA: (39, 39, 20.4), Generation.AMPERE: (87.7, 22.5, 19),
    Generation.HOPPER: (141, 45, 35), Generation.BLACKWELL: (282, 90, 70),
}  # fmt: skip
CHANNEL_RING_LL128: Final = {
    Generation.VOLTA: (20, 20, 20), Generation.AMPERE: (20, 20, 20),
    Generation.HOPPER: (36.7, 36.7, 36.7), Generation.BLACKWELL: (40, 40, 40),
}  # fmt: skip
CHANNEL_TREE_LL128: Final = {
    Generation.VOLTA: (20, 20, 20), Generation.AMPERE: (20, 20, 20),
    Generation.HOPPER: (36.7, 36.7, 29), Generation.BLACKWELL: (55.6, 31.67, 20),
}  # fmt: skip
CHANNEL_TREE: Final = {
    Generation.VOLTA: (26.5, 18.5, 10), Generation.AMPERE: (24, 23.6, 17.8),
    Generation.HOPPER: (38.7, 41.4, 36), Generation.BLACKWELL: (70, 42.8, 24),
}  # fmt: skip
NVLS_EFFICIENCY: Final = {Generation.VOLTA: 0.0, Generation.AMPERE: 0.0, Generation.HOPPER: 0.85, Generation.BLACKWELL: 0.74}
TREE_CORRECTION: Final = {
    LL: (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    LL128: (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    SIMPLE: (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
}  # fmt: skip
"""Of the bandwidth, by the power of two of S / 64."""
RING_SIMPLE_CORRECTION: Final = 1.4
RING_SIMPLE_FROM_BYTES: Final = 64


def choose(question: Question) -> Choice | None:
    """The pair that NCCL takes among those of ``question``; None where it knows none of them."""
    if is_grouped(question.collective, ""):
        return _grouped(question)
    known = [way for way in question.ways if way.algorithm in BASE_US]
    timed = [
        Choice(way.algorithm, protocol, round(us * PS_PER_MICROSECOND))
        for way in known
        for protocol in way.protocols
        if (us := time_us(question, way, Protocol(protocol))) is not None
    ]
    return min(timed, key=lambda choice: choice.time_ps, default=None)


def knows(question: Question, way: Way, protocol: Protocol) -> bool:
    """Whether it is among what is chosen from; of grouped sends and receives only the protocol is."""
    if is_grouped(question.collective, ""):
        return way.algorithm == GROUPED_ALGORITHMS[0]
    return way.algorithm in BASE_US and time_us(question, way, protocol) is not None


def _grouped(question: Question) -> Choice | None:
    """By the bytes for each peer; an algorithm that is not NCCL's, where it was asked for by name, takes its rule."""
    by_name = {way.algorithm: way for way in question.ways}
    way = next((by_name[name] for name in GROUPED_ALGORITHMS if name in by_name), None)
    if way is None and len(question.ways) != 1:
        return None
    way = way or question.ways[0]
    usual = usual_protocols(question.collective, way.algorithm, question.size_bytes, question.n_ranks)[0]
    return Choice(way.algorithm, usual if usual in way.protocols else way.protocols[0], 0)


def time_us(question: Question, way: Way, protocol: Protocol) -> float | None:
    """What NCCL takes the pair to cost; None where it rules it out, as over PCIe LL128, whose 128 bytes it may tear, and NVLS."""
    if question.costs.interconnect is Interconnect.PCI and (protocol == LL128 or is_nvls(way.algorithm)):
        return None
    bandwidth = _algorithm_gb_per_s(question, way.algorithm, protocol)
    if bandwidth <= 0:
        return None
    latency_us, size_bytes = _latency_us(question, way.algorithm, protocol), question.size_bytes
    if question.n_ranks == 1:
        return latency_us
    if way.algorithm == "tree" and question.collective == "all_reduce":
        power = max(0, (size_bytes >> 6).bit_length() - 1)
        if power < len(TREE_CORRECTION[protocol]):
            bandwidth *= TREE_CORRECTION[protocol][power]
    per_rank_bytes = size_bytes / (question.costs.channels * question.n_ranks)
    if (way.algorithm, protocol, question.collective) == ("ring", SIMPLE, "all_reduce") and question.n_hosts > 1:
        latency_us *= RING_SIMPLE_CORRECTION if per_rank_bytes >= RING_SIMPLE_FROM_BYTES else 1
    return latency_us + size_bytes / (1000 * bandwidth)


def _ring_steps(question: Question) -> int:
    """At least 1, so that a rate can be shared by them; one rank takes none."""
    n = max(2, question.n_ranks)
    return 2 * (n - 1) if question.collective == "all_reduce" else n if question.collective in ("broadcast", "reduce") else n - 1


def _latency_us(question: Question, algorithm: str, protocol: Protocol) -> float:
    costs, hosts = question.costs, question.n_hosts
    inside, across = HOP_US[costs.interconnect][algorithm][protocol], NETWORK_HOP_US[algorithm][protocol]
    base_us, per_host = BASE_US[algorithm][protocol], question.n_ranks / hosts
    if algorithm == "ring":
        n_steps = _ring_steps(question) if question.n_ranks > 1 else 0
        n_across = 0 if hosts == 1 else 2 * (hosts - 1) if question.collective == "all_reduce" else hosts - 1
        hop_us = max(inside, NETWORK_OVERHEAD_US[protocol]) if hosts > 1 else inside
        return base_us + (n_steps - n_across) * hop_us + n_across * across
    if algorithm == "tree":
        return base_us + 2 * ((per_host - 1) * inside + math.log2(hosts) * across)
    if algorithm == "nvlstree":
        return base_us + inside + 2 * math.log2(hosts) * across
    return base_us + inside + (across if hosts > 1 else 0)


def _algorithm_gb_per_s(question: Question, algorithm: str, protocol: Protocol) -> float:
    """S over the time that its bytes take; 0 where the pair does not exist."""
    costs, hosts, n = question.costs, question.n_hosts, question.n_ranks
    rate = (costs.tuner_rate_bps or costs.rate_bps) / 8e9
    row, column = costs.generation, 0 if hosts == 1 else 1 if hosts == 2 else 2
    channels, reduces = costs.channels, question.collective == "all_reduce"
    if algorithm in ("nvls", "nvlstree"):
        if n <= 2 or (algorithm == "nvlstree") != (hosts > 1) or (hosts > 1 and not reduces):
            return 0
        rate *= NVLS_EFFICIENCY[row] * (channels - 1) / channels
        rate *= 2 if reduces else (n - 1) / n
        return rate * n / _ring_steps(question)
    if algorithm == "ring":
        if protocol == LL:
            rate = min(MOST_LL[row][column], rate * 0.5)
        elif protocol == LL128:
            rate = min(0.92 * rate, channels * CHANNEL_RING_LL128[row][column])
        return rate * n / _ring_steps(question)
    if not reduces:
        return 0
    if protocol == LL:
        rate = min(rate / 3.8, MOST_LL[row][column])
    elif protocol == LL128:
        rate = min(rate * (7 / 9 if hosts == 1 else 120 / 128), channels * CHANNEL_TREE_LL128[row][column])
    else:
        rate = min(0.92 * rate, channels * CHANNEL_TREE[row][column])
    return rate * 0.5
