"""Costs: what an accelerator's own work adds to a call, in a dozen physical parameters.

A call is launched (``launch``; with Simple also ``setup``: buffers' addresses are exchanged, fences paid; with grouped sends and
receives ``group_setup``: a list of work for each peer is read).  Then each message

    is issued                 message, one after the other
    leaves the rank           at rate (Simple), 15/16 of it (LL128: 120 of 128 bytes are data), ll_rate (LL: a flag for each
                              4 bytes); p2p_rate where sends and receives are grouped; nvls_rate where the switch reduces
    is seen by its receiver   after step, ll_step or ll128_step; LL's grows by block_step as the message fills a thread block

and what a rank writes to its own memory by itself, rather than a peer into it, takes copy_rate: its own block of an
all-gather, the last reduction of a reduce-scatter or all-reduce, the block that alltoall keeps.  The rate is that of all
``channels``, a thread block each; a call across hosts has only ``host_channels`` of them, half as many again with CollNet.  In a
ring all do the same and are one flow here.  In a tree or CollNet's chain a rank is the head of one channel's chain and the middle
of another's, and in a pair of trees (of ``two_tree`` too, which has no chains) inner in one and a leaf in the other: so each has
its own rate and its own blocks, and the busiest is the bottleneck.  A grouped LL message has one channel's rate, as NCCL deals
short messages.  Where Simple stores straight into the user's buffer and nothing waits to be
forwarded, a receipt costs nothing; where the switch reduces, loads and stores are not issued as messages.

Between hosts a thread of the host (NCCL's proxy, one for each accelerator) hands every slot of a channel's buffer to the network
and takes every one that comes: ``network_slot`` each, one after the other, while the slots before it are on their way.  A slot is
a ring's slice, a tree's step, 128 KiB of grouped messages and of NVLS, 64 KiB of NVLSTree over four hosts or more: so that it is
there that the proxy, and not the port, is the bottleneck.

Law: integers, and a pure function of them; no times of single sizes.  The constants are NCCL's (``src/include/device.h``,
``src/enqueue.cc``, ``src/graph/connect.cc``, ``src/transport/nvls.cc``).  All rates here are of data; what flags
take on links and in buffers is in :mod:`emu.protocols.flags`.  Not modelled: what one queue pair can carry, other kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from emu.protocols.legal import Protocol, is_collnet, is_grouped, is_nvls

KIB: Final = 1024
SLICES: Final = {Protocol.SIMPLE: 1, Protocol.LL: 2, Protocol.LL128: 1}
"""Parts of a ring's block that are forwarded on their own: with LL every 8 bytes carry their flag; else a receiver waits for all,
as its fence keeps the threads that send."""
STEPS: Final = 8
"""NCCL_STEPS: slots of a connection's buffer."""
LEAST_CHUNK_BYTES: Final = 4 * KIB
SLICE_BYTES: Final = {Protocol.SIMPLE: 1024 * KIB, Protocol.LL: 32 * KIB, Protocol.LL128: 576_000}
"""Data of one slice in one channel's buffer: two steps of 512 KiB, or one step less its flags."""
STEP_BYTES: Final = 512 * KIB
TREE_CHUNKS: Final = (32, 256)
TREE_MESSAGES: Final = 500_000
"""Of a tree's block, least and most: fewer than the most where a call over many ranks would take more messages than these.
Long calls then fill the pipeline more slowly, a tenth of their time or so, and a prediction ends."""
NVLS_LEAST_CHUNK_BYTES: Final = 16 * KIB
NVLS_CHUNK_BYTES: Final = 128 * KIB
"""NVLS' chunk in a channel, which it makes smaller for short messages, so that a block has several."""
NVLS_CHUNKS: Final = 16
NVLSTREE_CHUNK_BYTES: Final = 64 * KIB
NVLSTREE_SHORTENS_FROM_HOSTS: Final = 4
"""NVLSTree's chunk in a channel, over that many hosts or more."""
GROUPED_SLOT_BYTES: Final = 128 * KIB
"""Of grouped sends and receives over a network."""
PLACED: Final = frozenset({"tree", "two_tree", "collnet_chain"})
"""Algorithms in whose channels a rank has different places: head of one chain and in the midst of another, inner and leaf."""
BLOCK_FROM_BYTES: Final = 1 * KIB
BLOCK_TO_BYTES: Final = 4 * KIB
"""An LL message of 1 KiB is four warps' work (8 bytes a thread), one of 4 KiB a full thread block of 512 threads'."""


