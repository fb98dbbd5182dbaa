"""Buffer: a switch's packet memory, shared by its ports.

Accounting, in wire bytes of the link that a packet came by, by (ingress link, queue):

    reserved    of its own; filled first
    shared      up to alpha x what is free of the pool, the dynamic threshold (Choudhury and Hahne, IEEE/ACM ToN 6(2), 1998)
    headroom    ``pause`` only: what comes after the pause went out

``pause`` is accounted at the ingress: beyond the threshold its sender is paused, and what is still under way goes to
the headroom.  ``drop`` is accounted at the egress too: what would take its egress queue, in wire bytes of its own link,
beyond the threshold does not fit.  ``credit`` has input buffers of its own, outside the pool; the credits see to it that
they are never full.

Law: in = out + held, nothing is negative, and a packet of a lossless class always fits.
"""

from __future__ import annotations

from emu.topologies.switching import Discipline, Switching


class IngressQueue:
    """What one link's packets of one queue hold of the buffer."""

    __slots__ = ("headroom_bytes", "is_paused", "link", "pauses", "queue", "reserved_bytes", "shared_bytes", "used_bytes")

    def __init__(self, link: int, queue: int, reserved_bytes: int, *, pauses: bool) -> None:
        self.link = link
        self.queue = queue
        self.reserved_bytes = reserved_bytes
        self.pauses = pauses
        self.used_bytes = 0
        self.shared_bytes = 0
        self.headroom_bytes = 0
        self.is_paused = False

    def unused_bytes(self, most_bytes: int) -> int:
        """How much of ``most_bytes`` goes into what is reserved."""
        return min(most_bytes, self.reserved_bytes - (self.used_bytes - self.shared_bytes - self.headroom_bytes))


class SharedBuffer:
    """Admission to the packet memory of one node."""

    def __init__(self, switching: Switching, links: list[int]) -> None:
        self._alpha_numerator, self._alpha_denominator = switching.alpha.numerator, switching.alpha.denominator
        self._headroom_bytes = switching.headroom_bytes
        self._xon_offset_bytes = switching.xon_offset_bytes
        self.queues: dict[tuple[int, int], IngressQueue] = {}
        claimed = 0
        for link in links:
            for queue in range(switching.n_queues):
                discipline = switching.class_of(queue).discipline
                if discipline is Discipline.CREDIT:
                    continue
                pauses = discipline is Discipline.PAUSE
                self.queues[link, queue] = IngressQueue(link, queue, switching.reserved_bytes, pauses=pauses)
                claimed += switching.reserved_bytes + (switching.headroom_bytes if pauses else 0)
        self.pool_bytes = max(0, switching.buffer_bytes - claimed)
        self.pool_used_bytes = 0
        self.peak_used_bytes = 0
        self.used_bytes = 0

    def threshold_bytes(self) -> int:
        """The most of the pool that a queue may hold now."""
        return (self.pool_bytes - self.pool_used_bytes) * self._alpha_numerator // self._alpha_denominator

    def admits(self, queue: IngressQueue, egress_bytes: int, n_bytes: int) -> bool:
        """Whether ``n_bytes`` of a class that may be dropped fit: in what is reserved, or in the pool.

        ``egress_bytes``: of the egress queue, with them.
        """
        rest = n_bytes - queue.unused_bytes(n_bytes)
        if not rest:
            return True
        return rest <= self.pool_bytes - self.pool_used_bytes and egress_bytes <= self.threshold_bytes()

    def take(self, queue: IngressQueue, n_bytes: int) -> bool:
        """Hold ``n_bytes``.  Returns whether the queue's sender must be paused now."""
        self.used_bytes += n_bytes
        if self.used_bytes > self.peak_used_bytes:
            self.peak_used_bytes = self.used_bytes
        own = queue.unused_bytes(n_bytes)
        queue.used_bytes += n_bytes
        rest = n_bytes - own
        if not rest:
            return False
        if not queue.pauses:
            queue.shared_bytes += rest
            self.pool_used_bytes += rest
            return False
        free = self.pool_bytes - self.pool_used_bytes
        if queue.is_paused or rest > free or queue.shared_bytes + rest > self.threshold_bytes():
            queue.headroom_bytes += rest
            assert queue.headroom_bytes <= self._headroom_bytes, (
                f"a lossless packet does not fit: {queue.headroom_bytes} bytes of headroom needed, {self._headroom_bytes} there"
            )
            if queue.is_paused:
                return False
            queue.is_paused = True
            return True
        queue.shared_bytes += rest
        self.pool_used_bytes += rest
        return False

    def release(self, queue: IngressQueue, n_bytes: int) -> None:
        """``n_bytes`` have left: headroom is freed first, then the shared pool, then what is reserved."""
        self.used_bytes -= n_bytes
        queue.used_bytes -= n_bytes
        headroom = min(n_bytes, queue.headroom_bytes)
        queue.headroom_bytes -= headroom
        shared = min(n_bytes - headroom, queue.shared_bytes)
        queue.shared_bytes -= shared
        self.pool_used_bytes -= shared

    def may_resume(self, queue: IngressQueue) -> bool:
        """Whether a paused queue has drained far enough to let its sender go on."""
        if not queue.is_paused or queue.headroom_bytes:
            return False
        return queue.shared_bytes <= max(0, self.threshold_bytes() - self._xon_offset_bytes)

    def validate(self) -> None:
        """Raise AssertionError where bytes do not add up."""
        queues = self.queues.values()
        assert self.used_bytes == sum(queue.used_bytes for queue in queues)
        assert self.pool_used_bytes == sum(queue.shared_bytes for queue in queues)
        assert self.pool_used_bytes <= self.pool_bytes
        assert all(queue.headroom_bytes <= self._headroom_bytes for queue in queues)
        for queue in queues:
            own = queue.used_bytes - queue.shared_bytes - queue.headroom_bytes
            assert 0 <= own <= queue.reserved_bytes and queue.shared_bytes >= 0 and queue.headroom_bytes >= 0
