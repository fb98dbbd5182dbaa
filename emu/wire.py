"""Wire: the frame header and its bytes.

Law: a header is a packed struct of fixed size, versioned; there is no pickle on
the data plane.  Golden bytes are in the tests.  Small payloads ride in the same
message as the header, larger ones in a second part, untouched.

Three kinds carry what travels on a fabric: a FRAME is a chunk, or a credit of a connection; a PACKET, of a
fabric with ``switching``, is one quantum of a chunk and what its receiver must know of the chunk; a NOTICE is a pause,
a grant or an answer that travels against them.

Times are model picoseconds at which the frame is due at the far end of ``link``; ``promise_ps``
says that no later frame on it has its tail there before.
Behind the header of a frame or packet is its account, see ``fabric.account``.
``anchor_ns`` is the wall time of model time 0 on the session's clock: when user
code took wall time, whoever was late moves it and the rest learn it from here.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from emu.errors import WireError

MAGIC: Final = 0x454D  # "EM"
VERSION: Final = 5
HELLO: Final = 1
FRAME: Final = 2
PACKET: Final = 3
NOTICE: Final = 4
INLINE_BYTES: Final = 8192
"""Payloads up to this size are copied behind the header: one message is cheaper than two."""

_HEAD: Final = "<HBBQI"
_FRAME_FIELDS: Final = "IIIIHQIqqqQqIIQBQQQq"
_PACKET_FIELDS: Final = "IIIIQIQqIIQBQQHHH??QIQQQqqqq"
_ACCOUNT_FIELDS: Final = "7qIqqI"
_PREFIX: Final = struct.Struct(_HEAD)  # magic, version, kind, session, epoch
_FRAME: Final = struct.Struct(_HEAD + _FRAME_FIELDS + _ACCOUNT_FIELDS)
_BODY: Final = struct.Struct("<" + _FRAME_FIELDS + _ACCOUNT_FIELDS)
_PACKET: Final = struct.Struct(_HEAD + _PACKET_FIELDS + _ACCOUNT_FIELDS)
_PACKET_BODY: Final = struct.Struct("<" + _PACKET_FIELDS + _ACCOUNT_FIELDS)
_NOTICE_BODY: Final = struct.Struct("<IHB?iHiiHqQqqQqq")
HEADER_BYTES: Final = _FRAME.size
PACKET_BYTES: Final = _PACKET.size
NOTICE_BYTES: Final = _PREFIX.size + _NOTICE_BODY.size


class Header(NamedTuple):
    """One frame on one link."""

    link: int
    channel: int
    source_rank: int
    target_rank: int
    hop: int
    flow: int
    route_flow: int
    head_ps: int
    tail_ps: int
    promise_ps: int
    communicator: int
    operation: int
    message: int
    chunk: int
    payload_bytes: int
    flag_every_bytes: int
    message_bytes: int
    digest: int
    credit_bytes: int
    anchor_ns: int


class PacketHeader(NamedTuple):
    """One packet on one link: first the chunk that it is a part of, see ``fabric.frame``, then itself, see ``fabric.packet``."""

    link: int
    channel: int
    source_rank: int
    target_rank: int
    flow: int
    route_flow: int
    communicator: int
    operation: int
    message: int
    chunk: int
    chunk_bytes: int
    flag_every_bytes: int
    message_bytes: int
    digest: int
    traffic_class: int
    queue_pair: int
    queue: int
    marked: bool
    trimmed: bool
    sequence: int
    sending: int
    offset_bytes: int
    payload_bytes: int
    entropy: int
    sent_ps: int
    head_ps: int
    tail_ps: int
    anchor_ns: int


_N_FIELDS: Final = len(Header._fields)
_N_PACKET_FIELDS: Final = len(PacketHeader._fields)


class NoticeHeader(NamedTuple):
    """One notice on its way, see ``fabric.packet``.

    ``due_ps`` is when it is read at its end and ``port`` its place in the calendar there; ``hop`` links of the way are behind it.
    """

    channel: int
    hop: int
    kind: int
    marked: bool
    link: int
    queue: int
    source_rank: int
    target_rank: int
    queue_pair: int
    value: int
    n_bytes: int
    selective: int
    echo_ps: int
    port: int
    due_ps: int
    anchor_ns: int


def pack_hello(session: int, epoch: int, process: int) -> bytes:
    """The first message on a connection: who is there, in which session."""
    return _PREFIX.pack(MAGIC, VERSION, HELLO, session, epoch) + process.to_bytes(4, "little")


def pack(session: int, epoch: int, header: Header, account: list[int]) -> bytes:
    return _FRAME.pack(MAGIC, VERSION, FRAME, session, epoch, *header, *account)


def pack_packet(session: int, epoch: int, header: PacketHeader, account: list[int]) -> bytes:
    return _PACKET.pack(MAGIC, VERSION, PACKET, session, epoch, *header, *account)


def pack_notice(session: int, epoch: int, header: NoticeHeader) -> bytes:
    return _PREFIX.pack(MAGIC, VERSION, NOTICE, session, epoch) + _NOTICE_BODY.pack(*header)


def unpack_prefix(data: bytes | memoryview, session: int) -> tuple[int, int]:
    """(kind, epoch) of a message.  Raises WireError when it is not of this session or version."""
    if len(data) < _PREFIX.size:
        raise WireError(f"a message of {len(data)} bytes is too short for a header of {_PREFIX.size}")
    magic, version, kind, found, epoch = _PREFIX.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise WireError(f"magic {magic:#x} version {version}: this is not emu's wire format version {VERSION}")
    if found != session:
        raise WireError(f"a message of session {found:x} reached session {session:x}")
    return kind, epoch


def unpack_hello(data: bytes | memoryview) -> int:
    """The process number in a HELLO.  Raises WireError when bytes are missing."""
    if len(data) < _PREFIX.size + 4:
        raise WireError(f"a greeting of {len(data)} bytes is too short for one of {_PREFIX.size + 4}")
    return int.from_bytes(data[_PREFIX.size : _PREFIX.size + 4], "little")


def unpack(data: bytes | memoryview) -> tuple[Header, list[int]]:
    """The frame header and the account.  Raises WireError when bytes are missing."""
    if len(data) < HEADER_BYTES:
        raise WireError(f"a frame of {len(data)} bytes is too short for a header of {HEADER_BYTES}")
    fields = _BODY.unpack_from(data, _PREFIX.size)
    return Header._make(fields[:_N_FIELDS]), list(fields[_N_FIELDS:])


def unpack_packet(data: bytes | memoryview) -> tuple[PacketHeader, list[int]]:
    """The packet header and the account.  Raises WireError when bytes are missing."""
    if len(data) < PACKET_BYTES:
        raise WireError(f"a packet of {len(data)} bytes is too short for a header of {PACKET_BYTES}")
    fields = _PACKET_BODY.unpack_from(data, _PREFIX.size)
    return PacketHeader._make(fields[:_N_PACKET_FIELDS]), list(fields[_N_PACKET_FIELDS:])


def unpack_notice(data: bytes | memoryview) -> NoticeHeader:
    """The notice.  Raises WireError when bytes are missing."""
    if len(data) < NOTICE_BYTES:
        raise WireError(f"a notice of {len(data)} bytes is too short for one of {NOTICE_BYTES}")
    return NoticeHeader._make(_NOTICE_BODY.unpack_from(data, _PREFIX.size))
