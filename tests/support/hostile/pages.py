"""Malicious web pages, read as files and opened by the model, and URLs of internal addresses (SSRF)."""

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import repeat
from typing import Final

import pytest

from tests.support.search import searxng
from tests.support.web import Answer, Web

from .attacker import DONE, Attacker, Attacks, judged, refused

ATTACKS: Final = Attacks()
BLOCK: Final = b"x" * 2**20
PUNYCODE: Final = b"-" + b"a" * 1_500_000
"""Punycode, which takes quadratic time to decode."""


def find(web: Web, path: str) -> None:
    """Let the web search find this page."""
    found = json.dumps(searxng("x", [(web.url(path), "A page", "About it.")])).encode()
    web.answers["/searxng/search"] = Answer(found, headers={"content-type": "application/json"})


def read_page(at: Attacker, answer: Answer) -> str:
    """Let a page be read as a file and opened by the model; return the answer to the first, and what the model reads."""
    at.web.answers["/page"] = answer
    read = at.ask({"type": "input_file", "file_url": at.web.url("/page")})
    judged(read)
    find(at.web, "/page")
    at.call("open_page", {"page": at.web.url("/page")}, tools=[{"type": "web_search"}])
    messages = at.upstream.requests("calls")[-1].body["messages"]
    [opened] = [message["content"] for message in messages if message["role"] == "tool"]
    return f"{read.text}\n{opened}"


@ATTACKS.add(
    text=("text/plain; charset=punycode", PUNYCODE),
    html=("text/html; charset=punycode", b"<p>" + PUNYCODE),
    meta=("text/html", b"<meta charset=punycode><p>" + PUNYCODE),
    idna=("text/plain; charset=idna", b"xn--" + b"a" * 1_500_000),
    long_header=('text/plain;"' + ";" * 50_000, b"x"),
)
def page_in_an_odd_charset(at: Attacker, case: tuple[str, bytes]) -> None:
    """The charset is ignored: with it, reading would be ended by the limit on its time."""
    assert "seconds" not in read_page(at, Answer(case[1], headers={"content-type": case[0]}))


@cache
def zeros(wbits: int) -> bytes:
    """Return 64 MiB of zeros, compressed."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, wbits)
    return b"".join([*(compressor.compress(bytes(2**20)) for _ in range(64)), compressor.flush()])


@ATTACKS.add(gzip=31, deflate=15)
def page_that_is_a_decompression_bomb(at: Attacker, case: int) -> None:
    kind = "gzip" if case == 31 else "deflate"
    text = read_page(at, Answer(zeros(case), headers={"content-type": "text/html", "content-encoding": kind}))
    assert text.count("It is larger than") == 2


@ATTACKS.add()
def page_compressed_twice(at: Attacker) -> None:
    body = gzip.compress(zeros(31))
    text = read_page(at, Answer(body, headers={"content-type": "text/html", "content-encoding": "gzip, gzip"}))
    assert text.count("a compression that was not requested") == 2


@ATTACKS.add(
    div=b"<div>" * 400_000,
    b=b"<b><i>" * 300_000,
    table=b"<table><tr><td>" * 100_000,
    attributes=b"<p " + b"a=b " * 500_000 + b">",
    comment=b"<!--" * 500_000,
    entities=b"&" * 1_000_000,
)
def page_with_odd_html(at: Attacker, case: bytes) -> None:
    read_page(at, Answer(case, headers={"content-type": "text/html"}))


@ATTACKS.add()
def page_without_end(at: Attacker) -> None:
    at.web.answers["/page"] = lambda _: Answer(repeat(BLOCK), headers={"content-type": "text/plain"})
    error = refused(at.ask({"type": "input_file", "file_url": at.web.url("/page")}))
    assert "It is larger than" in error["message"]


TRAPPED: Final = (
    "http://127.0.0.2:{port}/",
    "http://2130706434:{port}/",
    "http://0x7f000002:{port}/",
    "http://0177.0.0.2:{port}/",
    "http://127.2:{port}/",
    "http://[::1]:{port}/",
    "http://[::ffff:127.0.0.2]:{port}/",
    "http://[::127.0.0.2]:{port}/",
    "http://[64:ff9b::7f00:2]:{port}/",
    "http://[2002:7f00:2::]:{port}/",
    "http://user@127.0.0.2:{port}/",
    "http://127.0.0.2%2e:{port}/",
    "http://①27.0.0.2:{port}/",
)
ODD_URLS: Final = (
    *(
        "http://xn--/",
        "http://[",
        "http://]",
        "http://",
        "http://:80/",
        "http://a b/",
        "http://\u0000/",
        "http://\x7f/",
    ),
    *("http://127.0.0.2:0/", "http://127.0.0.2:99999/", "http://127.0.0.2:-1/", "http://127.0.0.2:x/"),
    *("http://169.254.169.254/latest", "http://10.0.0.1/", "http://[fe80::1%25lo]/", "http://[fc00::1]/"),
    *("file:///etc/passwd", "gopher://127.0.0.2/", "//127.0.0.2/", "http:127.0.0.2", "http://" + "a" * 70_000),
    *("http://" + "a." * 5_000, "http://xn--" + "a" * 5_000, "http://\ud800/"),
)


@contextmanager
def traps() -> Iterator[tuple[int, list[socket.socket]]]:
    """Open ports, with the same number, that must not be reached."""
    with ExitStack() as opened:
        first = opened.enter_context(socket.create_server(("127.0.0.2", 0)))
        port = first.getsockname()[1]
        found = [first]
        with suppress(OSError):  # a machine without IPv6
            found.append(opened.enter_context(socket.create_server(("::1", port), family=socket.AF_INET6)))
        for trap in found:
            trap.settimeout(0)
        yield port, found


@ATTACKS.add(file_url="input_file", image_url="input_image", mcp="mcp", page="page")
def url_of_something_internal(at: Attacker, case: str) -> None:
    at.upstream.script("offline", DONE)

    def name(url: str) -> None:
        if case == "mcp":
            tool = {"type": "mcp", "server_label": "s", "server_url": url, "require_approval": "never"}
            refused(at.ask(tools=[tool]), 400, 424, 502)
        elif case == "page":
            at.call("open_page", {"page": url}, tools=[{"type": "web_search"}])
        else:
            key = "file_url" if case == "input_file" else "image_url"
            refused(at.ask({"type": case, key: url}, model="local/offline"))

    with traps() as (port, listening):
        for url in TRAPPED:
            name(url.format(port=port))
            at.web.answers["/page"] = Answer(
                status=302, headers={"location": url.format(port=port).encode().decode("latin-1")}
            )
            name(at.web.url("/page"))
        for url in ODD_URLS:
            name(url)
        for trap in listening:
            with pytest.raises(BlockingIOError):
                trap.accept()
