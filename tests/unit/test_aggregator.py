"""The part of a switch that combines: when what goes out, with which bytes, and what holds it back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emu.collectives.recipe import Plan
from emu.collectives.schedule import Unit
from emu.fabric.account import FIRST_START_PS, LAST_RANK, LAST_START_PS, opened
from emu.fabric.aggregator import Aggregator
from emu.fabric.frame import Frame

SWITCH = 3
PLAN = Plan("sum", "int32", (Unit(((0, 0), (1, 0)), ((0, 0), (2, 0))),), {(0, 0): (0, 0), (1, 0): (0, 1)})
"""What ranks 0 and 1 send goes, added, to ranks 0 and 2."""


class Network:
    """Writes down what the switch sends: (target, head, tail, values), and the credits that it returns."""

    recorder = None

    def __init__(self, window_bytes: int) -> None:
        self.window = window_bytes
        self.sent: list[Frame] = []
        self.credits: list[tuple[int, int]] = []

    def path(self, source: int, target: int, route_flow: int) -> tuple[int, ...]:
        return (10 * source + target,)

    def window_bytes(self, source: int, target: int) -> int:
        return self.window

    def inject(self, frame: Frame, now_ps: int) -> int:
        assert frame.head_ps == now_ps
        self.sent.append(frame)
        return now_ps

    def send_credit(self, frame: Frame, n_bytes: int, now_ps: int) -> None:
        self.credits.append((frame.source_rank, n_bytes))


def switch(window_bytes: int = 1 << 20) -> tuple[Aggregator, Network, list[Any]]:
    network, clashes = Network(window_bytes), list[Any]()
    found = Aggregator(
        address=SWITCH,
        n_ranks=3,
        network=network,  # type: ignore[arg-type]
        plan=lambda recipe: PLAN,
        clash=lambda *what: clashes.append(what),
    )
    return found, network, clashes


def chunk(source: int, head_ps: int, tail_ps: int, *values: int, number: int = 0, digest: int = 7, started_ps: int = 0) -> Frame:
    payload = np.array(values, dtype=np.int32)
    frame = Frame(
        (source,), source_rank=source, target_rank=SWITCH, flow=source * 64, route_flow=0, payload_bytes=payload.nbytes,
        head_ps=head_ps, operation=5, chunk=number, digest=digest, payload=payload, account=opened(source, started_ps),
    )  # fmt: skip
    frame.tail_ps = tail_ps
    return frame


def test_it_goes_on_with_the_last_head_and_ends_with_the_last_tail() -> None:
    """Reduced in the order of the unit, to each output once; the account is that of the last tail, with who started last."""
    machine, network, _ = switch()
    machine.receive(chunk(1, 10, 90, 3, 4, started_ps=2), 10)
    assert not network.sent
    machine.receive(chunk(0, 25, 60, 1, 2, started_ps=1), 25)
    assert [(frame.target_rank, frame.head_ps, frame.tail_ps) for frame in network.sent] == [(0, 25, 90), (2, 25, 90)]
    assert all(frame.payload.tolist() == [4, 6] and frame.source_rank == SWITCH for frame in network.sent)
    account = network.sent[0].account
    assert (account[FIRST_START_PS], account[LAST_START_PS], account[LAST_RANK]) == (1, 2, 1)
    machine.validate()


def test_chunks_are_combined_apart() -> None:
    """The second chunk of one rank meets the second of the other, whatever came before."""
    machine, network, _ = switch()
    for source, number, value in ((0, 1, 10), (0, 0, 1), (1, 1, 20), (1, 0, 2)):
        machine.receive(chunk(source, 0, 0, value, number=number), 0)
    assert [(frame.chunk, frame.payload.tolist()) for frame in network.sent[::2]] == [(1, [30]), (0, [3])]


def test_different_calls_are_not_combined() -> None:
    """Chunks of different digests are told of, and nothing is sent."""
    machine, network, clashes = switch()
    machine.receive(chunk(0, 0, 0, 1), 0)
    machine.receive(chunk(1, 0, 0, 1, digest=8), 0)
    assert [(address, one.source_rank, other.source_rank) for address, one, other in clashes] == [(SWITCH, 0, 1)]
    assert not network.sent


def test_credit_goes_back_when_all_outputs_have_gone() -> None:
    """A full window of one receiver holds its copy, and thereby the senders, until it has consumed; then the rest follows."""
    machine, network, _ = switch(window_bytes=8)
    for number in range(2):
        for source in (0, 1):
            machine.receive(chunk(source, 0, 0, 1, 2, number=number), 0)
    assert [frame.target_rank for frame in network.sent] == [0, 2]
    assert network.credits == [(0, 8), (1, 8)]
    for target in (0, 2):
        credit = chunk(target, 50, 50)
        credit.credit_bytes = 8
        machine.receive(credit, 50)
        assert len(network.credits) == (2 if target == 0 else 4)
    assert [(frame.target_rank, frame.chunk, frame.head_ps) for frame in network.sent[2:]] == [(0, 1, 50), (2, 1, 50)]
    machine.validate()


def test_what_is_half_combined_is_no_rest() -> None:
    """While an input is missing the machine says that it is not done; a new run forgets it."""
    machine, _, _ = switch()
    machine.receive(chunk(0, 0, 0, 1), 0)
    with pytest.raises(AssertionError):
        machine.validate()
    machine.forget()
    machine.validate()


def test_runs_without_data_move_none() -> None:
    """Where chunks have no payload, times and sizes are all there is."""
    machine, network, _ = switch()
    for source in (0, 1):
        frame = chunk(source, 0, 40, 1)
        frame.payload = None
        machine.receive(frame, 0)
    assert [(frame.payload, frame.payload_bytes, frame.tail_ps) for frame in network.sent] == [(None, 4, 40)] * 2
