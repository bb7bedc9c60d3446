"""A client that sends invalid UTF-8 causes no traceback in the web server."""

import pytest

from tests.support.stack import LiveStack
from tests.support.tracebacks import assert_no_traceback
from tests.support.upstream import Upstream
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import output_text

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]


def test_websocket_message_with_invalid_utf8_closes_it_without_a_traceback(
    stack: LiveStack, upstream: Upstream
) -> None:
    before = stack.log.stat().st_size
    with WebSocketClient(stack) as websocket, WebSocketClient(stack) as other:
        websocket.socket.send(b'{"type": "\xff"}', text=True)
        assert websocket.closed()[0] == 1007
        other.ask(model="local/echo", input="x")
        assert output_text(other.response())
    assert_no_traceback(stack.log, before)
