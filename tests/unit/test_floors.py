"""FloorPage: what it promises, and that the promise holds under any interleaving of the processes that share it."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import combinations_with_replacement, count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.drivers.floors import FOREVER_PS, NOTHING_PS, RING, FloorPage

CHANNELS = [(0, 1, 10), (1, 0, 20), (1, 2, 30), (2, 1, 40)]
"""A chain of three processes: (sender, receiver, latency)."""


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[tuple[FloorPage, FloorPage]]:
    """Two processes' mappings of one page, cleared."""
    path = tmp_path / "page"
    FloorPage.create(path, 3, len(CHANNELS))
    mapped = FloorPage(path, 3, CHANNELS), FloorPage(path, 3, CHANNELS)
    mapped[0].clear()
    yield mapped
    for page in mapped:
        page.close()


def test_a_page_is_not_made_twice(tmp_path: Path) -> None:
    """A page of an earlier session is never taken over."""
    FloorPage.create(tmp_path / "page", 1, 1)
    with pytest.raises(FileExistsError):
        FloorPage.create(tmp_path / "page", 1, 1)


def test_what_one_process_writes_the_other_reads(pages: tuple[FloorPage, FloorPage]) -> None:
    """Both mappings are the same memory."""
    pages[0].floors[1] = 7
    pages[0].record_send(2, 99)
    assert int(pages[1].floors[1]) == 7
    assert int(pages[1].sent[2]) == 1
    assert int(pages[1].ring[2, 0]) == 99


def test_with_no_event_anywhere_everything_is_safe(pages: tuple[FloorPage, FloorPage]) -> None:
    """Idle processes and empty channels bound nothing."""
    assert pages[1].safe_until_ps(0, 20) >= FOREVER_PS


def test_a_floor_bounds_the_others_by_their_inward_latency(pages: tuple[FloorPage, FloorPage]) -> None:
    """Process 0 at 100 can reach 1 at 110 at the earliest, and itself not before its way out and back."""
    pages[0].floors[0] = 100
    assert pages[1].safe_until_ps(1, 10) == 110
    assert pages[1].safe_until_ps(2, 30) == 130
    assert pages[1].safe_until_ps(0, 20) == 100 + 10 + 20


def test_a_link_inside_a_process_is_the_shortest_way_back(tmp_path: Path) -> None:
    """A process with a link to itself may go no further than that link's latency beyond its floor; 1 ps at the least."""
    FloorPage.create(tmp_path / "page", 2, 2)
    for latency_ps, way_back_ps in ((5, 5), (0, 1)):
        page = FloorPage(tmp_path / "page", 2, [(0, 0, latency_ps), (0, 1, 50)])
        page.clear()
        page.floors[0] = 100
        assert page.safe_until_ps(0, 1) == 100 + way_back_ps
        page.close()


def test_frames_to_me_bound_me_by_when_they_are_due(pages: tuple[FloorPage, FloorPage]) -> None:
    """A frame under way to the reader counts as it is, without another latency, until it is taken in."""
    pages[0].record_send(0, 450)
    pages[0].record_send(0, 500)
    assert pages[1].safe_until_ps(1, 10) == 450
    pages[1].taken[0] = 1
    assert pages[1].safe_until_ps(1, 10) == 500
    pages[1].taken[0] = 2
    assert pages[1].safe_until_ps(1, 10) >= FOREVER_PS


def test_frames_to_others_bound_me_by_a_latency_more(pages: tuple[FloorPage, FloorPage]) -> None:
    """Whoever gets a frame at 500 may send on at once, and that takes the reader's inward latency."""
    pages[0].record_send(0, 500)
    assert pages[1].safe_until_ps(2, 30) == 530
    assert pages[1].safe_until_ps(0, 20) == 520


def test_a_sender_waits_before_the_ring_is_full(pages: tuple[FloorPage, FloorPage]) -> None:
    """There is room for RING - 1 frames under way, and again as soon as one is taken in."""
    for _ in range(RING - 1):
        assert pages[0].has_room(0)
        pages[0].record_send(0, 10**6)
    assert not pages[0].has_room(0)
    pages[1].taken[0] += 1
    assert pages[0].has_room(0)


