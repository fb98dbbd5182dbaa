"""Credits: the room in a node's input buffers that is free again and has yet to be granted to who sends there.

Credits go back once they are a step, so that they are few: an eighth of the input buffer, less where the sender would otherwise
lack room for a packet.

Law: of a link's buffer there is one account, whether a packet was forwarded by the node's switch or taken in by its adapter; so
less than a step of it is ever kept back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from emu.fabric.packet import Notice, NoticeKind
from emu.fabric.port import wire_bytes
from emu.topologies.graph import Link
from emu.topologies.switching import CREDIT_SHARE, Discipline, Switching, TrafficClass


class Credits:
    """What one node owes, by (ingress link, queue)."""

    def __init__(self, switching: Switching, ingress: Mapping[int, Link], notify_link: Callable[[Notice, int], None]) -> None:
        """``notify_link``: send a notice to the sending end of its link."""
        self._notify_link = notify_link
        packet_bytes = max((wire_bytes(link, switching.quantum_bytes) for link in ingress.values()), default=0)
        classes = [switching.class_of(queue) for queue in range(switching.n_queues)]
        self._steps_bytes = {
            queue: _step_bytes(c, packet_bytes) for queue, c in enumerate(classes) if c.discipline is Discipline.CREDIT
        }
        self._owed_bytes = {(link, queue): 0 for link in ingress for queue in self._steps_bytes}

    def free(self, link: int, queue: int, n_bytes: int, now_ps: int) -> bool:
        """``n_bytes`` that came by ``link`` in ``queue`` hold room no more.  Returns whether that queue has credits."""
        step_bytes = self._steps_bytes.get(queue)
        if step_bytes is None:
            return False
        key = link, queue
        owed = self._owed_bytes[key] + n_bytes
        if owed >= step_bytes:
            self._notify_link(Notice(NoticeKind.CREDIT, value=owed, link=link, queue=queue), now_ps)
            owed = 0
        self._owed_bytes[key] = owed
        return True

    def owed_bytes(self, link: int, queue: int) -> int:
        """Free but not yet granted; 0 where there are no credits."""
        return self._owed_bytes.get((link, queue), 0)

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert all(0 <= owed < self._steps_bytes[queue] for (_, queue), owed in self._owed_bytes.items())


def _step_bytes(traffic_class: TrafficClass, packet_bytes: int) -> int:
    room = traffic_class.credit_bytes
    return max(1, min(room // CREDIT_SHARE, room - packet_bytes))
