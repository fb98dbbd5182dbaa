"""The wire format: golden bytes, exact inverse, and refusal of everything else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.errors import WireError
from emu.wire import (
    FRAME,
    HEADER_BYTES,
    HELLO,
    NOTICE,
    NOTICE_BYTES,
    PACKET,
    PACKET_BYTES,
    Header,
    NoticeHeader,
    PacketHeader,
    pack,
    pack_hello,
    pack_notice,
    pack_packet,
    unpack,
    unpack_hello,
    unpack_notice,
    unpack_packet,
    unpack_prefix,
)  # fmt: skip

SESSION, EPOCH = 0x1122334455667788, 0x99
HEADER = Header(
    link=1,
    channel=2,
    source_rank=3,
    target_rank=4,
    hop=5,
    flow=6,
    route_flow=7,
    head_ps=8,
    tail_ps=9,
    promise_ps=19,
    communicator=10,
    operation=-11,
    message=12,
    chunk=13,
    payload_bytes=14,
    flag_every_bytes=32,
    message_bytes=15,
    digest=16,
    credit_bytes=17,
    anchor_ns=-18,
)
ACCOUNT = [*range(20, 31)]
GOLDEN_ACCOUNT = (
    "1400000000000000" "1500000000000000" "1600000000000000" "1700000000000000" "1800000000000000" "1900000000000000"  # causes
    "1a00000000000000" "1b000000" "1c00000000000000" "1d00000000000000" "1e000000"  # origin, first and last start
)  # fmt: skip
GOLDEN = bytes.fromhex(
    "4d45" "05" "02" "8877665544332211" "99000000"  # magic, version, FRAME, session, epoch
    "01000000" "02000000" "03000000" "04000000" "0500"  # link, channel, source, target, hop
    "0600000000000000" "07000000" "0800000000000000" "0900000000000000"  # flow, route flow, head, tail
    "1300000000000000"  # promise
    "0a00000000000000" "f5ffffffffffffff" "0c000000" "0d000000"  # communicator, operation, message, chunk
    "0e00000000000000" "20" "0f00000000000000" "1000000000000000"  # payload, flags, message, digest
    "1100000000000000" "eeffffffffffffff"  # credit, anchor
    + GOLDEN_ACCOUNT
)  # fmt: skip
GOLDEN_HELLO = bytes.fromhex("4d45" "05" "01" "8877665544332211" "99000000" "bbaa0000")  # fmt: skip
PACKET_HEADER = PacketHeader(
    link=1, channel=2, source_rank=3, target_rank=4, flow=5, route_flow=6, communicator=7, operation=-8, message=9, chunk=10,
    chunk_bytes=11, flag_every_bytes=33, message_bytes=12, digest=13, traffic_class=14, queue_pair=15, queue=16, marked=True,
    trimmed=False,
    sequence=17, sending=25, offset_bytes=18, payload_bytes=19, entropy=20, sent_ps=21, head_ps=22, tail_ps=23, anchor_ns=-24,
)  # fmt: skip
GOLDEN_PACKET = bytes.fromhex(
    "4d45" "05" "03" "8877665544332211" "99000000"  # magic, version, PACKET, session, epoch
    "01000000" "02000000" "03000000" "04000000"  # link, channel, source, target
    "0500000000000000" "06000000" "0700000000000000" "f8ffffffffffffff"  # flow, route flow, communicator, operation
    "09000000" "0a000000" "0b00000000000000" "21" "0c00000000000000"  # message, chunk, chunk bytes, flags, message bytes
    "0d00000000000000" "0e00" "0f00" "1000" "01" "00"  # digest, class, queue pair, queue, marked, trimmed
    "1100000000000000" "19000000" "1200000000000000" "1300000000000000"  # sequence, sending, offset, payload
    "1400000000000000" "1500000000000000" "1600000000000000" "1700000000000000"  # entropy, sent, head, tail
    "e8ffffffffffffff"  # anchor
    + GOLDEN_ACCOUNT
)  # fmt: skip
NOTICE_HEADER = NoticeHeader(
    channel=1, hop=2, kind=3, marked=True, link=-4, queue=5, source_rank=-6, target_rank=7, queue_pair=8, value=9, n_bytes=10,
    selective=-11, echo_ps=12, port=13, due_ps=14, anchor_ns=-15,
)  # fmt: skip
GOLDEN_NOTICE = bytes.fromhex(
    "4d45" "05" "04" "8877665544332211" "99000000"  # magic, version, NOTICE, session, epoch
    "01000000" "0200" "03" "01" "fcffffff" "0500"  # channel, hop, kind, marked, link, queue
    "faffffff" "07000000" "0800" "0900000000000000" "0a00000000000000"  # source, target, queue pair, value, bytes
    "f5ffffffffffffff" "0c00000000000000" "0d00000000000000"  # selective, echo, port
    "0e00000000000000" "f1ffffffffffffff"  # due, anchor
)  # fmt: skip

accounts = st.lists(st.integers(0, 2**32 - 1), min_size=11, max_size=11)
u8, u16, u32, u64 = st.integers(0, 2**8 - 1), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
i32, i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
headers = st.builds(
    Header,
    link=u32, channel=u32, source_rank=u32, target_rank=u32, hop=u16, flow=u64, route_flow=u32,
    head_ps=i64, tail_ps=i64, promise_ps=i64,
    communicator=u64, operation=i64, message=u32, chunk=u32, payload_bytes=u64, flag_every_bytes=u8,
    message_bytes=u64, digest=u64,
    credit_bytes=u64, anchor_ns=i64,
)  # fmt: skip
packets = st.builds(
    PacketHeader,
    link=u32, channel=u32, source_rank=u32, target_rank=u32, flow=u64, route_flow=u32, communicator=u64, operation=i64,
    message=u32, chunk=u32, chunk_bytes=u64, flag_every_bytes=u8, message_bytes=u64, digest=u64, traffic_class=u16,
    queue_pair=u16, queue=u16, marked=st.booleans(), trimmed=st.booleans(), sequence=u64, sending=u32, offset_bytes=u64,
    payload_bytes=u64, entropy=u64, sent_ps=i64, head_ps=i64, tail_ps=i64, anchor_ns=i64,
)  # fmt: skip
notices = st.builds(
    NoticeHeader,
    channel=u32, hop=u16, kind=st.integers(0, 255), marked=st.booleans(), link=i32, queue=u16, source_rank=i32,
    target_rank=i32, queue_pair=u16, value=i64, n_bytes=u64, selective=i64, echo_ps=i64, port=u64, due_ps=i64, anchor_ns=i64,
)  # fmt: skip


def test_a_frame_header_has_these_bytes() -> None:
    """The bytes of version 5 are fixed: whoever changes them must change the version."""
    assert pack(SESSION, EPOCH, HEADER, ACCOUNT) == GOLDEN
    assert len(GOLDEN) == HEADER_BYTES == 215


def test_a_greeting_has_these_bytes() -> None:
    """HELLO is the prefix and the number of the process."""
    assert pack_hello(SESSION, EPOCH, 0xAABB) == GOLDEN_HELLO
    assert unpack_prefix(GOLDEN_HELLO, SESSION) == (HELLO, EPOCH)
    assert unpack_hello(GOLDEN_HELLO) == 0xAABB


def test_packets_and_notices_have_these_bytes() -> None:
    """A packet's header carries its chunk and itself, a notice's all there is; what follows a packet's is its payload."""
    assert pack_packet(SESSION, EPOCH, PACKET_HEADER, ACCOUNT) == GOLDEN_PACKET
    assert pack_notice(SESSION, EPOCH, NOTICE_HEADER) == GOLDEN_NOTICE
    assert (len(GOLDEN_PACKET), len(GOLDEN_NOTICE)) == (PACKET_BYTES, NOTICE_BYTES) == (249, 96)
    assert unpack_prefix(GOLDEN_PACKET, SESSION) == (PACKET, EPOCH)
    assert unpack_prefix(GOLDEN_NOTICE, SESSION) == (NOTICE, EPOCH)
    assert unpack_packet(memoryview(GOLDEN_PACKET + b"payload")) == (PACKET_HEADER, ACCOUNT)
    assert unpack_notice(memoryview(GOLDEN_NOTICE)) == NOTICE_HEADER


