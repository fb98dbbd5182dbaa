"""ZeroMQ between two actors: what is sent arrives, and with keys only what the session's own actors send."""

from __future__ import annotations

import select
import time

import numpy as np
import pytest
import zmq

from emu.errors import ConfigError
from emu.transport import Keys, Transport, data_ports

pytestmark = pytest.mark.slow


def transport(name: str, keys: Keys | None) -> Transport:
    return Transport(scheme="tcp", address="127.0.0.1", name=name, keys=keys)


def received(at: Transport, within_s: float) -> list[tuple[bytes, bytes]]:
    """All that comes in ``within_s``, or the first that comes."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        found = [(bytes(header), b"" if payload is None else bytes(payload)) for header, payload in at.receive()]
        if found:
            return found
        select.select([at.descriptor], [], [], 0.05)
    return []


@pytest.mark.parametrize("with_keys", [True, False])
def test_what_is_sent_arrives(with_keys: bool) -> None:
    """Header and payload come out as they went in, with CURVE and without."""
    keys = Keys.make() if with_keys else None
    one, other = transport("one", keys), transport("other", keys)
    try:
        one.connect({1: other.endpoint})
        assert one.send(1, b"header", np.arange(4, dtype=np.uint8))
        assert received(other, within_s=5) == [(b"header", bytes(range(4)))]
    finally:
        one.close()
        other.close()


def test_endpoints_keep_to_the_ports_they_are_given() -> None:
    """Each binds a free port of the range; when none is left the next one says so, and takes nothing."""
    first = 23_990
    ports = range(first, first + 2)
    bound = [Transport(scheme="tcp", address="127.0.0.1", name=str(port), ports=ports) for port in ports]
    try:
        assert [one.endpoint for one in bound] == [f"tcp://127.0.0.1:{port}" for port in ports]
        with pytest.raises(ConfigError, match=r"all of 127\.0\.0\.1:23990-23991 are taken; give a wider range"):
            Transport(scheme="tcp", address="127.0.0.1", name="late", ports=ports)
    finally:
        for one in bound:
            one.close()


@pytest.mark.parametrize("text", ["", "20000-24999", "20000", "24999-20000", "80-90", "20000-70000", "a-b", "-1-5"])
def test_the_range_of_ports_is_read_from_the_environment(text: str) -> None:
    """FIRST-LAST is a range with both ends, nothing is any port, and what is neither is refused by name."""
    if text in ("", "20000-24999"):
        assert data_ports({"EMU_DATA_PORTS": text}) == (range(20_000, 25_000) if text else None)
        return
    with pytest.raises(ConfigError, match=f"EMU_DATA_PORTS '{text}': write FIRST-LAST"):
        data_ports({"EMU_DATA_PORTS": text})


@pytest.mark.parametrize("intruder", ["without a key", "with keys of its own", "with its own and the server's public key"])
def test_a_peer_without_the_sessions_key_is_refused(intruder: str) -> None:
    """Nothing of what a stranger sends comes in, and one of the session still gets through afterwards."""
    keys, own = Keys.make(), Keys.make()
    target, friend = transport("target", keys), transport("friend", keys)
    context = zmq.Context()
    stranger = context.socket(zmq.PUSH)
    stranger.setsockopt(zmq.LINGER, 0)
    if intruder != "without a key":
        stranger.curve_publickey, stranger.curve_secretkey = own.public, own.secret
        stranger.curve_serverkey = keys.public if "server's" in intruder else own.public
    monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    try:
        stranger.connect(target.endpoint)
        for _ in range(3):
            try:
                stranger.send(b"let me in", zmq.DONTWAIT)
            except zmq.Again:  # refused already: there is no connection to send on
                break
        assert received(target, within_s=1.0) == []
        assert not monitor.poll(0), "the handshake succeeded"
        friend.connect({0: target.endpoint})
        assert friend.send(0, b"friend", None)
        assert received(target, within_s=5) == [(b"friend", b"")]
    finally:
        stranger.disable_monitor()
        monitor.close(0)
        stranger.close(0)
        context.term()
        friend.close()
        target.close()


def test_a_stranger_gets_nothing() -> None:
    """Who binds a socket in the place of an actor, without the session's secret key, is sent nothing."""
    keys, own = Keys.make(), Keys.make()
    context = zmq.Context()
    impostor = context.socket(zmq.PULL)
    impostor.setsockopt(zmq.LINGER, 0)
    impostor.curve_server = True
    impostor.curve_publickey, impostor.curve_secretkey = keys.public, own.secret
    port = impostor.bind_to_random_port("tcp://127.0.0.1")
    sender = transport("sender", keys)
    try:
        sender.connect({0: f"tcp://127.0.0.1:{port}"})
        sender.send(0, b"secret", None)
        assert not impostor.poll(1000)
    finally:
        sender.close()
        impostor.close(0)
        context.term()
