"""Hosts that fall silent."""

import os
import socket
from contextlib import ExitStack

import pytest

from rlhf_dialog.distributed import silence
from rlhf_dialog.distributed.world import World
from tests.parts.ranks import in_ranks

PROBES = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)


def is_watched(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))


def test_the_kernel_asks_after_the_other_end_of_a_tcp_connection(monkeypatch):
    monkeypatch.setattr(silence, "NOTICED_AFTER", 8.0)
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(server.getsockname()))
        accepted = stack.enter_context(server.accept()[0])
        pipe, other_end = map(stack.enter_context, socket.socketpair())
        silence.notice_silence()
        assert [is_watched(one) for one in (client, accepted, pipe, other_end)] == [True, True, False, False]
        assert [client.getsockopt(socket.IPPROTO_TCP, option) for option in PROBES] == [2, 2, 3]
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 8000
        client.sendall(b"still open")
        assert accepted.recv(10) == b"still open"


def test_without_a_list_of_open_files_nothing_is_set(tmp_path):
    silence.notice_silence(tmp_path)


def watched(world: World) -> list[bool]:
    with world.contact():
        found = []
        for name in os.listdir("/proc/self/fd"):
            try:
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6):
                        found.append(is_watched(one))
            except OSError:
                continue
        return found


@pytest.mark.multiprocess
def test_the_connections_of_ranks_are_watched():
    for found in in_ranks(2, watched):
        assert len(found) >= 2  # to the other rank, and to where both met
        assert all(found)
