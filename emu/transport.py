"""Transport: the ZeroMQ sockets of one actor.  The only file that imports zmq.

Law: bytes in, bytes out, in order between two actors, nothing dropped in silence.
Each actor binds one PULL socket and connects one PUSH socket to every actor that it
sends to (itself included, when a link stays inside: every hop crosses a socket).
A HELLO opens each connection, so that the run starts only when all are up.

What is in flight is bounded by the model's credits, never by ZeroMQ's high-water
mark; when a socket pushes back all the same, ``send`` says so and the caller counts it.
Closing waits for nothing (LINGER 0).  CURVE encrypts where actors sit on several
hosts: keys live in memory, for one session.  Over tcp an endpoint binds a free port, of the
range $EMU_DATA_PORTS where that is set, for firewalls.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import zmq
from zmq.auth.thread import ThreadAuthenticator

from emu.errors import ConfigError

HIGH_WATER_MESSAGES = 4096
"""Far above what the windows allow in flight in any sensible case."""
COPY_BYTES = 128 * 1024
KERNEL_BUFFER_BYTES = 256 * 1024
"""Small enough to stay in the cache: 4 MiB cost 15 % of the throughput of a ring all-reduce over tcp."""
PORTS_VARIABLE: Final = "EMU_DATA_PORTS"
_NO_WAIT: Final = int(zmq.DONTWAIT)  # plain integers: zmq's flags cost a microsecond an operation
_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_EVENTS: Final = int(zmq.EVENTS)
_READABLE: Final = int(zmq.POLLIN)


def data_ports(environment: Mapping[str, str] | None = None) -> range | None:
    """The ports that endpoints may bind, from $EMU_DATA_PORTS (``20000-24999``); None where any will do.  Raises ConfigError."""
    text = (os.environ if environment is None else environment).get(PORTS_VARIABLE, "")
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1024 <= first <= last <= 65_535:
        raise ConfigError(f"{PORTS_VARIABLE} {text!r}: write FIRST-LAST, from 1024 to 65535, such as 20000-24999")
    return range(first, last + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """One CURVE key pair for all actors of a session."""

    public: bytes
    secret: bytes

    @staticmethod
    def make() -> Keys:
        public, secret = zmq.curve_keypair()
        return Keys(public=public, secret=secret)


class Transport:
    """Sockets of one actor.  ``scheme`` is "ipc" (same host, no file is left) or "tcp", there on one of ``ports``.

    Raises ConfigError where all of them are taken.
    """

    def __init__(
        self,
        *,
        scheme: str,
        address: str,
        name: str,
        keys: Keys | None = None,
        ports: range | None = None,
        io_threads: int = 1,
    ) -> None:
        self._context = zmq.Context(io_threads=io_threads)
        self._authenticator: ThreadAuthenticator | None = None
        self._keys = keys
        if keys is not None:
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback("emu", credentials_provider=_OnlyThisSession(keys.public))
        self._pull = self._context.socket(zmq.PULL)
        self._pull.setsockopt(zmq.RCVHWM, HIGH_WATER_MESSAGES)
        self._common(self._pull)
        if keys is not None:
            self._pull.curve_server = True
            self._pull.curve_publickey, self._pull.curve_secretkey = keys.public, keys.secret
            self._pull.setsockopt(zmq.ZAP_DOMAIN, b"emu")
            self._pull.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._push: dict[int, zmq.Socket[bytes]] = {}
        try:
            if scheme == "ipc":
                # Linux has socket names without a file ("@"): nothing is left even after kill -9.
                self._pull.bind(f"ipc://@emu-{name}" if sys.platform == "linux" else f"ipc:///tmp/emu-{name}")
            else:
                _bind(self._pull, address, ports)
        except BaseException:
            self.close()
            raise
        self.endpoint: str = self._pull.getsockopt_string(zmq.LAST_ENDPOINT)
        self.descriptor = int(self._pull.getsockopt(zmq.FD))

    def _common(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDBUF, KERNEL_BUFFER_BYTES)
        socket.setsockopt(zmq.RCVBUF, KERNEL_BUFFER_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)

    def connect(self, peers: dict[int, str]) -> None:
        """One PUSH socket to each peer's endpoint."""
        for peer, endpoint in peers.items():
            socket = self._context.socket(zmq.PUSH)
            socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MESSAGES)
            self._common(socket)
            if self._keys is not None:
                socket.curve_serverkey = self._keys.public
                socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
            socket.connect(endpoint)
            self._push[peer] = socket

    def send(self, peer: int, header: bytes, payload: Any) -> bool:
        """False when the socket would block: nothing was sent, try again later.

        ``payload``: None, a numpy array, or what ``receive`` gave, which goes on without a copy.
        """
        socket = self._push[peer]
        try:
            if payload is None:
                socket.send(header, _NO_WAIT)
            else:
                socket.send(header, _MORE)
                _send_payload(socket, payload)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Iterator[tuple[memoryview, zmq.Frame | None]]:
        """All (header, payload) that are here now; the payload has the buffer protocol."""
        pull = self._pull
        while self.readable():  # cheaper than the exception of a receive that finds nothing
            first = pull.recv(_NO_WAIT, copy=False)
            yield first.buffer, pull.recv(copy=False) if first.more else None

    def readable(self) -> bool:
        """Whether something is here.  The descriptor is edge-triggered: ask this before waiting on it."""
        return bool(int(self._pull.getsockopt(_EVENTS)) & _READABLE)

    def close(self) -> None:
        for socket in self._push.values():
            socket.close(0)
        self._pull.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()


def _bind(socket: zmq.Socket[bytes], address: str, ports: range | None) -> None:
    if ports is None:
        socket.bind(f"tcp://{address}:*")
        return
    for port in ports:
        try:
            socket.bind(f"tcp://{address}:{port}")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
        else:
            return
    raise ConfigError(
        f"{PORTS_VARIABLE}: all of {address}:{ports[0]}-{ports[-1]} are taken; give a wider range, or end other sessions"
    )


def _send_payload(socket: zmq.Socket[bytes], payload: Any) -> None:
    """Without a copy where that is cheap.

    A received frame, or an array that is just a view of one, is passed on by reference.  For a Python buffer
    pyzmq must run a thread that frees it, so that a copy is cheaper up to :data:`COPY_BYTES`.
    """
    if isinstance(payload, np.ndarray):
        base = payload.base
        if isinstance(base, zmq.Frame) and len(base) == payload.nbytes:
            payload = base
        elif payload.nbytes <= COPY_BYTES:
            socket.send(payload.view(np.uint8).data, _NO_WAIT)
            return
        else:
            payload = payload.view(np.uint8).data
    socket.send(payload, _NO_WAIT, copy=False)


class _OnlyThisSession:
    """Accepts the session's own key and no other."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._public
