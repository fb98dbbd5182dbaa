"""Account: what the time of a call went to, carried along its critical path.

Every chunk carries a list of integers: the time spent on each cause since the path began, where and when it began,
and who started the call first and last as far as its sender knew.  A chunk that lets a step run hands its account on to
what that step sends; so the account of the last chunk that a call waited for is that of its critical path.

Law: what is carried sums to no more than the time since the path began; the rest of it is propagation, the delays of
impairments included.  A call's split sums to the time from its submission to its completion, exactly.

On a hop, times are those of the tail: from its arrival to its arrival at the far end (from the head's, at the rank that sends).

    serialisation     what the link takes when nobody else is on it, at its present rate, and outages; waiting for what the
                      same flow sent before; at the rank that sends, all waiting for its own line
    queueing          the rest of the wait for the link; at the rank that sends, what its congestion control holds back
    credit, pause     kept back by missing credits (of a connection, of a link), by a pause
    retransmission    sending again, and waiting for that
    endpoint          the receiver takes bytes in at its own rate

Not exact: where a path began before its call was submitted here, what is older is cut off in proportion, as the order of what
was spent is not carried.  A record (``telemetry/attribution.py``) has the order, and cuts exactly.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Cause(IntEnum):
    """What time is spent on.  Those up to ENDPOINT are carried in accounts."""

    SERIALISATION = 0
    QUEUEING = 1
    CREDIT = 2
    PAUSE = 3
    RETRANSMISSION = 4
    ENDPOINT = 5
    PROPAGATION = 6
    PEER_LATE = 7
    """Another rank, from which the path comes, had not started the call yet."""
    COMPUTE = 8
    """The rank's own declared computation.  It lies between calls: a call's split has none."""


CAUSES: Final = tuple(cause.name.lower() for cause in Cause)
"""Names in order, for labels."""

SERIALISATION: Final = int(Cause.SERIALISATION)
QUEUEING: Final = int(Cause.QUEUEING)
CREDIT: Final = int(Cause.CREDIT)
PAUSE: Final = int(Cause.PAUSE)
RETRANSMISSION: Final = int(Cause.RETRANSMISSION)
ENDPOINT: Final = int(Cause.ENDPOINT)
N_CARRIED: Final = ENDPOINT + 1
ORIGIN_PS: Final = N_CARRIED
ORIGIN_RANK: Final = N_CARRIED + 1
FIRST_START_PS: Final = N_CARRIED + 2
LAST_START_PS: Final = N_CARRIED + 3
LAST_RANK: Final = N_CARRIED + 4
"""The one of the ranks that started last, the lowest where several did."""
LENGTH: Final = N_CARRIED + 5

Account = list[int]
"""Picoseconds by carried cause, then by the names above."""


def opened(rank: int, now_ps: int) -> Account:
    """The account of a call that starts now."""
    return [0] * N_CARRIED + [now_ps, rank, now_ps, now_ps, rank]


def meet(one: Account, other: Account) -> None:
    """Both know from now on who started first and last of those that either knew of."""
    one[FIRST_START_PS] = other[FIRST_START_PS] = min(one[FIRST_START_PS], other[FIRST_START_PS])
    last = min((-one[LAST_START_PS], one[LAST_RANK]), (-other[LAST_START_PS], other[LAST_RANK]))
    one[LAST_START_PS] = other[LAST_START_PS] = -last[0]
    one[LAST_RANK] = other[LAST_RANK] = last[1]


def by_cause(account: Account, begin_ps: int, end_ps: int) -> tuple[int, ...]:
    """The time from ``begin_ps`` to ``end_ps``, where the path of ``account`` ends, by :class:`Cause`."""
    spent = account[:N_CARRIED]
    late_ps = account[ORIGIN_PS] - begin_ps
    spent.append(end_ps - account[ORIGIN_PS] - sum(spent))
    if late_ps >= 0:
        return (*spent, late_ps, 0)
    return scaled((*spent, 0, 0), end_ps - begin_ps)


def scaled(parts: tuple[int, ...], total: int) -> tuple[int, ...]:
    """``parts`` in proportion, so that they sum to ``total`` (largest remainder; the first where several are equal)."""
    whole = sum(parts)
    if whole == total or not whole:
        return parts
    found = [part * total // whole for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda index: (-(parts[index] * total % whole), index))
    for index in by_remainder[: total - sum(found)]:
        found[index] += 1
    return tuple(found)
