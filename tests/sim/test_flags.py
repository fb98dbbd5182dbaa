"""Flags of LL and LL128 take room on every link, in ports, windows and credits; data, and what is counted of it, has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from packet_cases import credited, dropping, switching, traffic_class
from simulated import session

from emu.protocols.costs import EndpointCosts
from emu.rank import Rank
from emu.testing import emulated_in_process, one_actor_per_node, simulated
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology
from emu.topologies.switching import Recovery, Switching

BYTE_PER_PS = 8 * 10**12
LATENCY_PS = 1000
MTU_BYTES = 4096
N_BYTES = 15 * MTU_BYTES
FAST = EndpointCosts(rate_bps=1000 * BYTE_PER_PS, ll_rate_bps=1000 * BYTE_PER_PS)
"""A sender far faster than the link in any protocol."""
FLAGGED_BYTES = {"simple": N_BYTES, "ll128": N_BYTES * 16 // 15, "ll": 2 * N_BYTES}
CLASSES = {
    "pause": traffic_class(),
    "credit": credited(),
    "go back n": dropping(Recovery.GO_BACK_N, timeout_ps=10**8),
    "selective repeat": dropping(Recovery.SELECTIVE_REPEAT, timeout_ps=10**8),
}


def star(n_ranks: int = 2, rules: Switching | None = None, **settings: str) -> Topology:
    """A byte per ps and 1000 ps from rank to rank."""
    its = {"ranks": str(n_ranks), "rate": "1000GB/s", "latency": f"{LATENCY_PS}ps", **settings}
    return replace(load_fabric("star", its), endpoint=FAST, switching=rules)


def gathered(rank: Rank, n_bytes: int, protocol: str) -> tuple[int, bool]:
    """When an all_gather of so many bytes from each rank is over, and whether all of them are right."""
    blocks = [((np.arange(n_bytes) * 7 + source) % 251).astype(np.uint8) for source in range(rank.world_size)]
    whole = np.empty(n_bytes * rank.world_size, np.uint8)
    work = rank.comm.all_gather(blocks[rank.index], whole, algorithm="ring", protocol=protocol)
    return work.completed_ps, bool((whole == np.concatenate(blocks)).all())


@pytest.mark.parametrize("protocol", FLAGGED_BYTES)
def test_a_link_that_is_slower_than_its_sender_takes_data_and_flags(protocol: str) -> None:
    """Over two links a message takes 2 L, its bytes with their flags once at the link's rate, and an MTU more: LL twice its data,
    LL128 16/15 of it."""
    expected_ps = LATENCY_PS + FLAGGED_BYTES[protocol] + MTU_BYTES
    assert simulated(star(), gathered, N_BYTES, protocol).results == [(expected_ps, True)] * 2


@pytest.mark.parametrize("rules", [None, switching(quantum_bytes=MTU_BYTES)], ids=["fluid", "packets"])
@pytest.mark.parametrize("protocol", FLAGGED_BYTES)
def test_the_wire_counts_flags_and_the_payload_does_not(protocol: str, rules: Switching | None) -> None:
    """Each link has carried its data as payload, and on the wire flags and a header for every MTU of both, no more packets."""
    with session(star(rules=rules, header="100B")) as opened:
        assert all(is_right for _, is_right in opened.run(gathered, N_BYTES, protocol))
        for link in opened.counters().links.values():
            headers = -(-FLAGGED_BYTES[protocol] // MTU_BYTES)
            assert (link.payload_bytes, link.wire_bytes) == (N_BYTES, FLAGGED_BYTES[protocol] + 100 * headers)


@pytest.mark.parametrize("rules", [None, switching(quantum_bytes=MTU_BYTES)], ids=["fluid", "packets"])
def test_a_window_holds_flags_too(rules: Switching | None) -> None:
    """A narrow window on a long way lets through its bytes, of which LL's flags are half: a call takes twice the round trips."""
    far = star(rules=rules, window="16KiB", latency="1us")
    found_ps, data_ps = (simulated(far, gathered, 8 * N_BYTES, protocol).results[0][0] for protocol in ("ll", "simple"))
    assert found_ps / data_ps == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("rules", [None, *CLASSES])
@pytest.mark.parametrize("protocol", ["ll", "ll128"])
def test_both_drivers_agree_on_flags(tmp_path: Path, protocol: str, rules: str | None) -> None:
    """An emulated run whose links are the bottleneck has the simulator's times to the picosecond, as fluid or in packets."""
    fabric = star(3, None if rules is None else switching(CLASSES[rules], quantum_bytes=MTU_BYTES))
    expected = simulated(fabric, gathered, 10_001, protocol)
    found = emulated_in_process(
        fabric, gathered, 10_001, protocol, owner=one_actor_per_node(fabric), dilation=3000, page=tmp_path / "floors"
    )
    assert found.results == expected.results
    assert all(is_right for _, is_right in found.results)


@pytest.mark.parametrize("rules", [None, "go back n", "selective repeat"])
def test_what_is_lost_comes_again_with_its_flags(rules: str | None) -> None:
    """Under loss all data arrives once and right, and every packet that is sent again takes its flags' room again."""
    fabric = star(3, None if rules is None else switching(CLASSES[rules], quantum_bytes=MTU_BYTES))
    with session(fabric, impair=("*=loss,probability=0.05,timeout=1us",)) as opened:
        assert all(is_right for _, is_right in opened.run(gathered, N_BYTES, "ll"))
        sent = opened.counters().links.values()
        engine = opened._backend._simulation.engine  # type: ignore[attr-defined]
    assert sum(link.lost_packets for link in sent) > 0
    if rules is None:
        assert sum(link.resent_bytes for link in sent) >= MTU_BYTES
        for link in engine.links.values():
            link.validate()
    else:
        adapters = [adapter.statistics() for adapter in engine.adapters.values()]
        resent_packets = sum(its.resent_packets for its in adapters)
        assert 0 < sum(its.resent_bytes for its in adapters) == resent_packets * MTU_BYTES
