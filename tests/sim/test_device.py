"""The costs of an accelerator's own work: closed forms, exactly, and the same under both drivers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emu.drivers.choice import predict_ps
from emu.errors import ConfigError, RankFailed
from emu.protocols.costs import EndpointCosts
from emu.rank import Rank
from emu.testing import emulated_in_process, one_actor_per_node, simulated
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology

BYTE_PER_PS = 8 * 10**12
LATENCY_PS = 1000
N_BYTES = 4096
"""Of a message: one MTU, so that a link adds its own time for it once per hop."""
HOP_PS = LATENCY_PS + 2 * N_BYTES
"""What two links of a byte per ps take after a slower sender's last byte."""
COSTS = EndpointCosts(
    rate_bps=BYTE_PER_PS // 2,
    p2p_rate_bps=BYTE_PER_PS // 4,
    ll_rate_bps=BYTE_PER_PS // 8,
    channel_rate_bps=BYTE_PER_PS // 16,
    copy_rate_bps=BYTE_PER_PS // 2,
    launch_ps=700,
    setup_ps=5000,
    message_ps=11,
    step_ps=300,
    ll_step_ps=30,
    ll128_step_ps=100,
    block_step_ps=9,
)


def star(n_ranks: int, costs: EndpointCosts | None, host_size: int = 1) -> Topology:
    """A byte per ps and 1000 ps from rank to rank."""
    settings = {"ranks": str(n_ranks), "rate": "1000GB/s", "latency": f"{LATENCY_PS}ps", "host_size": str(host_size)}
    return replace(load_fabric("star", settings), endpoint=costs)


def collective(rank: Rank, name: str, count: int, options: dict[str, Any]) -> int:
    """Model time of one call over bytes; ``count`` as NCCL has it."""
    n = rank.world_size
    whole = np.ones(count * n, dtype=np.uint8)
    match name:
        case "all_reduce":
            work = rank.comm.all_reduce(np.ones(count, dtype=np.uint8), np.empty(count, dtype=np.uint8), **options)
        case "all_gather":
            work = rank.comm.all_gather(np.ones(count, dtype=np.uint8), whole, **options)
        case "reduce_scatter":
            work = rank.comm.reduce_scatter(whole, np.empty(count, dtype=np.uint8), **options)
        case _:
            work = rank.comm.alltoall(whole, np.empty_like(whole), **options)
    return work.completed_ps


def time_ps(name: str, n_ranks: int, count: int, costs: EndpointCosts | None = COSTS, **options: Any) -> int:
    outcome = simulated(star(n_ranks, costs), collective, name, count, {"algorithm": "ring", **options})
    return max(outcome.results)


