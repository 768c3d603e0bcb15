"""Reads nodes of a ZooKeeper: as much of its protocol as that takes."""

from __future__ import annotations

import socket
import struct
from types import TracebackType

_GET_DATA, _GET_CHILDREN, _CLOSE = 4, 8, -11
_NO_NODE = -101
_SESSION_MILLIS = 10_000


class ZooKeeper:
    """One session at `127.0.0.1:port`; a context manager.

    Raises OSError if the server does not answer or refuses.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._requests = 0
        # Protocol version, last transaction seen, time-out, session, password.
        self._send(struct.pack(">iqiqi16s", 0, 0, _SESSION_MILLIS, 0, 16, b""))
        self._receive()

    def __enter__(self) -> ZooKeeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._socket:
            if kind is None:
                self._request(_CLOSE, b"")

    def children(self, path: str) -> list[str]:
        """The names below a node; none if it is not there."""
        answer = self._request(_GET_CHILDREN, _text(path) + b"\0")
        names, at = [], 4
        for _ in range(struct.unpack_from(">i", answer)[0] if answer else 0):
            (length,) = struct.unpack_from(">i", answer, at)
            names.append(answer[at + 4 : at + 4 + length].decode())
            at += 4 + length
        return names

    def data(self, path: str) -> bytes:
        """What a node holds; nothing if it is not there."""
        answer = self._request(_GET_DATA, _text(path) + b"\0")
        (length,) = struct.unpack_from(">i", answer) if answer else (0,)
        return answer[4 : 4 + max(length, 0)]

    def _request(self, kind: int, body: bytes) -> bytes:
        self._requests += 1
        self._send(struct.pack(">ii", self._requests, kind) + body)
        answer = self._receive()
        _, _, error = struct.unpack_from(">iqi", answer)
        if error == _NO_NODE:
            return b""
        if error:
            raise OSError(f"ZooKeeper answers with error {error}")
        return answer[16:]

    def _send(self, message: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(message)) + message)

    def _receive(self) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            more = self._socket.recv(length - len(found))
            if not more:
                raise OSError("ZooKeeper closed the connection")
            found += more
        return found


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text.encode())) + text.encode()
