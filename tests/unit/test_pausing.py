"""Pauses of a port's queues: what is counted, and the watchdog's rule."""

from __future__ import annotations

from fractions import Fraction

from emu.fabric.counters import PortCounters
from emu.fabric.packet import Notice
from emu.fabric.pausing import Pauser, Pausers, Pausing, refresh_ps
from emu.topologies.graph import Link
from emu.topologies.switching import Discipline, Switching, TrafficClass, Watchdog

LINK = Link(name="a->b", source=0, target=1, rate_bps=400 * 10**9, latency_ps=10**6)
DETECTION_PS, RESTORATION_PS = 1000, 300


def rules(*, watched: bool = True, pause_quanta: int = 65_535) -> Switching:
    return Switching(
        classes=tuple(TrafficClass(name=f"c{i}", priority=i, discipline=Discipline.PAUSE) for i in range(2)),
        quantum_bytes=4096,
        buffer_bytes=1 << 20,
        alpha=Fraction(1),
        reserved_bytes=0,
        headroom_bytes=1 << 16,
        xon_offset_bytes=0,
        receive_buffer_bytes=1 << 20,
        pause_quanta=pause_quanta,
        watchdog=Watchdog(detection_ps=DETECTION_PS, restoration_ps=RESTORATION_PS) if watched else None,
    )


def pausing(**options: int) -> tuple[Pausing, list[PortCounters]]:
    counters = [PortCounters(), PortCounters()]
    return Pausing(LINK, rules(**options), counters), counters  # type: ignore[arg-type]


def test_a_pause_frame_of_all_quanta_lasts_83_9_us_at_400g() -> None:
    """65,535 quanta of 512 bits at 400 Gbit/s; refreshes come after half of that."""
    assert 2 * refresh_ps(LINK, rules()) == 65_535 * 512 * 10**12 // (400 * 10**9) == 83_884_800


def test_pause_time_frames_and_transitions_are_counted_apart() -> None:
    """Two pauses of 5 and 50 us: two transitions, 55 us, two frames and one refresh of the longer."""
    state, counters = pausing(watched=False)
    state.stop(0, 0)
    state.resume(0, 5 * 10**6)
    state.stop(0, 10 * 10**6)
    assert state.lasting(0, 60 * 10**6) == (1, 50 * 10**6)
    state.resume(0, 60 * 10**6)
    assert (counters[0].pause_transitions, counters[0].pause_ps, counters[0].pause_frames) == (2, 55 * 10**6, 3)
    assert counters[1].pause_frames == 0


def test_a_queue_paused_for_the_detection_time_is_in_a_storm() -> None:
    """Not a picosecond earlier, only that queue, and from then on it does not count as paused."""
    state, counters = pausing()
    assert state.stop(1, 50) == 50 + DETECTION_PS
    assert state.check(49 + DETECTION_PS) == []
    assert state.check(50 + DETECTION_PS) == [1]
    assert state.in_storm == [False, True]
    assert state.since_ps == [-1, -1]
    assert counters[1].watchdog_events == 1
    assert counters[1].pause_ps == DETECTION_PS


def test_pauses_that_end_in_time_are_no_storm() -> None:
    """Each new pause starts the detection time anew."""
    state, counters = pausing()
    for start in range(0, 20 * DETECTION_PS, DETECTION_PS):
        state.stop(0, start)
        state.resume(0, start + DETECTION_PS - 1)
        assert state.check(start + DETECTION_PS - 1) == []
    assert counters[0].watchdog_events == 0


def test_a_storm_ends_when_no_pause_has_come_for_the_restoration_time() -> None:
    """Pauses within it are ignored and put the end off."""
    state, counters = pausing()
    state.stop(0, 0)
    state.check(DETECTION_PS)
    assert state.resume(0, 2000) == 2000 + RESTORATION_PS
    state.stop(0, 2100)
    assert state.since_ps[0] == -1, "ignored"
    state.check(2000 + RESTORATION_PS)
    assert state.in_storm[0], "a pause came"
    assert counters[0].watchdog_restorations == 0
    assert state.resume(0, 2400) == 2400 + RESTORATION_PS
    state.check(2400 + RESTORATION_PS)
    assert not state.in_storm[0]
    assert (counters[0].watchdog_events, counters[0].watchdog_restorations) == (1, 1)
    state.stop(0, 5000)
    assert state.since_ps[0] == 5000, "obeyed again"


def test_several_who_pause_one_sender_share_a_pause() -> None:
    """Told to stop by the first, to go on when the last is gone; other queues and links have pauses of their own."""
    told: list[tuple[int, int, int, int]] = []

    def notify(notice: Notice, now_ps: int) -> None:
        told.append((now_ps, notice.link, notice.queue, notice.value))

    pausers = Pausers(notify)
    assert pausers.stop(7, 0, Pauser.BUFFER, 1)
    assert not pausers.stop(7, 0, Pauser.RECEIVER, 2)
    assert not pausers.stop(7, 0, Pauser.BUFFER, 3)
    assert pausers.stop(7, 1, Pauser.BUFFER, 4) and pausers.stop(8, 0, Pauser.STUCK, 5)
    pausers.go_on(7, 0, Pauser.BUFFER, 6)
    pausers.go_on(7, 0, Pauser.STUCK, 7)
    pausers.go_on(7, 0, Pauser.BUFFER, 8)
    assert told == [(1, 7, 0, 1), (4, 7, 1, 1), (5, 8, 0, 1)]
    pausers.go_on(7, 0, Pauser.RECEIVER, 9)
    assert told[3:] == [(9, 7, 0, 0)]
    assert pausers.stop(7, 0, Pauser.RECEIVER, 10)
