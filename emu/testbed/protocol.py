"""Protocol: what travels over a testbed's socket.

Law: one request per connection, a line of JSON; then replies, a line of JSON each, the last of which ends it.  Only
text, numbers and lists of them are read, never code.  A client that closes its sending half, or goes, wants what it asked
for to stop; a request that is over at once does not look.  Both ends are of one user on one host.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from types import TracebackType
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from emu.errors import EmuError

PROTOCOL_VERSION: Final = 1
MAX_REQUEST_BYTES: Final = 1 << 20
MAX_REPLY_BYTES: Final = 64 << 20
"""A status of some ten thousand links, with everything, is a few megabytes."""
REQUEST_TIMEOUT_S: Final = 5.0
"""How long a client may take to say what it wants."""
SEND_TIMEOUT_S: Final = 10.0
"""How long a client may leave its replies unread before it counts as gone."""
_READ_BYTES: Final = 1 << 16


class ProtocolError(EmuError):
    """What came over the socket is no message of this version."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


_M = TypeVar("_M", bound=_Message)


class Request(_Message):
    """What is asked; ``arguments`` are checked by whoever answers."""

    emu: Literal[1] = PROTOCOL_VERSION
    request: str = Field(min_length=1, max_length=64)
    arguments: dict[str, Any] = {}


class Reply(_Message):
    """One line of an answer: of data, for good on stderr, or in passing; or the end, with a value, or an exit code and why."""

    kind: Literal["line", "message", "progress", "end"]
    text: str = ""
    exit_code: int = 0
    value: Any = None


def encode(message: Request | Reply) -> bytes:
    """A message as its line."""
    return json.dumps(message.model_dump(), allow_nan=False).encode() + b"\n"


def decode_request(line: bytes) -> Request:
    """Raises ProtocolError."""
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a request is a line of JSON: {error}") from None
    version = plain.get("emu") if isinstance(plain, dict) else None
    if version != PROTOCOL_VERSION or isinstance(version, bool):
        raise ProtocolError(
            f"protocol version {version!r} is not spoken here, only {PROTOCOL_VERSION};"
            " the testbed and the command are of different versions of emu: emu down, then emu up"
        )
    return _checked(Request, plain)


def decode_reply(line: bytes) -> Reply:
    """Raises ProtocolError."""
    try:
        return _checked(Reply, json.loads(line))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a reply is a line of JSON: {error}") from None


def _checked(model: type[_M], plain: Any) -> _M:
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "message"
        raise ProtocolError(f"{place}: {first['msg']}") from None


class Connection:
    """One end of a conversation.  Replies may be sent from several threads; requests and replies are read by one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._read = b""
        self._sending = threading.Lock()
        sock.settimeout(SEND_TIMEOUT_S)

    def send(self, message: Request | Reply) -> bool:
        """Whether the other end took it; it may be gone, or have stopped reading."""
        try:
            with self._sending:
                self._sock.sendall(encode(message))
        except OSError:
            return False
        return True

    def end(self, *, exit_code: int = 0, text: str = "", value: object = None) -> None:
        """The last reply; the connection is closed behind it."""
        self.send(Reply(kind="end", text=text, exit_code=exit_code, value=value))
        self.close()

    def read_line(self, *, most_bytes: int, timeout_s: float | None) -> bytes | None:
        """The next line; None at the end of the stream.  Raises ProtocolError for a line too long, TimeoutError."""
        while b"\n" not in self._read:
            if len(self._read) > most_bytes:
                raise ProtocolError(f"a line of more than {most_bytes} bytes")
            if not select.select([self._sock], [], [], timeout_s)[0]:
                raise TimeoutError(f"nothing was said for {timeout_s:g} s")
            found = self._sock.recv(_READ_BYTES)
            if not found:
                return None
            self._read += found
        line, _, self._read = self._read.partition(b"\n")
        return line

    def stop(self) -> None:
        """Say that what was asked for is not wanted any more; replies still come."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def stopped(self, timeout_s: float = 0.0) -> bool:
        """Whether the other end has said so, or is gone; waits that long for it.  More requests are not read."""
        try:
            return bool(select.select([self._sock], [], [], timeout_s)[0]) and not self._sock.recv(_READ_BYTES)
        except (OSError, ValueError):  # ValueError: closed here in the meantime
            return True

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
