"""The chunk model against a packet-by-packet FIFO oracle: exact where it says so, within a stated band elsewhere."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from emu.fabric.frame import Frame
from emu.fabric.link import LinkMachine
from emu.topologies.graph import Link
from emu.units import duration_ps

MTU_BYTES = 4096
GBPS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """``n_packets`` full MTUs of a flow, whole at the input of the first link of ``path`` at ``time_ps``."""

    time_ps: int
    path: tuple[int, ...]
    flow: int
    n_packets: int


def links(*rates_gbps: int, latency_ps: int = 1_000_000) -> list[Link]:
    return [
        Link(name=f"l{index}", source=0, target=1, rate_bps=rate * GBPS, latency_ps=latency_ps, mtu_bytes=MTU_BYTES)
        for index, rate in enumerate(rates_gbps)
    ]


def packet_oracle(fabric: Sequence[Link], chunks: Sequence[Chunk]) -> list[int]:
    """When each chunk's last packet arrives: every packet is stored, forwarded and served first come first served."""
    free_ps = [0] * len(fabric)
    done_ps = [0] * len(chunks)
    calendar = [
        (chunk.time_ps, chunk.path[0], number, packet, 0)
        for number, chunk in enumerate(chunks)
        for packet in range(chunk.n_packets)
    ]
    heapq.heapify(calendar)
    while calendar:
        now_ps, index, number, packet, hop = heapq.heappop(calendar)
        link = fabric[index]
        free_ps[index] = max(now_ps, free_ps[index]) + duration_ps(MTU_BYTES, link.rate_bps)
        due_ps = free_ps[index] + link.latency_ps
        path = chunks[number].path
        if hop + 1 < len(path):
            heapq.heappush(calendar, (due_ps, path[hop + 1], number, packet, hop + 1))
        else:
            done_ps[number] = max(done_ps[number], due_ps)
    return done_ps


def chunk_model(fabric: Sequence[Link], chunks: Sequence[Chunk]) -> list[int]:
    """The same through LinkMachines."""
    machines = [LinkMachine(link=link, index=index, seed=1) for index, link in enumerate(fabric)]
    done_ps = [0] * len(chunks)
    calendar = []
    for number, chunk in enumerate(chunks):
        frame = Frame(
            chunk.path,
            source_rank=0,
            target_rank=1,
            flow=chunk.flow,
            route_flow=0,
            payload_bytes=chunk.n_packets * MTU_BYTES,
            head_ps=chunk.time_ps,
        )
        calendar.append((chunk.time_ps, chunk.path[0], number, frame))
    heapq.heapify(calendar)
    while calendar:
        now_ps, index, number, frame = heapq.heappop(calendar)
        machines[index].receive(frame, now_ps)
        frame.hop += 1
        if frame.hop < len(frame.path):
            heapq.heappush(calendar, (frame.head_ps, frame.path[frame.hop], number, frame))
        else:
            done_ps[number] = frame.tail_ps
    for machine in machines:
        machine.validate()
    return done_ps


@pytest.mark.parametrize(
    "rates_gbps",
    [(100,), (100, 100, 100), (400, 100), (100, 400), (200, 400, 100, 400), (400, 200, 100), (100, 200, 400)],
)
def test_one_flow_is_exact_over_any_hops(rates_gbps: tuple[int, ...]) -> None:
    """One flow of several chunks arrives packet by packet and chunk by chunk at the same picosecond."""
    fabric = links(*rates_gbps)
    path = tuple(range(len(fabric)))
    chunks = [Chunk(time_ps=0, path=path, flow=0, n_packets=n) for n in (16, 3, 1, 40, 16)]
    assert chunk_model(fabric, chunks) == packet_oracle(fabric, chunks)


@pytest.mark.parametrize(("n_inputs", "rate_gbps"), [(2, 200), (4, 100)])
def test_fan_in_of_equals_is_exact(n_inputs: int, rate_gbps: int) -> None:
    """2 x 200 -> 400 and 4 x 100 -> 400 end when the packets do, to the picosecond, chunk after chunk."""
    fabric = links(*[rate_gbps] * n_inputs, 400)
    chunks = [
        Chunk(time_ps=0, path=(source, n_inputs), flow=source, n_packets=16) for _ in range(5) for source in range(n_inputs)
    ]
    assert max(chunk_model(fabric, chunks)) == max(packet_oracle(fabric, chunks))


def test_fan_in_and_out_again_is_exact() -> None:
    """4 x 100 -> 400 -> 4 x 100 ends when the packets do, to the picosecond: the middle is no bottleneck."""
    fabric = links(*[100] * 4, 400, *[100] * 4)
    chunks = [Chunk(time_ps=0, path=(flow, 4, 5 + flow), flow=flow, n_packets=16) for _ in range(5) for flow in range(4)]
    assert max(chunk_model(fabric, chunks)) == max(packet_oracle(fabric, chunks))


def random_case(seed: int, chunk_packets: int) -> tuple[list[Link], list[Chunk]]:
    """Up to 8 flows over random paths of a 9-link, three-stage fabric; each sends 64 packets in equal chunks."""
    choose = random.Random(seed)
    fabric = links(*(choose.choice((100, 200, 400)) for _ in range(9)))
    chunks = []
    for flow in range(choose.randint(2, 8)):
        path = tuple(3 * stage + choose.randrange(3) for stage in range(choose.randint(1, 3)))
        start_ps = choose.randrange(20_000_000)
        chunks += [Chunk(time_ps=start_ps, path=path, flow=flow, n_packets=chunk_packets) for _ in range(64 // chunk_packets)]
    return fabric, chunks


@pytest.mark.parametrize(
    ("chunk_packets", "most_makespan_error", "most_chunk_error"), [(16, 0.05, 0.15), (4, 0.01, 0.05), (1, 0.001, 0.001)]
)
def test_random_fabrics_stay_in_the_stated_band(chunk_packets: int, most_makespan_error: float, most_chunk_error: float) -> None:
    """On random shared paths, makespan and ends of chunks are off by no more than stated in 95 of 100 cases."""
    makespan_errors = []
    chunk_errors = []
    for seed in range(40):
        fabric, chunks = random_case(seed, chunk_packets)
        wanted_ps = packet_oracle(fabric, chunks)
        got_ps = chunk_model(fabric, chunks)
        makespan_errors.append(abs(max(got_ps) / max(wanted_ps) - 1))
        chunk_errors += [abs(got / wanted - 1) for got, wanted in zip(got_ps, wanted_ps, strict=True)]
    makespan_error, chunk_error = (sorted(errors)[int(0.95 * len(errors))] for errors in (makespan_errors, chunk_errors))
    print(f"chunks of {chunk_packets} packets, p95: makespan off by {makespan_error:.2%}, a chunk by {chunk_error:.2%}")
    assert makespan_error <= most_makespan_error
    assert chunk_error <= most_chunk_error