@given(packet=packets, account=accounts, notice=notices)
@settings(max_examples=20, deadline=None)
def test_packets_and_notices_survive_the_wire(packet: PacketHeader, account: list[int], notice: NoticeHeader) -> None:
    """Unpacking is the inverse of packing, within the fields' ranges."""
    assert unpack_packet(pack_packet(SESSION, EPOCH, packet, account)) == (packet, account)
    assert unpack_notice(pack_notice(SESSION, EPOCH, notice)) == notice


def test_unpacking_reads_the_golden_bytes_also_with_a_payload_behind() -> None:
    """A header is read from the front of a message, whatever follows it."""
    assert unpack_prefix(GOLDEN, SESSION) == (FRAME, EPOCH)
    assert unpack(GOLDEN) == (HEADER, ACCOUNT)
    assert unpack(memoryview(GOLDEN + b"payload")) == (HEADER, ACCOUNT)


@given(session=u64, epoch=u32, header=headers, account=accounts)
@settings(max_examples=40, deadline=None)
def test_unpack_is_the_inverse_of_pack(session: int, epoch: int, header: Header, account: list[int]) -> None:
    """Every header within the fields' ranges survives, with its session and epoch."""
    data = pack(session, epoch, header, account)
    assert unpack_prefix(data, session) == (FRAME, epoch)
    assert unpack(data) == (header, account)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0" + GOLDEN[1:], "magic 0x4500 version 5: this is not emu's wire format version 5"),
        (GOLDEN[:2] + b"\x02" + GOLDEN[3:], "magic 0x454d version 2: this is not emu's wire format version 5"),
        (GOLDEN[:4] + b"\x89" + GOLDEN[5:], "a message of session 1122334455667789 reached session 1122334455667788"),
        (GOLDEN[:15], "a message of 15 bytes is too short for a header of 16"),
        (b"", "a message of 0 bytes is too short for a header of 16"),
    ],
    ids=["magic", "version", "session", "short", "empty"],
)
def test_what_is_not_of_this_session_is_refused(data: bytes, message: str) -> None:
    """Another magic, version or session, or too few bytes, is a WireError that says what was found."""
    with pytest.raises(WireError, match=f"^{re.escape(message)}$"):
        unpack_prefix(data, SESSION)


def test_a_truncated_frame_or_greeting_is_refused() -> None:
    """A header or a greeting that lacks its last byte is a WireError and never a wrong number."""
    with pytest.raises(WireError, match="a frame of 214 bytes is too short for a header of 215"):
        unpack(GOLDEN[:-1])
    with pytest.raises(WireError, match="a greeting of 19 bytes is too short for one of 20"):
        unpack_hello(GOLDEN_HELLO[:-1])
    with pytest.raises(WireError, match="a packet of 248 bytes is too short for a header of 249"):
        unpack_packet(GOLDEN_PACKET[:-1])
    with pytest.raises(WireError, match="a notice of 95 bytes is too short for one of 96"):
        unpack_notice(GOLDEN_NOTICE[:-1])
