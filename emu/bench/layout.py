"""What each rank's buffers hold, for every collective of nccl-tests: pure arithmetic on segments.

Out of place a rank has one buffer to send and one to receive.  In place it has one,
of which the smaller of the two is a slice (NCCL's rule: at the rank's own block, or at
the root's).  alltoall, alltoallv and sendrecv have no in-place form; as nccl-tests
does, the loop is run a second time for their in-place columns and ``#wrong`` is N/A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from emu.bench.data import REDUCED, Segment
from emu.collectives.call import REDUCING, ROOTED

NOT_IN_PLACE: Final = frozenset({"alltoall", "alltoallv", "sendrecv"})


def alltoallv_counts(rank: int, total: int, n_ranks: int) -> tuple[int, ...]:
    """Elements that ``rank`` sends to each peer (and receives from it): uneven on purpose, ``total`` in all.

    The matrix is symmetric.  Peer p gets (rank + p) mod n shares of total * 2 / n^2; what is left
    over goes to the peer that has none.
    """
    share = total * 2 // (n_ranks * n_ranks)
    counts = [((rank + peer) % n_ranks) * share for peer in range(n_ranks)]
    counts[-rank % n_ranks] += total - sum(counts)
    return tuple(counts)


def _alltoallv_start(source: int, peer: int, total: int, n_ranks: int) -> int:
    """Where in the buffer of ``source`` the elements for ``peer`` begin: the counts before it, in closed form."""
    share = total * 2 // (n_ranks * n_ranks)
    end = source + peer
    shares = (end * (end - 1) - source * (source - 1)) // 2 - n_ranks * max(0, end - n_ranks)
    left_over = total - share * (n_ranks * (n_ranks - 1) // 2)
    return shares * share + (left_over if -source % n_ranks < peer else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One rank's buffers.  Segments are None where the rank sends or receives nothing of its own accord.

    ``sent`` / ``expected`` are the contents of the send buffer before the call and of the
    receive buffer after it; ``send_at`` / ``receive_at`` where in the one buffer of an
    in-place call they lie.
    """

    sent: tuple[Segment, ...]
    expected: tuple[Segment, ...] | None
    send_at: int = 0
    receive_at: int = 0
    send_counts: tuple[int, ...] = ()
    receive_counts: tuple[int, ...] = ()

    @property
    def n_sent(self) -> int:
        return length(self.sent)

    @property
    def n_received(self) -> int:
        return length(self.expected or ())


def length(segments: Sequence[Segment]) -> int:
    """Elements in all."""
    return sum(segment.n_elements for segment in segments)


def layout(collective: str, *, rank: int, n_ranks: int, root: int, send_count: int, receive_count: int) -> Layout:
    """The buffers of ``rank``; counts are those of its send and its receive buffer, in elements."""
    if collective in ("all_reduce", "reduce"):
        result = (Segment(REDUCED, 0, receive_count),) if collective == "all_reduce" or rank == root else None
        return Layout(sent=(Segment(rank, 0, send_count),), expected=result)
    if collective == "reduce_scatter":
        start = rank * receive_count
        result = (Segment(REDUCED, start, receive_count),)
        return Layout(sent=(Segment(rank, 0, send_count),), expected=result, receive_at=start)
    if collective == "broadcast":
        return Layout(sent=(Segment(rank, 0, send_count),), expected=(Segment(root, 0, receive_count),))
    if collective in ("all_gather", "gather"):
        blocks = tuple(Segment(source, 0, send_count) for source in range(n_ranks))
        here = collective == "all_gather" or rank == root
        sent = (Segment(rank, 0, send_count),)
        return Layout(sent=sent, expected=blocks if here else None, send_at=rank * send_count if here else 0)
    if collective == "scatter":
        start = rank * receive_count
        return Layout(
            sent=(Segment(rank, 0, send_count),) if rank == root else (),
            expected=(Segment(root, start, receive_count),),
            receive_at=start if rank == root else 0,
        )
    if collective == "sendrecv":
        source = (rank - 1) % n_ranks
        return Layout(sent=(Segment(rank, 0, send_count),), expected=(Segment(source, 0, receive_count),))
    if collective == "alltoall":
        share = send_count // n_ranks
        blocks = tuple(Segment(source, rank * share, share) for source in range(n_ranks))
        return Layout(sent=(Segment(rank, 0, send_count),), expected=blocks)
    counts = alltoallv_counts(rank, send_count, n_ranks)
    blocks = tuple(
        Segment(source, _alltoallv_start(source, rank, send_count, n_ranks), count) for source, count in enumerate(counts)
    )
    sent = (Segment(rank, 0, send_count),)
    return Layout(sent=sent, expected=blocks, send_counts=counts, receive_counts=counts)


def reduces(collective: str) -> bool:
    """Whether the collective has a reduction (``redop`` column)."""
    return collective in REDUCING


def rooted(collective: str) -> bool:
    """Whether the collective has a root (``root`` column)."""
    return collective in ROOTED
