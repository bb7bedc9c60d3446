"""A real listening socket is closed while a client connects."""

import asyncio
import socket
import sys

import pytest

from llama_stack_responses.lifecycle.listening_sockets import drop_new_connections
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the filter")


async def test_connection_that_waits_is_accepted_and_none_after_it() -> None:
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    with socket.create_connection(address) as before, socket.socket() as after:
        drop_new_connections([server])
        after.setblocking(False)
        assert after.connect_ex(address) != 0
        await until(lambda: bool(accepted))
        server.close()
        accepted[0].write(b"answer")
        before.settimeout(60)
        assert await asyncio.to_thread(before.recv, 10) == b"answer"
        # Its packet was dropped; the kernel repeats it after a second, and the socket is closed then.
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().sock_recv(after, 1)
    assert len(accepted) == 1
    accepted[0].close()
