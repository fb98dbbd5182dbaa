"""Frame: one chunk on its way, with the model times at which it is due."""

from __future__ import annotations

from typing import Any

from emu.fabric.account import ENDPOINT, LENGTH, Account
from emu.protocols.flags import flagged_bytes


class Frame:
    """A chunk of a message, or a credit that travels back.  Mutable: each hop moves its due times on.

    ``head_ps`` / ``tail_ps``: model times at which its first and last byte reach the node that
    it is next at (at the source: when it was handed to the first link).
    ``path`` is a tuple of link indices and ``hop`` the next of them to be taken.
    ``flow`` identifies (source rank, target rank, channel) and keys randomness.
    ``payload_bytes`` are data; with its protocol's flags (a byte for every ``flag_every_bytes`` of data, 0: none) it is
    ``flagged_bytes`` long on links and in ports, windows and buffers, see :mod:`emu.protocols.flags`.
    ``message`` is the k-th message of its operation from source to target; ``chunk`` its part.
    ``recipe`` tells a switch that combines what to do with it; ranks need none.
    ``account`` is what the time since its critical path began went to.
    """

    __slots__ = (
        "account",
        "chunk",
        "communicator",
        "credit_bytes",
        "digest",
        "flag_every_bytes",
        "flagged_bytes",
        "flow",
        "head_ps",
        "hop",
        "message",
        "message_bytes",
        "operation",
        "path",
        "payload",
        "payload_bytes",
        "promise_ps",
        "recipe",
        "route_flow",
        "source_rank",
        "tail_ps",
        "target_rank",
        "traffic_class",
    )  # fmt: skip

    def __init__(
        self,
        path: tuple[int, ...],
        *,
        source_rank: int,
        target_rank: int,
        flow: int,
        route_flow: int,
        payload_bytes: int,
        head_ps: int,
        communicator: int = 0,
        operation: int = 0,
        message: int = 0,
        chunk: int = 0,
        message_bytes: int = 0,
        digest: int = 0,
        credit_bytes: int = 0,
        flag_every_bytes: int = 0,
        payload: Any = None,
        account: Account | None = None,
    ) -> None:
        self.path = path
        self.hop = 0
        self.source_rank = source_rank
        self.target_rank = target_rank
        self.flow = flow
        self.route_flow = route_flow
        self.payload_bytes = payload_bytes
        self.flag_every_bytes = flag_every_bytes
        self.flagged_bytes = flagged_bytes(payload_bytes, flag_every_bytes) if flag_every_bytes else payload_bytes
        self.head_ps = head_ps
        self.tail_ps = head_ps
        self.promise_ps = 0
        self.communicator = communicator
        self.operation = operation
        self.message = message
        self.chunk = chunk
        self.message_bytes = message_bytes
        self.digest = digest
        self.credit_bytes = credit_bytes
        self.payload = payload
        self.traffic_class = 0
        self.recipe = b""
        self.account = [0] * LENGTH if account is None else account

    def is_whole(self, now_ps: int) -> None:
        """All of it is here now, and nobody waits for the pace at which its rank would hand it over."""
        self.account[ENDPOINT] -= self.tail_ps - now_ps
        self.tail_ps = now_ps

    def arrived(self, payload: Any, account: Account, now_ps: int) -> Frame:
        """The same chunk at its target, put together from its packets; ``account`` is that of the last of them."""
        frame = Frame(
            self.path,
            source_rank=self.source_rank,
            target_rank=self.target_rank,
            flow=self.flow,
            route_flow=self.route_flow,
            payload_bytes=self.payload_bytes,
            head_ps=now_ps,
            communicator=self.communicator,
            operation=self.operation,
            message=self.message,
            chunk=self.chunk,
            message_bytes=self.message_bytes,
            digest=self.digest,
            flag_every_bytes=self.flag_every_bytes,
            payload=payload,
            account=account,
        )
        frame.hop = len(self.path)
        return frame
