"""Transfer of request bodies: endless, incomplete, or aborted by the client."""

import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from itertools import repeat
from typing import Final

from tests.support.socket_client import HEAD_OF_A_MESSAGE, UNFINISHED, disconnect_after, handshake, request

from .attacker import Attacker, Attacks, client_error, refused

ATTACKS: Final = Attacks()
BLOCK: Final = b"x" * 2**20
JSON: Final = {"content-type": "application/json"}
FORM: Final = "content-type: multipart/form-data; boundary=b"
FILE_PART: Final = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'


def send_form(at: Attacker, opening: bytes, block: bytes, blocks: int) -> int:
    """Send a form of `blocks` blocks, while it is accepted; return the status, or 0 if the connection just ended."""
    path = f"/v1/containers/{at.container()}/files"
    with at.raw(f"POST {path}", FORM, "transfer-encoding: chunked") as connection:
        with suppress(ConnectionError):
            for piece in (opening, *repeat(block, blocks)):
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            connection.sendall(b"0\r\n\r\n")
        with suppress(ConnectionError):
            return int((connection.recv(65_536).split(b" ", 2)[1:2] or [b"0"])[0])
    return 0


@ATTACKS.add(
    content=(FILE_PART, BLOCK, 200),
    head=(b"--b\r\nContent-Disposition: form-data; ", BLOCK, 200),
    header=(b"--b\r\n", b"x: y\r\n" * 100_000, 100),
    preamble=(b"", BLOCK, 200),
    parts=(b"", (FILE_PART + b"x\r\n") * 100, 100),
    fields=(b"", b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\nx\r\n' * 1_000, 100),
    bounds=(b"", b"--b\r\n" * 100_000, 100),
)
def form_without_end(at: Attacker, case: tuple[bytes, bytes, int]) -> None:
    assert send_form(at, *case) in (0, 400, 413)


@ATTACKS.add()
def file_names(at: Attacker) -> None:
    names = (
        b"..",
        b".",
        b"",
        b"a\0b",
        b"x" * 300,
        b"\xff\xfe",
        b"/etc/passwd",
        b"../../x",
        b"a/b",
        b"-",
        b"\xed\xa0\x80",
    )
    path = f"/containers/{at.container()}/files"
    kind = {"content-type": "multipart/form-data; boundary=b"}
    for name in (*names, b"\\..\\x", b"\r\nx: y", b"~", b"con", "\u202e".encode(), b"x" * 100_000):
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n' % name
        answer = at.wire.http.post(path, content=head + b"x\r\n--b--\r\n", headers=kind)
        if answer.status_code == 200:
            assert answer.json()["path"].startswith("/mnt/data/")
            assert ".." not in answer.json()["path"].split("/")
        else:
            refused(answer)
    client_error(at.wire.http.get(path))


MOST: Final = 100 * 2**20
"""Bytes that an endless request sends at most."""


@ATTACKS.add(
    url=(b"GET /", BLOCK),
    headers=(b"GET / HTTP/1.1\r\n", b"a:b\r\n" * 200_000),
    trailers=(request("GET /v1/ui/stats", {"transfer-encoding": "chunked"}, b"0\r\n"), b"a:b\r\n" * 200_000),
    pipelined=(b"", b"GET / HTTP/1.1\r\n\r\n" * 50_000),
)
def requests_without_end(at: Attacker, case: tuple[bytes, bytes]) -> None:
    """They need no authentication. The server closes the connection before it has read most of them."""
    begin, more = case
    with at.connect() as connection:
        assert not sends_all(connection, (begin, *repeat(more, MOST // len(more))))


def sends_all(connection: socket.socket, pieces: Iterable[bytes]) -> bool:
    """Send these pieces; return False if the connection ends before."""
    with suppress(ConnectionError):
        for piece in pieces:
            connection.sendall(piece)
        return True
    return False


LEAVERS: Final = 200


@ATTACKS.add(**UNFINISHED)
def clients_that_leave_in_the_middle_of_a_body(at: Attacker, case: Callable[[str, Mapping[str, str]], bytes]) -> None:
    begin = case(at.container(), at.headers)
    for _ in range(LEAVERS):
        disconnect_after(at.stack, begin)


@ATTACKS.add(handshakes=b"", messages=HEAD_OF_A_MESSAGE)
def clients_that_leave_a_websocket(at: Attacker, case: bytes) -> None:
    for _ in range(LEAVERS // 2):
        disconnect_after(at.stack, handshake(at.headers), case)


HELD: Final = 100


@ATTACKS.add(
    heads=b"POST /v1/responses HTTP/1.1\r\nhost: local",
    no_body=request("POST /v1/responses", {**JSON, "content-length": "1000"}),
    half_a_chunk=request("POST /v1/responses", {**JSON, "transfer-encoding": "chunked"}, b"fffff\r\n{"),
    expecting=request("POST /v1/conversations", {**JSON, "content-length": "1000", "expect": "100-continue"}),
    large=request("POST /v1/responses", {**JSON, "content-length": "60000000"}, b'{"input": "' + BLOCK[:16_384]),
)
def bodies_that_never_come(at: Attacker, case: bytes) -> None:
    """Each is refused after `limits.bodies.seconds`; all of them stay open until then."""
    head, _, rest = case.partition(b"\r\n")
    token = f"authorization: {at.headers['authorization']}".encode()
    with ExitStack() as open_all:
        opened = []
        for _ in range(HELD):
            connection = open_all.enter_context(at.connect())
            connection.sendall(b"\r\n".join([head, token, rest]))
            opened.append(connection)
        at.others_turn()
        if b"content-length" in case or b"chunked" in case:
            for connection in opened:
                assert status(connection) in (408, 429)


def status(connection: socket.socket) -> int:
    """Return the status of the final response, after any interim one."""
    with suppress(ConnectionError):
        while piece := connection.recv(65_536):
            if text := piece.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n"):
                return int(text.split(b" ", 2)[1])
    return 0
