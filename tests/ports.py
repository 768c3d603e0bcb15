"""Ports for servers whose port must be known before they start, and must still be free when they start again."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

#: Below it lie the ports of well-known servers.
LOWEST = 10_000


def free_ports(count: int) -> list[int]:
    """`count` different ports of the loopback interface on which nobody listens.

    None is of the range from which the system takes a port where a program names none (ip_local_port_range). One of
    those may be taken again before the server has bound it, or while the server is down: by another process, or by a
    client that waits for this very server and is given its port as the source of the connection.
    """
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.SystemRandom().sample(range(LOWEST, _first_ephemeral()), k=64 * count):
            each = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                each.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise OSError(f"fewer than {count} of {64 * count} ports from {LOWEST} to {_first_ephemeral() - 1} are free")


def _first_ephemeral() -> int:
    """The lowest port that the system gives away; of a machine that says nothing, or gives away nearly all, Linux's."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if first >= LOWEST + 4096:
            return first
    return 32_768
