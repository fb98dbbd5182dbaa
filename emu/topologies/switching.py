"""Switching: what a fabric's switches and adapters do when a link is full.

A fabric without it has infinite buffers and its chunks are fluids (``fabric/link.py``).  A fabric
with it sends packets of one *quantum* each, queued by traffic class at every port (``fabric/port.py``),
held in shared buffers (``fabric/buffer.py``), paced and recovered by queue pairs (``fabric/queue_pair.py``).

Law: data only, integers inside, valid when it is made; two equal ones behave alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

PAUSE_QUANTUM_BITS: Final = 512
"""Bit times of one quantum of a pause (IEEE 802.3, annex 31B)."""
CREDIT_SHARE: Final = 8
"""Credits go back once they are this part of the input buffer."""
MOST_QUEUE_PAIRS: Final = 64
"""Between two ranks in one class."""


class Discipline(StrEnum):
    """What keeps a class's packets from a full buffer."""

    DROP = "drop"
    """Nothing: what does not fit is lost (or trimmed), and sent again."""
    PAUSE = "pause"
    """Priority flow control (IEEE 802.1Qbb): the receiver stops the sender in time."""
    CREDIT = "credit"
    """InfiniBand, NVLink, UALink: the sender sends what the receiver has granted room for."""


class Recovery(StrEnum):
    """How a queue pair sends again what was lost."""

    NONE = "none"
    GO_BACK_N = "go_back_n"
    SELECTIVE_REPEAT = "selective_repeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marking:
    """ECN by queue length q: never up to ``kmin_bytes``, always above ``kmax_bytes``, between them with
    ``pmax`` (q - kmin) / (kmax - kmin)."""

    kmin_bytes: int
    kmax_bytes: int
    pmax: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchdog:
    """SONiC's PFC watchdog: a queue paused for ``detection_ps`` without a packet sent drops what it holds and ignores
    pauses until none has come for ``restoration_ps``."""

    detection_ps: int
    restoration_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """One priority.  ``strict`` classes go before all others, the highest ``priority`` first; the others share what
    is left by ``weight`` (deficit round robin).  ``control`` names the congestion control, with its parameters."""

    name: str
    priority: int
    discipline: Discipline
    recovery: Recovery = Recovery.NONE
    control: str = "none"
    control_parameters: tuple[tuple[str, int | Fraction | str], ...] = ()
    strict: bool = False
    weight: int = 1
    marking: Marking | None = None
    trims: bool = False
    """Whether a switch cuts the payload off what does not fit, instead of dropping it."""
    credit_bytes: int = 0
    """``credit``: the receiver's input buffer of a link, for each lane of this class."""
    timeout_ps: int = 1_000_000_000
    """Retransmission timeout, ps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switching:
    """The rules of one fabric; see the module.

    ``quantum_bytes``: payload of a packet.  ``buffer_bytes``: a switch's packet memory.  ``alpha``: a queue may take
    alpha x what is free of the shared pool (Choudhury and Hahne, 1998).  ``reserved_bytes``: of its own, per port and
    class.  ``headroom_bytes``: per port and class that pauses, for what is still under way when the pause goes out.
    ``xon_offset_bytes``: a paused queue resumes that much below its threshold.  ``pause_response_ps``: from the arrival of
    a pause until the sender obeys.  ``receive_buffer_bytes``: an adapter's, for each link, class and lane that
    drops or pauses.  ``trim_bytes``: what is left of a trimmed packet, or a header if that is more.  ``n_lanes``: virtual
    lanes of each class.
    """

    classes: tuple[TrafficClass, ...]
    quantum_bytes: int
    buffer_bytes: int
    alpha: Fraction
    reserved_bytes: int
    headroom_bytes: int
    xon_offset_bytes: int
    receive_buffer_bytes: int
    pause_response_ps: int = 0
    pause_quanta: int = 65_535
    trim_bytes: int = 64
    watchdog: Watchdog | None = None
    balancing: str = "ecmp"
    balancing_parameters: tuple[tuple[str, int | str], ...] = ()
    n_queue_pairs: int = 1
    n_lanes: int = 1
    link_retry: bool = False
    """Whether links repeat what they damaged (LLR) instead of losing it."""
    reorder_packets: int = 0
    """A missing packet is asked for once this many later ones are here; above 0 where balancing takes flows apart."""
    reroute_ps: int = 0
    """From a link's going down until all nodes route around it, and from its coming up until they use it again; 0 is never."""

    def class_of(self, queue: int) -> TrafficClass:
        """The class that a queue is of."""
        return self.classes[queue % len(self.classes)]

    @property
    def n_queues(self) -> int:
        """Queues of a port: one for each class and lane; queue = lane x classes + class."""
        return len(self.classes) * self.n_lanes