@pytest.mark.parametrize(
    ("protocol", "bytes_over_ps", "setup_ps", "receipt_ps"),
    [("simple", 2, 5000, 300), ("ll128", 2, 0, 100), ("ll", 8, 0, 30 + 9)],
)
@pytest.mark.parametrize("n_ranks", [2, 3, 5])
def test_ring_all_reduce(n_ranks: int, protocol: str, bytes_over_ps: int, setup_ps: int, receipt_ps: int) -> None:
    """launch + 2(n-1) (message + bytes / rate + way + receipt) + the one write of the rank's own block, to the picosecond."""
    pace_ps = N_BYTES * bytes_over_ps if protocol != "ll128" else -(-N_BYTES * 2 * 16 // 15)
    hops = 2 * (n_ranks - 1)
    last_ps = receipt_ps if protocol != "simple" else 0  # which stores into the user's buffer, and nobody waits for it
    expected_ps = (
        700 + setup_ps + hops * (11 + pace_ps + HOP_PS) + (hops - 1) * receipt_ps + last_ps + 2 * N_BYTES  # copy_rate
    )
    assert time_ps("all_reduce", n_ranks, N_BYTES * n_ranks, protocol=protocol) == expected_ps


def test_a_reduction_that_is_not_fused_costs_its_rate() -> None:
    """reduction_rate adds bytes / rate for every message that is reduced."""
    slow = replace(COSTS, reduction_rate_bps=BYTE_PER_PS // 4)
    fused_ps = time_ps("reduce_scatter", 4, N_BYTES, protocol="simple")
    assert time_ps("reduce_scatter", 4, N_BYTES, slow, protocol="simple") - fused_ps == 3 * 4 * N_BYTES


def test_alltoall_issues_one_message_after_the_other() -> None:
    """Simple: the block that stays is written, then n-1 messages leave at p2p_rate; a receipt into the user's buffer is free."""
    n = 4
    expected_ps = 700 + 5000 + 2 * N_BYTES + (n - 1) * (11 + 4 * N_BYTES) + HOP_PS
    assert time_ps("alltoall", n, N_BYTES, algorithm="direct", protocol="simple") == expected_ps


def test_a_grouped_ll_message_has_one_channels_rate() -> None:
    """LL: messages are issued at ll_rate, and each comes at channel_rate, half of it."""
    n = 4
    issues_ps = (n - 1) * (11 + 8 * N_BYTES)
    expected_ps = 700 + 2 * N_BYTES + issues_ps + 8 * N_BYTES + HOP_PS + 39
    assert time_ps("alltoall", n, N_BYTES, algorithm="direct", protocol="ll") == expected_ps


def test_long_blocks_hide_receipts_with_ll_alone() -> None:
    """A ring's LL block goes in two slices, so that what a receipt takes hides behind the other slice; Simple waits for all."""
    size = 1 << 20
    for protocol, hides in (("ll", True), ("simple", False)):
        costs = replace(COSTS, ll_step_ps=20_000, step_ps=20_000, block_step_ps=0)
        slower = replace(costs, ll_step_ps=30_000, step_ps=30_000)
        gain_ps = time_ps("all_gather", 8, size // 8, slower, protocol=protocol) - time_ps(
            "all_gather", 8, size // 8, costs, protocol=protocol
        )
        assert gain_ps == (10_000 if hides else 6 * 10_000)


@pytest.mark.parametrize(("n_ranks", "sends"), [(2, 1), (4, 3)])
def test_a_trees_rate_is_that_of_its_busiest_channel(n_ranks: int, sends: int) -> None:
    """Two channels of a 16th of a byte per ps, a tree each: a long call takes the sends of an inner rank in one of them, up and
    to both children (over two ranks one), though each rank has a leaf's part in the other; filling the pipeline costs little."""
    costs = EndpointCosts(rate_bps=BYTE_PER_PS // 4, channels=4, host_channels=2, protocol="simple")
    found_ps = predict_ps(star(n_ranks, costs), "all_reduce", "tree", 1 << 28, tuple(range(n_ranks)), 0)
    busiest_ps = sends * (1 << 27) * 16
    assert busiest_ps <= found_ps <= 1.05 * busiest_ps


SLOT_BYTES = 128 << 10
PROXIED = replace(COSTS, network_slot_ps=10 * SLOT_BYTES, copy_rate_bps=None)
"""A proxy that takes longer over a slot than the line and the accelerator do."""


def proxied_ps(n_ranks: int, n_slots: int, costs: EndpointCosts = PROXIED, host_size: int = 1) -> int:
    """Of an alltoall with that many slots for each peer."""
    members = tuple(range(n_ranks))
    size = n_slots * SLOT_BYTES * n_ranks
    return predict_ps(star(n_ranks, costs, host_size), "alltoall", "direct", size, members, 0)


@pytest.mark.parametrize(("n_ranks", "n_slots"), [(2, 8), (4, 8), (3, 1)])
def test_a_proxy_does_one_slot_after_the_other(n_ranks: int, n_slots: int) -> None:
    """Where it is slower than all else a call takes the proxy's time for every slot that leaves the host and every one that
    comes, from when the first message is issued; the proxies of several hosts work at the same time."""
    issued_ps = 700 + 5000 + 11
    assert proxied_ps(n_ranks, n_slots) == issued_ps + 2 * (n_ranks - 1) * n_slots * PROXIED.network_slot_ps


def test_a_fast_proxy_costs_a_slot_at_either_end() -> None:
    """A proxy that keeps up delays a message by its first slot where it leaves and by its last where it comes."""
    fast = replace(PROXIED, network_slot_ps=100)
    assert proxied_ps(2, 8, fast) - proxied_ps(2, 8, replace(PROXIED, network_slot_ps=0)) == 2 * 100


def test_inside_a_host_there_is_no_proxy() -> None:
    """What stays in a host costs no slot."""
    assert proxied_ps(4, 8, host_size=4) == proxied_ps(4, 8, replace(PROXIED, network_slot_ps=0), host_size=4)


def test_no_costs_no_difference() -> None:
    """An endpoint whose only number is a rate far above the links' takes the links' time, but for the order of its messages."""
    free = EndpointCosts(rate_bps=BYTE_PER_PS * 1000)
    without_ps = time_ps("all_reduce", 4, 4 * N_BYTES, None)
    assert 0 <= time_ps("all_reduce", 4, 4 * N_BYTES, free, protocol="simple") - without_ps <= 6 * 5


@pytest.mark.parametrize(
    ("name", "algorithm"), [("all_reduce", "ring"), ("all_reduce", "tree"), ("alltoall", "direct"), ("all_gather", "direct")]
)
@pytest.mark.parametrize("slot_ps", [0, 2000])
def test_both_drivers_agree(tmp_path: Path, slot_ps: int, name: str, algorithm: str) -> None:
    """An emulated run has the simulator's times to the picosecond, whatever protocol the tuner takes."""
    fabric, options = star(3, replace(COSTS, network_slot_ps=slot_ps)), {"algorithm": algorithm}
    expected = simulated(fabric, collective, name, 5000, options)
    found = emulated_in_process(
        fabric,
        collective,
        name,
        5000,
        options,
        owner=one_actor_per_node(fabric),
        dilation=3000,
        page=tmp_path / "floors",
    )
    assert found.results == expected.results


def test_the_split_of_a_call_is_exact() -> None:
    """Launch, issue, receipt and copies are the endpoint's share; all causes sum to the call's time."""

    def splits(rank: Rank) -> tuple[int, int]:
        work = rank.comm.all_reduce(np.ones(4 * N_BYTES, dtype=np.uint8), algorithm="ring", protocol="simple")
        operation = work.operations[0]
        return sum(operation.split_ps), work.completed_ps

    assert all(total_ps == completed_ps for total_ps, completed_ps in simulated(star(4, COSTS), splits).results)


def test_protocols_need_costs_and_must_be_legal() -> None:
    """A protocol is refused by name where nothing has costs, and where the call cannot use it."""
    with pytest.raises(RankFailed, match="no \\[endpoint\\]"):
        time_ps("all_reduce", 2, 64, None, protocol="ll")
    with pytest.raises(RankFailed, match="ll128 does not go with direct alltoall"):
        time_ps("alltoall", 2, 64, algorithm="direct", protocol="ll128")
    with pytest.raises(RankFailed) as caught:
        time_ps("all_reduce", 2, 64, protocol="fast")
    assert isinstance(caught.value.cause, ConfigError)
