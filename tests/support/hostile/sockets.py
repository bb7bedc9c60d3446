"""WebSockets: broken frames, and messages with unusual content."""

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain, repeat
from socket import SHUT_WR, socket
from typing import Final

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.socket_client import handshake
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Json, output_text

from .answers import BUFFER, REFUSED
from .attacker import Attacker, Attacks

ATTACKS: Final = Attacks()
MASK: Final = b"\0\0\0\0"
"""The mask that leaves the bytes of a frame unchanged."""
TEXT: Final = 0x1
BINARY: Final = 0x2
PING: Final = 0x9
END: Final = 0x80
CONNECTIONS: Final = 40
TOO_BIG: Final = 1009
TRY_AGAIN_LATER: Final = 1013
FRAME_BYTES: Final = 16 * 2**20
FRAGMENTS: Final = b"too many fragments"
SLOW: Final = b"too slowly"
SIZE: Final = TOO_BIG.to_bytes(2)
"""What the close frame has for each limit on a message."""
PINGS: Final = 300_000
"""Pings of 39 MB together."""


def frame(opcode: int, payload: bytes = b"", *, last: bool = True, length: int | None = None) -> bytes:
    """Return a frame, whose stated length may differ from its real one."""
    size = len(payload) if length is None else length
    if size < 126:
        sized = bytes([END | size])
    elif size < 2**16:
        sized = bytes([END | 126]) + size.to_bytes(2)
    else:
        sized = bytes([END | 127]) + size.to_bytes(8)
    return bytes([opcode | (END if last else 0)]) + sized + MASK + payload


BROKEN: Final[dict[str, bytes]] = {
    "no_mask": b"\x81\x02{}",
    "reserved_opcode": frame(0x3, b"x"),
    "reserved_bits": frame(0x71, b"{}"),
    "continues_nothing": frame(0x0, b"x"),
    "starts_twice": frame(TEXT, b"{", last=False) + frame(TEXT, b"}"),
    "ping_in_pieces": frame(PING, b"x", last=False),
    "long_ping": frame(PING, b"x" * 1_000),
    "close_of_one_byte": frame(0x8, b"x"),
    "odd_close_code": frame(0x8, b"\x00\x01"),
    "no_utf_8": frame(TEXT, b"\xff\xfe"),
    "surrogate": frame(TEXT, b'"\xed\xa0\x80"'),
    "too_long": frame(TEXT, length=2**62),
    "longer_than_there_is": frame(TEXT, length=2**63 + 1),
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "noise": bytes(range(256)) * 100,
}


@ATTACKS.add(**BROKEN)
def broken_websocket_frames(at: Attacker, case: bytes) -> None:
    with opened(at) as connection:
        connection.sendall(case)
        connection.shutdown(SHUT_WR)
        with suppress(ConnectionError):
            while connection.recv(65_536):
                pass  # until the end: a server that keeps it open causes a timeout of the socket


@ATTACKS.add(
    empty_pieces=(FRAGMENTS, chain([frame(TEXT, last=False)], repeat(frame(0x0, last=False) * 10_000, 30))),
    small_pieces=(FRAGMENTS, chain([frame(TEXT, last=False)], repeat(frame(0x0, b" ", last=False) * 10_000, 30))),
    large_pieces=(SIZE, chain([frame(TEXT, last=False)], repeat(frame(0x0, b" " * 2**20, last=False), 40))),
    half_a_message=(SLOW, [frame(TEXT, b"[" * 2**16, length=15 * 2**20)]),
)
def websocket_frames_without_end(at: Attacker, case: tuple[bytes, Iterable[bytes]]) -> None:
    """The server closes the connection and says which limit is exceeded.

    Without that limit another one would close it later: the time limit of a message, uvicorn's pings, or the limit on
    what messages hold.
    """
    why, pieces = case
    with opened(at) as connection:
        with suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
        at.others_turn()
        assert why in received(connection)


def received(connection: socket) -> bytes:
    """Return what the server sends until it closes the connection."""
    data = b""
    with suppress(ConnectionError):
        while piece := connection.recv(65_536):
            data += piece
    return data


@ATTACKS.add()
def websocket_pings_whose_answers_are_not_read(at: Attacker) -> None:
    """The server stops reading while the answers wait; it resets the connection at the time limit of a message.

    The kernel's buffers hold far less than what is sent. Without both limits the server would take all of it.
    """
    with opened(at, BUFFER) as connection:
        with pytest.raises(ConnectionError):
            connection.sendall(frame(PING, b"x" * 125) * PINGS)
        at.others_turn()


@ATTACKS.add(
    half_messages=frame(TEXT, b"[" * 12 * 2**20, length=15 * 2**20),
    half_messages_in_pieces=frame(TEXT, last=False) + frame(0x0, b"x" * 1_000, last=False) * 12_000,
    small_frames=frame(PING) * 100_000,
    small_messages=frame(TEXT, b"{}") * 30_000,
)
def websocket_frames_on_many_connections(at: Attacker, case: bytes) -> None:
    """What half messages hold on all connections has the limit of request bodies."""
    with ExitStack() as open_all:
        connections = [open_all.enter_context(opened(at)) for _ in range(CONNECTIONS)]
        with ThreadPoolExecutor(CONNECTIONS) as senders:
            list(senders.map(partial(send_for_a_while, case), connections))
        at.others_turn()


def send_for_a_while(data: bytes, connection: socket) -> None:
    """Send what the server takes within a few seconds, and read no answers."""
    connection.settimeout(5)
    with suppress(OSError):
        connection.sendall(data)