def test_the_ring_goes_round(pages: tuple[FloorPage, FloorPage]) -> None:
    """After more than RING frames the bounds are still those of the frames under way."""
    pages[0].sent[0] = pages[0].taken[0] = RING - 2
    for bound_ps in (600, 700, 800, 900):
        pages[0].record_send(0, bound_ps)
    assert pages[1].safe_until_ps(1, 10) == 600
    pages[1].taken[0] += 2
    assert pages[1].safe_until_ps(1, 10) == 800


def test_a_frame_under_way_does_not_hide_the_readers_own_way_back(pages: tuple[FloorPage, FloorPage]) -> None:
    """With a later frame under way to it, a process still goes no further than what it may itself bring about."""
    pages[0].floors[0] = 100
    pages[0].record_send(1, 900)
    assert pages[1].safe_until_ps(0, 20) == 100 + 10 + 20


def test_a_reader_overtaken_by_the_ring_trusts_nothing(pages: tuple[FloorPage, FloorPage]) -> None:
    """When so much was sent since the reader looked that bounds were overwritten, no event is safe."""
    reader = pages[1]
    _interleave(reader, lambda: pages[0].sent.__setitem__(0, RING))
    assert reader.safe_until_ps(1, 10) == NOTHING_PS


def test_quiescent_means_that_nothing_can_move(pages: tuple[FloorPage, FloorPage]) -> None:
    """An event, or a frame under way, on any process is enough to be not quiescent."""
    assert pages[1].quiescent()
    pages[0].floors[2] = 5
    assert not pages[1].quiescent()
    pages[0].floors[2] = FOREVER_PS
    pages[0].record_send(3, 50)
    assert not pages[1].quiescent()
    pages[0].clear()
    assert pages[1].quiescent()


class _Interleaved(np.ndarray):
    """An array that lets others act before it is copied or compared: between any two looks at the page."""

    before: Callable[[], Any] = staticmethod(lambda: None)

    def copy(self, order: Any = "C") -> Any:
        self.before()
        return np.asarray(self).copy()

    def __gt__(self, other: Any) -> Any:
        self.before()
        return np.asarray(self) > other


def _interleave(page: FloorPage, before: Callable[[], Any]) -> None:
    """Have ``before`` called before each of the page's three looks."""
    for name in ("taken", "floors", "sent"):
        watched = getattr(page, name).view(_Interleaved)
        watched.before = before
        setattr(page, name, watched)


def test_a_frame_on_its_way_is_seen_at_every_moment_of_a_look(tmp_path: Path) -> None:
    """0 sends to 1, which takes it in and sends on to 2: however these six stores fall between the three looks
    of process 2, it never believes that later than the second frame's arrival is safe."""
    path = tmp_path / "page"
    FloorPage.create(path, 3, len(CHANNELS))
    page = FloorPage(path, 3, CHANNELS)
    stores = (
        lambda: page.record_send(0, 500),
        lambda: page.floors.__setitem__(0, FOREVER_PS),
        lambda: page.floors.__setitem__(1, 500),
        lambda: page.taken.__setitem__(0, 1),
        lambda: page.record_send(2, 530),
        lambda: page.floors.__setitem__(1, FOREVER_PS),
    )
    for moments in combinations_with_replacement(range(4), len(stores)):
        page.clear()
        page.floors[0] = 490
        reader = FloorPage(path, 3, CHANNELS)
        looks = count()

        def due(moments: tuple[int, ...] = moments, looks: Iterator[int] = looks) -> None:
            look = next(looks)
            for moment, store in zip(moments, stores, strict=True):
                if moment == look:
                    store()

        _interleave(reader, due)
        assert reader.safe_until_ps(2, 30) <= 530, f"stores before looks {moments}"
        reader.close()
    page.close()


