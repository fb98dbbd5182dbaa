"""Transport: the ZeroMQ sockets of one actor.  The only file that imports zmq.

Law: bytes in, bytes out, in order between two actors, nothing dropped in silence.
Each actor binds one PULL socket and connects one PUSH socket to every actor that it
sends to (itself included, when a link stays inside: every hop crosses a socket).
A HELLO opens each connection, so that the run starts only when all are up.

What is in flight is bounded by the model's credits, never by ZeroMQ's high-water
mark; when a socket pushes back all the same, ``send`` says so and the caller counts it.
Closing waits for nothing (LINGER 0).  CURVE encrypts where actors sit on several
hosts: keys live in memory, for one session.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq
from zmq.auth.thread import ThreadAuthenticator

HIGH_WATER_MESSAGES = 4096
"""Far above what the windows allow in flight in any sensible case."""
COPY_BYTES = 128 * 1024
KERNEL_BUFFER_BYTES = 256 * 1024
"""Small enough to stay in the cache: 4 MiB cost 15 % of the throughput of a ring all-reduce over tcp."""


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
    """Sockets of one actor.  ``scheme`` is "ipc" (same host, no file is left) or "tcp"."""

    def __init__(self, *, scheme: str, address: str, name: str, keys: Keys | None = None, io_threads: int = 1) -> None:
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
        if scheme == "ipc":
            # Linux has socket names without a file ("@"): nothing is left even after kill -9.
            self._pull.bind(f"ipc://@emu-{name}" if sys.platform == "linux" else f"ipc:///tmp/emu-{name}")
        else:
            self._pull.bind(f"tcp://{address}:*")
        self.endpoint: str = self._pull.getsockopt_string(zmq.LAST_ENDPOINT)
        self._push: dict[int, zmq.Socket[bytes]] = {}
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
                socket.send(header, zmq.DONTWAIT)
            else:
                socket.send(header, zmq.DONTWAIT | zmq.SNDMORE)
                _send_payload(socket, payload)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Iterator[tuple[memoryview, zmq.Frame | None]]:
        """All (header, payload) that are here now; the payload has the buffer protocol."""
        pull = self._pull
        while self.readable():  # cheaper than the exception of a receive that finds nothing
            first = pull.recv(zmq.DONTWAIT, copy=False)
            yield first.buffer, pull.recv(copy=False) if first.more else None

    def readable(self) -> bool:
        """Whether something is here.  The descriptor is edge-triggered: ask this before waiting on it."""
        return bool(int(self._pull.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def close(self) -> None:
        for socket in self._push.values():
            socket.close(0)
        self._pull.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()


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
            socket.send(payload.view(np.uint8).data, zmq.DONTWAIT)
            return
        else:
            payload = payload.view(np.uint8).data
    socket.send(payload, zmq.DONTWAIT, copy=False)


class _OnlyThisSession:
    """Accepts the session's own key and no other."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._public
