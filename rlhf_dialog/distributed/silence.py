"""Notice a host that falls silent: without power or network it closes no connection, so nobody hears that it is gone."""

import os
import socket
from pathlib import Path

NOTICED_AFTER = 120.0  # seconds; a process that computes for longer is not silent, because its kernel answers


def notice_silence(proc: Path = Path("/proc")) -> None:
    """Let this process's TCP connections fail when the other host has not answered for NOTICED_AFTER; Linux.

    gloo, which waits an hour for a slow process, has no option for it, so the sockets are found among the open files. The kernel
    probes an idle connection (SO_KEEPALIVE) and, for one with data under way, counts until they are acknowledged.
    """
    step = max(round(NOTICED_AFTER / 4), 1)
    for link in proc.glob("self/fd/*"):
        try:
            if not os.readlink(link).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as connection:
                is_internet = connection.family in (socket.AF_INET, socket.AF_INET6)
                if is_internet and connection.type == socket.SOCK_STREAM:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, step)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, step)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * NOTICED_AFTER))
        except OSError:  # closed in the meantime
            continue