class _World:
    """Processes with random channels that handle events and send frames by the rules of the module, step by step.

    ``act`` runs any one process to its next visible action.  An arrival before a time that its
    receiver was told to be safe fails.
    """

    def __init__(self, path: Path, random: Random, n_sends: int) -> None:
        n = random.randint(2, 4)
        pairs = sorted({(i, (i + 1) % n) for i in range(n)} | {(random.randrange(n), random.randrange(n)) for _ in range(n)})
        self.channels = [(sender, receiver, random.choice((0, 1, 5, 20))) for sender, receiver in pairs]
        self.random = random
        self.n_sends = n_sends
        FloorPage.create(path, n, len(self.channels))
        self.pages = [FloorPage(path, n, self.channels) for _ in range(n)]
        self.pages[0].clear()
        self.calendars: list[list[int]] = [[random.randrange(100) for _ in range(random.randrange(4))] for _ in range(n)]
        self.queues: list[deque[tuple[int, int]]] = [deque() for _ in range(n)]
        self.promised_ps = [0] * n
        self.n_handled = 0
        for process, calendar in enumerate(self.calendars):
            calendar.sort()
            self.publish(process)
            _interleave(self.pages[process], self.others_act)
        self.running = [self.process(process) for process in range(n)]
        self.in_the_middle: set[int] = set()

    def publish(self, process: int) -> None:
        calendar = self.calendars[process]
        self.pages[process].floors[process] = calendar[0] if calendar else FOREVER_PS

    def act(self, n_steps: int) -> None:
        """One process that is not in the middle of a look does so many steps."""
        free = [process for process in range(len(self.running)) if process not in self.in_the_middle]
        if free:
            process = self.random.choice(free)
            self.in_the_middle.add(process)
            for _ in range(n_steps):
                next(self.running[process])
            self.in_the_middle.remove(process)

    def others_act(self) -> None:
        """In the middle of a process's look at the page, others do a few steps."""
        while self.random.random() < 0.6:
            self.act(self.random.randint(1, 6))

    def process(self, me: int) -> Iterator[None]:
        page, calendar, queue = self.pages[me], self.calendars[me], self.queues[me]
        inward_ps = max(1, min(latency for _, receiver, latency in self.channels if receiver == me))
        outward = [number for number, channel in enumerate(self.channels) if channel[0] == me]
        while True:
            counts: dict[int, int] = {}
            while queue:
                number, due_ps = queue.popleft()
                assert due_ps >= self.promised_ps[me], f"process {me} was told {self.promised_ps[me]}, and now comes {due_ps}"
                heappush(calendar, due_ps)
                counts[number] = counts.get(number, 0) + 1
            yield
            if counts:
                self.publish(me)
                yield
                for number, count in counts.items():
                    page.taken[number] += count
                    yield
            safe_ps = page.safe_until_ps(me, inward_ps)
            self.promised_ps[me] = max(self.promised_ps[me], safe_ps)
            while calendar and calendar[0] < safe_ps:
                now_ps = heappop(calendar)
                self.n_handled += 1
                for number in outward:
                    if self.n_sends and self.random.random() < 0.6:
                        self.n_sends -= 1
                        _, receiver, latency_ps = self.channels[number]
                        page.record_send(number, now_ps + latency_ps)
                        yield
                        self.queues[receiver].append((number, now_ps + latency_ps + self.random.choice((1, 2, 9))))
                        yield
            self.publish(me)
            yield


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_no_interleaving_breaks_a_promise(seed: int) -> None:
    """Whatever the order in which processes send, take in, publish and look: nothing arrives before a time called safe.

    And all of them get to the end: the rule is not only safe but lets somebody move.
    """
    random = Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        world = _World(Path(directory) / "page", random, n_sends=random.randrange(30))
        for _ in range(20_000):
            if world.pages[0].quiescent():
                break
            world.act(1)
        assert not any(world.calendars) and not any(world.queues)
        for page in world.pages:
            page.close()