class Generation(StrEnum):
    """Of the GPU, for NCCL's tables."""

    VOLTA = "volta"
    AMPERE = "ampere"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"


class Interconnect(StrEnum):
    """Between GPUs of a host, for NCCL's tables."""

    NVLINK = "nvlink"
    PCI = "pci"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCosts:
    """As the module says.  A rate of None is no limit of the endpoint's own.

    ``host_channels`` are those of a call across hosts, NCCL's two for each network port; None is as many as on one.
    ``network_slot`` is left out where the network's latency already has the host's work in it.
    ``protocol`` and ``tuner`` are how one is chosen: a name, or ``auto`` by ``tuner``.  ``generation``, ``interconnect``,
    ``channels`` and ``tuner_rate_bps`` (all channels' rate in NCCL's graph) are what NCCL's tuner looks at.
    """

    rate_bps: int
    launch_ps: int = 0
    message_ps: int = 0
    setup_ps: int = 0
    group_setup_ps: int = 0
    step_ps: int = 0
    ll_step_ps: int = 0
    ll128_step_ps: int = 0
    block_step_ps: int = 0
    ll_rate_bps: int | None = None
    p2p_rate_bps: int | None = None
    channel_rate_bps: int | None = None
    copy_rate_bps: int | None = None
    reduction_rate_bps: int | None = None
    nvls_setup_ps: int = 0
    nvls_rate_bps: int | None = None
    network_slot_ps: int = 0
    channels: int = 24
    host_channels: int | None = None
    generation: Generation = Generation.HOPPER
    interconnect: Interconnect = Interconnect.NVLINK
    tuner_rate_bps: int | None = None
    protocol: str = "auto"
    tuner: str = "predict"

    @property
    def buffer_bytes(self) -> int:
        """What a connection holds: the slots of all channels."""
        return STEPS * STEP_BYTES * self.channels

    def open_channels(self, algorithm: str, n_hosts: int) -> int:
        """Of a call."""
        if n_hosts == 1 or self.host_channels is None:
            return self.channels
        return min(self.channels, self.host_channels * 3 // 2 if is_collnet(algorithm) else self.host_channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """The costs of one kind of call: what an endpoint looks up once per operation.

    ``lanes``: parts of the device that work side by side, each at the rates given here.  ``slot_ps`` is the proxy's time for
    ``slot_bytes`` or less that leave the host or come to it.
    """

    launch_ps: int
    lanes: int
    message_ps: int
    rate_bps: int
    message_rate_bps: int
    step_ps: int
    block_step_ps: int
    stores_directly: bool
    slot_ps: int
    slot_bytes: int
    copy_rate_bps: int | None
    reduction_rate_bps: int | None

    def receipt_ps(self, n_bytes: int) -> int:
        """From the arrival of a message's last byte to its use."""
        if not self.block_step_ps:
            return self.step_ps
        filled = min(n_bytes, BLOCK_TO_BYTES) - BLOCK_FROM_BYTES
        return self.step_ps + max(0, self.block_step_ps * filled // (BLOCK_TO_BYTES - BLOCK_FROM_BYTES))

    def proxy_ps(self, n_bytes: int) -> int:
        """What the proxy needs for a message, a slot after the other."""
        return self.slot_ps * max(1, -(-n_bytes // self.slot_bytes))


def charges(costs: EndpointCosts, collective: str, algorithm: str, protocol: str, n_hosts: int = 1) -> Charges:
    """What ``protocol`` costs where ``algorithm`` does ``collective`` over ``n_hosts``."""
    grouped, in_switch = is_grouped(collective, algorithm), is_nvls(algorithm)
    simple, ll = protocol == Protocol.SIMPLE, protocol == Protocol.LL
    rate_bps = costs.rate_bps
    if in_switch:
        rate_bps = costs.nvls_rate_bps or rate_bps
    elif grouped and simple:
        rate_bps = costs.p2p_rate_bps or rate_bps
    elif ll:
        rate_bps = costs.ll_rate_bps or rate_bps // 2
    elif not simple:
        rate_bps = rate_bps * 15 // 16
    lanes, open_channels = 1, costs.open_channels(algorithm, n_hosts)
    if algorithm in PLACED:
        lanes, rate_bps = open_channels, rate_bps // costs.channels
    elif not in_switch and not grouped:
        rate_bps = rate_bps * open_channels // costs.channels
    step_ps = costs.step_ps if simple else costs.ll_step_ps if ll else costs.ll128_step_ps
    return Charges(
        launch_ps=costs.launch_ps
        + (costs.nvls_setup_ps if in_switch else costs.setup_ps if simple else 0)
        + (costs.group_setup_ps if grouped else 0),
        lanes=lanes,
        message_ps=0 if in_switch else costs.message_ps,
        rate_bps=rate_bps,
        message_rate_bps=min(rate_bps, costs.channel_rate_bps or rate_bps) if ll and grouped else rate_bps,
        step_ps=step_ps,
        block_step_ps=costs.block_step_ps if ll else 0,
        stores_directly=simple,
        slot_ps=costs.network_slot_ps,
        slot_bytes=slot_bytes(collective, algorithm, protocol, n_hosts),
        copy_rate_bps=costs.copy_rate_bps,
        reduction_rate_bps=costs.reduction_rate_bps,
    )


def slot_bytes(collective: str, algorithm: str, protocol: str, n_hosts: int) -> int:
    """Data of what a channel gives the network at a time."""
    if is_nvls(algorithm):
        shortens = algorithm == "nvlstree" and n_hosts >= NVLSTREE_SHORTENS_FROM_HOSTS
        return NVLSTREE_CHUNK_BYTES if shortens else NVLS_CHUNK_BYTES
    if is_grouped(collective, algorithm):
        return GROUPED_SLOT_BYTES
    most_bytes = SLICE_BYTES[Protocol(protocol)]
    return most_bytes if algorithm not in PLACED else min(most_bytes, STEP_BYTES)


def slice_bytes(
    costs: EndpointCosts,
    collective: str,
    algorithm: str,
    protocol: str,
    block_bytes: int,
    *,
    n_blocks: int = 1,
    n_ranks: int = 1,
    n_hosts: int = 1,
) -> int:
    """How a block is cut: in slices, each at most what the channels' buffers take; grouped messages only by those.

    The ``n_blocks`` of a tree or a chain are dealt over the channels, and go step by step through one channel's buffer.
    """
    its_slot_bytes = slot_bytes(collective, algorithm, protocol, n_hosts)
    if is_nvls(algorithm):
        return max(NVLS_LEAST_CHUNK_BYTES, min(block_bytes // NVLS_CHUNKS, its_slot_bytes * costs.channels))
    if algorithm in PLACED:
        its_channels = max(1, costs.open_channels(algorithm, n_hosts) // n_blocks)
        step_bytes = min(-(-block_bytes // its_channels), its_slot_bytes)
        least, most = TREE_CHUNKS
        n_chunks = its_channels * min(most, max(least, TREE_MESSAGES // (2 * n_ranks * n_blocks * its_channels)))
        return max(LEAST_CHUNK_BYTES, step_bytes, -(-block_bytes // n_chunks))
    most = SLICE_BYTES[Protocol(protocol)] * costs.channels
    share = block_bytes if is_grouped(collective, algorithm) else -(-block_bytes // SLICES[Protocol(protocol)])
    return max(LEAST_CHUNK_BYTES, min(share, most))
