"""Wire: the frame header and its bytes.

Law: a header is a packed struct of fixed size, versioned; there is no pickle on
the data plane.  Golden bytes are in the tests.  Small payloads ride in the same
message as the header, larger ones in a second part, untouched.

Times are model picoseconds at which the frame is due at the far end of ``link``; ``promise_ps``
says that no later frame on it has its tail there before.
``anchor_ns`` is the wall time of model time 0 on the session's clock: when user
code took wall time, whoever was late moves it and the rest learn it from here.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from emu.errors import WireError

MAGIC: Final = 0x454D  # "EM"
VERSION: Final = 1
HELLO: Final = 1
FRAME: Final = 2
INLINE_BYTES: Final = 8192
"""Payloads up to this size are copied behind the header: one message is cheaper than two."""

_PREFIX: Final = struct.Struct("<HBBQI")  # magic, version, kind, session, epoch
_BODY: Final = struct.Struct("<IIIIHQIqqqQqIIQQQQq")
HEADER_BYTES: Final = _PREFIX.size + _BODY.size


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
    message_bytes: int
    digest: int
    credit_bytes: int
    anchor_ns: int


def pack_hello(session: int, epoch: int, process: int) -> bytes:
    """The first message on a connection: who is there, in which session."""
    return _PREFIX.pack(MAGIC, VERSION, HELLO, session, epoch) + process.to_bytes(4, "little")


def pack(session: int, epoch: int, header: Header) -> bytes:
    return _PREFIX.pack(MAGIC, VERSION, FRAME, session, epoch) + _BODY.pack(*header)


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


def unpack(data: bytes | memoryview) -> Header:
    """The frame header.  Raises WireError when bytes are missing."""
    if len(data) < HEADER_BYTES:
        raise WireError(f"a frame of {len(data)} bytes is too short for a header of {HEADER_BYTES}")
    return Header._make(_BODY.unpack_from(data, _PREFIX.size))