@contextmanager
def opened(at: Attacker, buffer: int | None = None) -> Iterator[socket]:
    """Open a connection and complete the handshake."""
    with at.connect(buffer) as connection:
        connection.sendall(handshake(at.headers))
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(1)
        assert head.startswith(b"HTTP/1.1 101"), head
        yield connection


ODD: Final[dict[str, str | bytes]] = {
    "deep_arrays": "[" * 1_000_000,
    "deep_objects": '{"a":' * 500_000,
    "deep_and_whole": "[" * 100_000 + "]" * 100_000,
    "deep_input": '{"type": "response.create", "model": "local/done", "input": ' + "[" * 100_000,
    "values": "[" + "[]," * 600_000 + "[]]",
    "digits": "1" * 1_000_000,
    "escapes": '"' + "\\ud800" * 500_000 + '"',
    "binary": b"\xff" * 1_000_000,
    "null": "null",
    "empty": "",
    "no_type": "{}",
    "type": '{"type": {"a": 1}}',
    "long_type": json.dumps({"type": "x" * 1_000_000}),
    "steer": '{"type": "response.steer", "previous_response_id": [], "input": {}}',
    "steer_of_none": '{"type": "response.steer", "previous_response_id": "resp_\\u0000", "input": "x"}',
    "lane": '{"type": "response.create", "stream_id": {"a": []}}',
    "long_lane": json.dumps({"type": "response.create", "stream_id": "x" * 1_000_000}),
    "nul_lane": '{"type": "response.create", "stream_id": "\\u0000"}',
    "fields": '{"type": "response.create", "model": [], "input": 5, "stream": "x", "tools": {}}',
    "infinite": '{"type": "response.create", "model": "local/done", "input": "x", "temperature": 1e999}',
}


@ATTACKS.add(**ODD)
def odd_websocket_messages(at: Attacker, case: str | bytes) -> None:
    wait_until(lambda: odd_message_is_refused(at, case))


def odd_message_is_refused(at: Attacker, case: str | bytes) -> bool:
    """Return False if the message has to be sent again."""
    with WebSocketClient(at.stack, at.token) as websocket:
        event = answer_to(websocket, case)
        if is_for_later(event):
            return False
        assert isinstance(event, dict), event
        assert event["type"] in ("error", "response.steer.failed"), event
        assert event["error"]["type"] == "invalid_request_error", event
        websocket.ask(model="local/done", input="x", store=False)
        assert output_text(websocket.response()) == "Done."
        return True


def answer_to(websocket: WebSocketClient, message: str | bytes) -> Json | int | None:
    """Send a message; return the event that answers it, or the code, if any, with which the connection is closed."""
    try:
        websocket.socket.send(message)
        event: Json = json.loads(websocket.socket.recv(60))
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None
    return event


def is_for_later(answer: Json | int | None) -> bool:
    """Return whether a message has to be sent again, because earlier large ones still count for the user."""
    return answer.get("status") == 429 if isinstance(answer, dict) else answer == TRY_AGAIN_LATER


@ATTACKS.add(
    empty=(lambda _: "{}", "invalid_value"),
    binary=(lambda _: b"x", None),
    lanes=(
        lambda number: json.dumps({"type": "response.create", "stream_id": f"lane-{number}"}),
        "websocket_stream_limit_reached",
    ),
    requests=(
        lambda _: json.dumps({"type": "response.create", "model": "local/done", "input": "x", "store": False}),
        "rate_limit_exceeded",
    ),
)
def thousands_of_websocket_messages(at: Attacker, case: tuple[Callable[[int], str | bytes], str | None]) -> None:
    """No answer is read until all are sent. What exceeds a limit of the connection is refused."""
    message, code = case
    with WebSocketClient(at.stack, at.token) as websocket:
        for number in range(3_000):
            websocket.socket.send(message(number))
        at.others_turn()
        while code_of(websocket.socket.recv(60)) != code:
            pass  # until a message is refused: without the limit, there is a timeout


def code_of(message: str | bytes) -> str | None:
    """Return the code of an event that is an error; empty for another event."""
    event = json.loads(message)
    found: str | None = event["error"]["code"] if event["type"] == "error" else ""
    return found


@ATTACKS.add()
def unstored_histories_on_many_connections(at: Attacker) -> None:
    """They are remembered until their connections close; past a limit, further ones are refused."""
    served = refused = 0
    with ExitStack() as open_all:
        for _ in range(CONNECTIONS):
            if served and refused >= REFUSED:
                break
            websocket = open_all.enter_context(WebSocketClient(at.stack, at.token))
            websocket.ask(model="local/done", input="x" * 10_000_000, store=False)
            kinds = [json.loads(websocket.socket.recv(60))]
            while kinds[-1]["type"] not in ("response.completed", "error"):
                kinds.append(json.loads(websocket.socket.recv(60)))
            if kinds[-1]["type"] == "error":
                assert kinds[-1]["status"] == 429, kinds[-1]
                refused += 1
            else:
                served += 1
        at.others_turn()
    assert served
    assert refused


@ATTACKS.add(larger_than_a_frame=17 * 2**20, text=15 * 2**20)
def huge_websocket_message(at: Attacker, case: int) -> None:
    wait_until(lambda: huge_message_is_refused(at, case))


def huge_message_is_refused(at: Attacker, case: int) -> bool:
    """Return False if the message has to be sent again."""
    with WebSocketClient(at.stack, at.token) as websocket:
        answer = answer_to(websocket, "x" * case)
    if case > FRAME_BYTES and answer in (TOO_BIG, None):
        return True
    # A client that is still sending may not receive the code with which the server closes the connection.
    if answer is None or is_for_later(answer):
        return False
    assert case <= FRAME_BYTES
    assert isinstance(answer, dict), answer
    assert answer["status"] in (400, 413), answer
    return True
