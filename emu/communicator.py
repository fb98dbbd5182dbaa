"""Communicator: NCCL-style collectives and sends over a group of ranks.

Law: nothing is submitted that was not checked: arrays, sizes, roots and peers are
refused here, in the user's thread.  What only ranks together can know (that they
called different things) is found by the engine and ends the run.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from emu.collectives.buffers import check_overlap, check_sizes, needed, require_array, stage
from emu.collectives.reduce import Array, check_dtype, check_op
from emu.errors import ConfigError
from emu.planner import Planner
from emu.work import Work

if TYPE_CHECKING:
    from emu.rank import Rank


class Communicator:
    """NCCL-style collectives over a group of ranks.

    Arrays are numpy arrays of a dtype in ``emu.collectives.reduce.DTYPES``.  ``count`` follows NCCL.
    In place is by pointer equality, as in NCCL; other overlaps are refused.  Arrays that are not
    contiguous are staged: the result is exact and the gaps stay untouched.  Calls of no elements return at once
    and do not synchronise.

    With ``async_op=True`` a call returns a :class:`Work` at once; its arrays are the call's until ``wait()`` has
    returned, and a function that returns first waits for what it left in flight.  Collectives of one communicator
    start in the order of their calls; send and recv start at once.  A blocking ``send`` returns when its last byte
    has left, which waits for the receiver only beyond the connection's window.

    ``algorithm`` is a name or a selection such as ``"ring,tree"`` (:mod:`emu.collectives.selection`); it, ``protocol``,
    ``channels`` and ``chunk_bytes`` must be the same on all ranks; chunks longer than the connection's window
    go one at a time.  Roots and peers are positions in this communicator; ``index_of`` gives the position of a rank of the
    fabric.  Ranks that are no members have no communicator object to call.

    On a fabric with ``switching`` its messages travel in one traffic class: the fabric's first for ``rank.comm``, for
    others the one whose ``priority`` was given when they were made, else their parent's.
    """

    def __init__(self, *, rank: Rank, members: tuple[int, ...], identity: int, name: str, traffic_class: int = 0) -> None:
        self._rank = rank
        self.members = members
        self.identity = identity
        self.name = name
        self.traffic_class = traffic_class
        self.index = members.index(rank.world_rank)
        self.size = len(members)
        self._planner = Planner(
            runtime=rank.runtime,
            members=members,
            position=self.index,
            identity=identity,
            name=name,
            traffic_class=traffic_class,
        )
        self._number = 0
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}
        self._splits = 0
        self._groups: dict[tuple[int, ...], int] = {}
        self._group: Work | None = None

    def index_of(self, world_rank: int) -> int:
        """Position here of a rank of the fabric, for roots and peers.  Raises ConfigError for a non-member."""
        if world_rank not in self.members:
            raise ConfigError(f"rank {world_rank} is not in communicator {self.name}; its ranks are {list(self.members)}")
        return self.members.index(world_rank)

    # -- collectives ---------------------------------------------------------------------------

    def all_reduce(self, send: Array, recv: Array | None = None, *, op: str = "sum", **options: Any) -> Work:
        """``recv`` (default: in place) gets the reduction over all ranks of ``send``; same shape."""
        recv = send if recv is None else recv
        check_sizes("all_reduce", send, recv, 1, 1, self.size)
        return self._collective("all_reduce", send.size, send, recv, op=op, **options)

    def all_gather(self, send: Array, recv: Array, **options: Any) -> Work:
        """``recv`` (n x count) gets every rank's ``send`` (count), in rank order."""
        check_sizes("all_gather", send, recv, self.size, 1, self.size)
        return self._collective("all_gather", send.size, send, recv, **options)

    def reduce_scatter(self, send: Array, recv: Array, *, op: str = "sum", **options: Any) -> Work:
        """``recv`` (count) gets this rank's block of the reduction of ``send`` (n x count)."""
        check_sizes("reduce_scatter", send, recv, 1, self.size, self.size)
        return self._collective("reduce_scatter", recv.size, send, recv, op=op, **options)

    def broadcast(self, send: Array, recv: Array | None = None, *, root: int = 0, **options: Any) -> Work:
        """``recv`` (default: in place) gets the root's ``send``, which may be read-only there when in place."""
        if recv is not None or self.index != root:
            recv = send if recv is None else recv
            check_sizes("broadcast", send, recv, 1, 1, self.size)
        return self._collective("broadcast", require_array("broadcast", send).size, send, recv, root=root, **options)

    def reduce(self, send: Array, recv: Array | None = None, *, op: str = "sum", root: int = 0, **options: Any) -> Work:
        """The root's ``recv`` (default there: in place) gets the reduction; other ranks' arrays stay as they are."""
        if self.index == root:
            recv = send if recv is None else recv
            check_sizes("reduce", send, recv, 1, 1, self.size)
        else:
            recv = None
        return self._collective("reduce", require_array("reduce", send).size, send, recv, op=op, root=root, **options)

    def gather(self, send: Array, recv: Array | None = None, *, root: int = 0, **options: Any) -> Work:
        """The root's ``recv`` (n x count) gets every rank's ``send`` (count)."""
        if self.index == root:
            check_sizes("gather", send, needed(recv, "gather", "recv"), self.size, 1, self.size)
        else:
            recv = None
        return self._collective("gather", require_array("gather", send).size, send, recv, root=root, **options)

    def scatter(self, send: Array | None, recv: Array, *, root: int = 0, **options: Any) -> Work:
        """``recv`` (count) gets this rank's block of the root's ``send`` (n x count)."""
        if self.index == root:
            check_sizes("scatter", needed(send, "scatter", "send"), recv, 1, self.size, self.size)
        else:
            send = None
        return self._collective("scatter", require_array("scatter", recv).size, send, recv, root=root, **options)

    def alltoall(self, send: Array, recv: Array, **options: Any) -> Work:
        """Block d of ``send`` goes to rank d; block s of ``recv`` comes from rank s (each n x count)."""
        check_sizes("alltoall", send, recv, 1, 1, self.size)
        if send.size % self.size:
            raise ConfigError(f"alltoall: {send.size} elements do not divide by {self.size} ranks; use alltoallv")
        return self._collective("alltoall", send.size // self.size, send, recv, **options)

    def alltoallv(self, send: Array, recv: Array, send_counts: Sequence[int], recv_counts: Sequence[int], **options: Any) -> Work:
        """As alltoall with a count per peer, blocks packed in rank order; zero counts send nothing."""
        for what, array, counts in (("send", send, send_counts), ("recv", recv, recv_counts)):
            require_array("alltoallv", array)
            if len(counts) != self.size or min(counts, default=0) < 0 or sum(counts) != array.size:
                raise ConfigError(
                    f"alltoallv: {what}_counts {list(counts)} must be {self.size} counts of 0 or more that sum to the"
                    f" {array.size} elements of {what}"
                )
        mine, expected = send_counts[self.index], recv_counts[self.index]
        if mine != expected:
            raise ConfigError(f"alltoallv: rank {self.index} sends {mine} elements to itself but expects {expected}")
        if send.dtype != recv.dtype:
            raise ConfigError(f"alltoallv: send is {send.dtype}, recv is {recv.dtype}; they must be the same")
        both = (tuple(map(int, send_counts)), tuple(map(int, recv_counts)))
        return self._collective("alltoallv", max(send.size, recv.size), send, recv, counts=both, **options)

    def barrier(self, **options: Any) -> Work:
        """Nobody leaves before everybody has come."""
        return self._collective("barrier", 0, None, None, **options)

    def prepare(self, collective: str, *, algorithm: str, root: int = 0) -> None:
        """Build, verify and compile what the first such call would: it takes host time that no stopwatch should see."""
        self._planner.prepare(collective, algorithm, root)

    # -- point to point ------------------------------------------------------------------------

    def send(self, array: Array, peer: int, *, async_op: bool = False, channels: int = 1, chunk_bytes: int | None = None) -> Work:
        """Send to ``peer``; the k-th send to a peer meets its k-th recv."""
        return self._p2p("send", array, peer, async_op, channels, chunk_bytes)

    def recv(self, array: Array, peer: int, *, async_op: bool = False, channels: int = 1, chunk_bytes: int | None = None) -> Work:
        """Receive from ``peer`` into ``array``."""
        return self._p2p("recv", array, peer, async_op, channels, chunk_bytes)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Sends and receives inside start together at the end and progress independently (ncclGroupStart/End).

        It speaks of this communicator alone, and blocks until all are complete.  After an exception inside, none starts.
        """
        if self._group is not None:
            yield
            return
        sent, received = dict(self._sent), dict(self._received)
        self._group = work = Work(self._rank, [])
        work.submitted = False
        try:
            yield
        except BaseException:
            self._sent, self._received = sent, received
            raise
        finally:
            self._group = None
        work.submitted = True
        if work.operations:
            work.pending = len(work.operations)
            self._submit(work, None)
            work.wait()

    # -- sub-groups ----------------------------------------------------------------------------

    def split(self, color: int | None, key: int = 0, *, priority: int | None = None) -> Communicator | None:
        """Collective over this communicator: ranks of one colour form a new one, ordered by (key, old rank).

        ``color`` None (NCCL_SPLIT_NOCOLOR) gives None.  ``priority``: of the traffic class of its messages, the same on
        all ranks of a colour.  Raises ConfigError for a priority that the fabric has no class for.
        """
        self._not_grouped("split")
        color, key = None if color is None else operator.index(color), operator.index(key)
        for what, number in (("color", color or 0), ("key", key)):
            if not -(2**63) <= number < 2**63:
                raise ConfigError(f"split: {what} {number} must fit in 64 bits")
        traffic_class = self._class_of(priority)
        mine = np.array([-1 if color is None else color, key, 0 if color is None else 1, traffic_class], dtype=np.int64)
        table = np.zeros(4 * self.size, dtype=np.int64)
        self._exchange(mine, table)
        self._splits += 1
        if color is None:
            return None
        rows = table.reshape(self.size, 4)
        chosen = sorted((int(row[1]), r) for r, row in enumerate(rows) if row[2] and int(row[0]) == color)
        odd = next((r for _, r in chosen if int(rows[r][3]) != traffic_class), None)
        if odd is not None:
            raise ConfigError(f"split: ranks {self.index} and {odd} have colour {color} but another priority; give all the same")
        members = tuple(self.members[r] for _, r in chosen)
        return Communicator(
            rank=self._rank,
            members=members,
            identity=_derived_identity(self.identity, self._splits, color),
            name=f"{self.name}/{self._splits}:{color}",
            traffic_class=traffic_class,
        )

    def create_group(self, ranks: Sequence[int], *, priority: int | None = None) -> Communicator:
        """A communicator of some of this one's ranks, called by those ranks only, each with the same list.

        It does not communicate.  The k-th call with a list makes the k-th communicator of that list.
        ``priority``: of the traffic class of its messages, the same on all its ranks.

        Raises ConfigError when the caller is not in the list (a non-member has no group), and for a priority that the
        fabric has no class for.
        """
        ranks = tuple(int(rank) for rank in ranks)
        if len(set(ranks)) != len(ranks) or any(not 0 <= rank < self.size for rank in ranks):
            raise ConfigError(f"group {list(ranks)}: ranks must be distinct and from 0 to {self.size - 1}")
        if self.index not in ranks:
            raise ConfigError(f"rank {self.index} is not in the group {list(ranks)}; only members create it")
        members = tuple(self.members[rank] for rank in ranks)
        made = self._groups[members] = self._groups.get(members, 0) + 1
        return Communicator(
            rank=self._rank,
            members=members,
            identity=_derived_identity(self.identity, -made, *members),
            name=f"{self.name}/{list(ranks)}",
            traffic_class=self._class_of(priority),
        )

    def _class_of(self, priority: int | None) -> int:
        return self.traffic_class if priority is None else self._rank.runtime.traffic_class(_whole("priority", priority))

    # -- inside --------------------------------------------------------------------------------

    def _exchange(self, mine: Array, table: Array) -> None:
        """all_gather of control data, which moves real values even where a prediction carries no payload."""
        call = self._planner.control("all_gather", mine.size, mine.dtype.name)
        operation = self._planner.operation(call, self._next_number(), mine, table, payload=True)
        work = Work(self._rank, [operation])
        self._submit(work, self.identity)
        work.wait()

    def _collective(
        self,
        collective: str,
        count: int,
        send: Array | None,
        recv: Array | None,
        *,
        op: str | None = None,
        root: int | None = None,
        counts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
        algorithm: str = "auto",
        channels: int = 1,
        chunk_bytes: int | None = None,
        protocol: str | None = None,
        async_op: bool = False,
    ) -> Work:
        self._not_grouped(collective)
        array = send if send is not None else recv
        dtype = "uint8" if array is None else check_dtype(array.dtype)
        if op is not None:
            check_op(op)
        root = None if root is None else _whole("root", root)
        channels = _whole("channels", channels)
        chunk_bytes = None if chunk_bytes is None else _whole("chunk_bytes", chunk_bytes)
        if root is not None and not 0 <= root < self.size:
            raise ConfigError(f"{collective}: root {root} must be from 0 to {self.size - 1}")
        call = self._planner.collective(
            collective,
            count,
            dtype,
            op=op,
            root=root,
            algorithm=algorithm,
            channels=channels,
            chunk_bytes=chunk_bytes,
            protocol=protocol,
        )
        staged_send, _ = self._staged(send, output=False)
        staged_recv, writebacks = self._staged(recv, output=True)
        if send is recv:
            staged_send = staged_recv
        payload = self._rank.payload
        if payload:
            check_overlap(call, self.index, send, recv)
        if self._rank.condition.skips(self._rank.cursor_ps):
            return Work(self._rank, [])
        operation = self._planner.operation(call, self._next_number(), staged_send, staged_recv, counts=counts, payload=payload)
        work = Work(self._rank, [operation], writebacks)
        self._submit(work, self.identity)
        if not async_op:
            work.wait()
        return work

    def _not_grouped(self, collective: str) -> None:
        if self._group is not None:
            raise ConfigError(f"{collective} inside group(): only send and recv are grouped; call it after the group")

    def _staged(self, array: Array | None, *, output: bool) -> tuple[Array | None, list[tuple[Array, Array]]]:
        return stage(array, output=output) if self._rank.payload else (None, [])

    def _next_number(self) -> int:
        """Of a collective: the same on all ranks for the same call."""
        self._number += 1
        return self._number - 1

    def _p2p(self, kind: str, array: Array, peer: int, async_op: bool, channels: int, chunk_bytes: int | None) -> Work:
        require_array(kind, array)
        if not 0 <= peer < self.size:
            raise ConfigError(f"{kind}: peer {peer} must be from 0 to {self.size - 1}")
        dtype = check_dtype(array.dtype)
        output = kind == "recv"
        if output and self._rank.payload and not array.flags.writeable:
            raise ConfigError("recv: the array is read-only")
        call = self._planner.p2p(kind, array.size, dtype, channels=channels, chunk_bytes=chunk_bytes)
        staged, writebacks = self._staged(array, output=output)
        table = self._received if output else self._sent
        ordinal = table.get(peer, 0)
        table[peer] = ordinal + 1
        operation = self._planner.p2p_operation(call, peer, ordinal, staged, payload=self._rank.payload)
        if self._group is not None:
            operation.on_complete = self._group
            self._group.operations.append(operation)
            self._group.writebacks.extend(writebacks)
            return self._group
        work = Work(self._rank, [operation], writebacks)
        self._submit(work, None)
        if not async_op:
            work.wait()
        return work

    def _submit(self, work: Work, ordered: int | None) -> None:
        rank = self._rank
        rank.charge()
        rank.in_flight[id(work)] = work
        rank.runtime.submit(rank, work.operations, rank.cursor_ps, ordered)


def _whole(what: str, value: int) -> int:
    """A plain int of any integer type, numpy's too.  Raises ConfigError."""
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{what} {value!r} must be a whole number") from None


def _derived_identity(parent: int, *parts: int) -> int:
    """A communicator's number, the same on all its members and different for different groups."""
    return int.from_bytes(hashlib.blake2b(repr((parent, *parts)).encode(), digest_size=7).digest(), "little")
