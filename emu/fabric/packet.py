"""Packet: one quantum of a chunk on its way; Notice: what travels against the data.

Only fabrics with a ``switching`` have them, see ``topologies/switching.py``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from emu.fabric.account import Account
from emu.fabric.frame import Frame
from emu.protocols.flags import flagged_bytes


class Packet:
    """A part of ``frame`` (the chunk): its bytes from ``offset_bytes`` on.  Mutable: each hop moves its due times on.

    ``flagged_bytes`` is what it is on links and in buffers, with its protocol's flags.
    ``sequence`` counts the packets of its queue pair, ``sending`` how often this one was sent before.
    ``queue`` is the lane x classes + class it waits in.
    ``head_ps`` / ``tail_ps``: when its first and its last byte reach the far end of the link that it is on.
    ``ingress`` is the link by which it came to the node that holds it, -1 at its source; it holds ``held_bytes`` of that
    link's share of the buffer, in ``held_queue``.  ``marked`` is ECN's mark;
    a ``trimmed`` packet has lost its payload.  ``sent_ps``: when its source began to send it.  ``account``: see
    ``fabric/account.py``; ``blocked_ps`` is what its port's queue had been blocked for when it came.
    """

    __slots__ = (
        "account", "blocked_ps", "entropy", "flagged_bytes", "frame", "head_ps", "held_bytes", "held_queue", "ingress", "marked",
        "offset_bytes", "payload", "payload_bytes", "queue", "queue_pair", "sending", "sent_ps", "sequence", "tail_ps", "trimmed",
    )  # fmt: skip

    def __init__(
        self,
        frame: Frame,
        *,
        queue_pair: int,
        queue: int,
        sequence: int,
        offset_bytes: int,
        payload_bytes: int,
        entropy: int,
        sent_ps: int,
        payload: Any = None,
        account: Account | None = None,
    ) -> None:
        self.frame = frame
        self.account = frame.account if account is None else account
        self.blocked_ps = 0
        self.queue_pair = queue_pair
        self.queue = queue
        self.sequence = sequence
        self.sending = 0
        self.offset_bytes = offset_bytes
        self.payload_bytes = payload_bytes
        self.flagged_bytes = flagged_bytes(payload_bytes, frame.flag_every_bytes)
        self.entropy = entropy
        self.sent_ps = sent_ps
        self.payload = payload
        self.head_ps = self.tail_ps = sent_ps
        self.ingress = -1
        self.held_queue = queue
        self.held_bytes = 0
        self.marked = False
        self.trimmed = False


class NoticeKind(IntEnum):
    # over one link, to the node that sends on it
    PAUSE = 1
    """``value``: 1 stop, 0 go on."""
    CREDIT = 2
    """``value``: bytes granted."""
    # end to end, from a receiver to a sender or back
    ACK = 3
    """``value``: everything before this sequence has come."""
    NACK = 4
    """``value``: this sequence is missing, or was trimmed."""
    CNP = 5
    GRANT = 6
    """``value``: the sequence up to which the receiver lets the sender go."""
    REQUEST = 7
    """``value``: the sequence up to which the sender has something to send."""


class Notice:
    """A word that uses no bandwidth but takes its time.

    Of one link: ``link`` is the data link that it speaks of, ``queue`` the queue.  End to end: ``link`` is -1, ranks
    and ``queue_pair`` are those of the data.  ``echo_ps``: ``sent_ps`` of the packet that is answered; ``marked``: that it
    was marked; ``n_bytes``: payload and flags that the answer covers; ``selective``: the one sequence that has come, or -1.
    """

    __slots__ = (
        "echo_ps", "kind", "link", "marked", "n_bytes", "queue", "queue_pair", "selective", "source_rank", "target_rank", "value",
    )  # fmt: skip

    def __init__(
        self,
        kind: NoticeKind,
        *,
        value: int = 0,
        link: int = -1,
        queue: int = 0,
        source_rank: int = -1,
        target_rank: int = -1,
        queue_pair: int = 0,
        echo_ps: int = 0,
        marked: bool = False,
        n_bytes: int = 0,
        selective: int = -1,
    ) -> None:
        self.kind = kind
        self.value = value
        self.link = link
        self.queue = queue
        self.source_rank = source_rank
        self.target_rank = target_rank
        self.queue_pair = queue_pair
        self.echo_ps = echo_ps
        self.marked = marked
        self.n_bytes = n_bytes
        self.selective = selective
