"""What the fetcher reads from servers of every kind, and where it does not go."""

import gzip
import ssl
import zlib
from collections.abc import Iterator, Sequence
from ipaddress import ip_network
from pathlib import Path
from threading import Event

import pytest

from llama_stack_responses.fetch.address_policy import Guard, Refused
from llama_stack_responses.fetch.fetcher import Fetcher, FetchLimits
from tests.support.certificates import Certificates
from tests.support.web import Answer, Web

HERE = [ip_network("127.0.0.1/32")]
LIMITS = FetchLimits(size=100_000, seconds=20, redirects=3)


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as web:
        yield web


def resolving(*answers: Sequence[str]) -> Guard:
    """A guard whose names lead elsewhere each time."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop(0)

    return Guard(HERE, resolve)


async def resolving_nothing(host: str, port: int) -> Sequence[str]:
    raise OSError("not found")


def trusting(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.path("ca.pem"))


@pytest.fixture
def fetcher() -> Fetcher:
    return Fetcher(Guard(HERE), LIMITS)


async def test_it_reads_what_a_url_names(web: Web, fetcher: Fetcher) -> None:
    web.say("/a", "Otters", "Text/Plain; charset=latin-1")
    fetched = await fetcher.get(web.url("/a"))
    assert fetched.body == b"Otters"
    assert (fetched.url, fetched.media_type, fetched.charset) == (web.url("/a"), "text/plain", "latin-1")
    assert web.seen[0].headers["host"] == f"127.0.0.1:{web.port}"


async def test_it_follows_redirects(web: Web, fetcher: Fetcher) -> None:
    web.answers["/a"] = Answer(status=302, headers={"location": "/b"})
    web.answers["/b"] = Answer(status=301, headers={"location": web.url("/c")})
    web.say("/c", "here")
    fetched = await fetcher.get(web.url("/a"))
    assert (fetched.url, fetched.body) == (web.url("/c"), b"here")


async def test_redirects_have_a_bound(web: Web, fetcher: Fetcher) -> None:
    web.answers["/a"] = Answer(status=302, headers={"location": "/a"})
    with pytest.raises(Refused, match="redirects more than 3 times"):
        await fetcher.get(web.url("/a"))
    assert len(web.seen) == 4


async def test_body_of_a_redirect_is_not_read(web: Web, fetcher: Fetcher) -> None:
    never = Event()
    web.answers["/a"] = Answer(status=302, headers={"location": "/b"}, body=[b"endless", never])
    web.say("/b", "here")
    try:
        assert (await fetcher.get(web.url("/a"))).body == b"here"
    finally:
        never.set()


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://127.0.0.2:{port}/b", "no public address"),
        ("http://169.254.169.254/latest/meta-data/", "no public address"),
        ("http://[::1]:{port}/b", "no public address"),
        ("file:///etc/passwd", "not a URL of a page|Only http"),
        ("gopher://127.0.0.1:{port}/b", "not a URL of a page|Only http"),
    ],
)
async def test_a_redirect_is_checked_again(web: Web, fetcher: Fetcher, location: str, why: str) -> None:
    web.answers["/a"] = Answer(status=302, headers={"location": location.format(port=web.port)})
    with pytest.raises(Refused, match=why):
        await fetcher.get(web.url("/a"))
    assert [asked.path for asked in web.seen] == ["/a"]


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "/etc/passwd", "http://", "data:text/plain,a", "http://a b/", "http://[1/", ""]
)
async def test_what_is_no_url_of_a_page(fetcher: Fetcher, url: str) -> None:
    with pytest.raises(Refused):
        await fetcher.get(url)


ODD_HOSTS = [
    "http://xn--/",
    "http://xn--a/",
    "http://xn--zzz-/a",
    "http://a\ud800/",
    "http://\u202e.example/",
    "http://\uff11\uff12\uff17.0.0.1/",
    "http://127\u30020\u30020\u30021/",
    "http://[",
    "http://[::1",
    "http://[fe80::1%25lo]/",
    "http://127.0.0.1:99999/",
    "http://127.0.0.1:-1/",
    "http://127.0.0.1:0/",
    "http://a..b/",
    "http://.a/",
    "http://%ff/",
    "http://user:pass@/",
    "http:///x",
    "http://0x7f.2/",
    "http://" + "a" * 300 + "/",
    "http://" + "a." * 50_000 + "/",
    "http://" + "\u00fc" * 20_000 + "/",
]


@pytest.mark.parametrize("url", [*ODD_HOSTS, "http://127.0.0.1/\ud800", "http://127.0.0.1/" + "a" * 100_000])
async def test_a_url_with_an_odd_host_is_refused(url: str) -> None:
    with pytest.raises(Refused):
        await Fetcher(Guard([], resolving_nothing), LIMITS).get(url)


@pytest.mark.parametrize("url", [each for each in ODD_HOSTS if each.isascii() and "[" not in each])
async def test_a_redirect_to_an_odd_host_is_refused(web: Web, url: str) -> None:
    web.answers["/a"] = Answer(status=302, headers={"location": url[:10_000]})
    fetcher = Fetcher(resolving(["127.0.0.1"], []), LIMITS)
    with pytest.raises(Refused):
        await fetcher.get(web.url("/a", "odd.example"))


async def test_it_connects_to_the_address_that_was_checked() -> None:
    """A name that answers otherwise when it is asked a second time gains nothing: it is asked once."""
    with Web() as allowed, Web("127.0.0.2", allowed.port) as hidden:
        allowed.say("/a", "allowed")
        hidden.say("/a", "hidden")
        fetcher = Fetcher(resolving(["127.0.0.2", "127.0.0.1"], ["127.0.0.2"]), LIMITS)
        assert (await fetcher.get(allowed.url("/a", "changing.example"))).body == b"allowed"
        assert allowed.seen[0].headers["host"] == f"changing.example:{allowed.port}"
        with pytest.raises(Refused, match="no public address"):
            await fetcher.get(allowed.url("/a", "changing.example"))
        assert hidden.seen == []


async def test_a_redirect_to_the_same_name_asks_where_it_leads_now() -> None:
    with Web() as allowed, Web("127.0.0.2", allowed.port) as hidden:
        allowed.answers["/a"] = Answer(status=302, headers={"location": "/b"})
        hidden.say("/b", "hidden")
        fetcher = Fetcher(resolving(["127.0.0.1"], ["127.0.0.2"]), LIMITS)
        with pytest.raises(Refused, match="no public address"):
            await fetcher.get(allowed.url("/a", "changing.example"))
        assert hidden.seen == []


async def test_the_next_address_is_tried_where_nobody_listens() -> None:
    with Web() as web:
        web.say("/a", "here")
        guard = Guard([ip_network("127.0.0.0/8")], resolving(["127.0.0.3", "127.0.0.1"])._resolve)
        assert (await Fetcher(guard, LIMITS).get(web.url("/a", "two.example"))).body == b"here"


async def test_the_certificate_is_for_the_name(tmp_path: Path) -> None:
    certificates = Certificates.made_in(tmp_path, ["good.example"])
    with Web(certificate=certificates.of_server()) as web:
        web.say("/a", "safe")
        fetcher = Fetcher(resolving(["127.0.0.1"], ["127.0.0.1"]), LIMITS, trusting(certificates))
        assert (await fetcher.get(web.url("/a", "good.example"))).body == b"safe"
        with pytest.raises(Refused, match="could not be fetched"):
            await fetcher.get(web.url("/a", "other.example"))


async def test_no_connection_serves_another_name(tmp_path: Path) -> None:
    """Two names with one address: the second has no certificate there, though a connection stands open."""
    certificates = Certificates.made_in(tmp_path, ["good.example"])
    with Web(certificate=certificates.of_server()) as web:
        web.answers["/a"] = Answer(status=302, headers={"location": web.url("/b", "other.example")})
        web.say("/b", "not for other.example")
        fetcher = Fetcher(resolving(["127.0.0.1"], ["127.0.0.1"]), LIMITS, trusting(certificates))
        with pytest.raises(Refused, match="could not be fetched"):
            await fetcher.get(web.url("/a", "good.example"))
        assert [asked.path for asked in web.seen] == ["/a"]


async def test_gzip_is_read(web: Web, fetcher: Fetcher) -> None:
    headers = {"content-encoding": "gzip", "content-type": "text/plain"}
    web.answers["/a"] = Answer(gzip.compress(b"small" * 1000), headers=headers)
    assert (await fetcher.get(web.url("/a"))).body == b"small" * 1000


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"x" * 100_001, ""),
        (gzip.compress(b"\0" * 50_000_000), "gzip"),
        (zlib.compress(b"\0" * 50_000_000), "deflate"),
    ],
)
async def test_what_is_too_large_is_not_read(web: Web, fetcher: Fetcher, body: bytes, encoding: str) -> None:
    web.answers["/a"] = Answer(body, headers={"content-encoding": encoding} if encoding else {})
    with pytest.raises(Refused, match="larger than 100000 bytes"):
        await fetcher.get(web.url("/a"))


async def test_a_body_without_end_is_not_read_to_its_end(web: Web, fetcher: Fetcher) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 10_000

    web.answers["/a"] = Answer(endless())
    with pytest.raises(Refused, match="larger than"):
        await fetcher.get(web.url("/a"))


@pytest.mark.parametrize(
    ("body", "encoding", "why"), [(b"no gzip", "gzip", "cannot be read"), (b"?", "br", "was not asked for")]
)
async def test_encodings_that_cannot_be_undone(
    web: Web, fetcher: Fetcher, body: bytes, encoding: str, why: str
) -> None:
    web.answers["/a"] = Answer(body, headers={"content-encoding": encoding})
    with pytest.raises(Refused, match=why):
        await fetcher.get(web.url("/a"))


@pytest.mark.parametrize("before", [[], [b"drop "]])
async def test_a_slow_server_is_left(web: Web, before: list[bytes]) -> None:
    gate = Event()
    web.answers["/a"] = Answer([*before, gate, b"late"])
    try:
        with pytest.raises(Refused, match=r"did not answer within 0\.3 seconds"):
            await Fetcher(Guard(HERE), FetchLimits(100_000, 0.3, 3)).get(web.url("/a"))
    finally:
        gate.set()


async def test_what_a_server_says_no_to(web: Web, fetcher: Fetcher) -> None:
    with pytest.raises(Refused, match=r"answered 404 Not Found\."):
        await fetcher.get(web.url("/nothing"))


async def test_a_server_that_hangs_up(web: Web, fetcher: Fetcher) -> None:
    web.answers["/a"] = Answer(b"less", headers={"content-length": "100"})
    with pytest.raises(Refused, match="could not be fetched"):
        await fetcher.get(web.url("/a"))


@pytest.mark.parametrize(
    ("content_type", "charset"),
    [
        ("text/plain", None),
        ("text/plain;charset=koi8-r", "koi8-r"),
        ('Text/Plain; a=b; Charset="KOI8-R"; c=d', "KOI8-R"),
        ("text/plain; charset=", None),
        ('text/plain;"' + ";" * 50_000, None),
    ],
)
async def test_charset_is_read_without_the_parser_that_takes_quadratic_time(
    web: Web, fetcher: Fetcher, content_type: str, charset: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(_: str) -> list[str]:
        raise AssertionError("the email package parses the header")

    monkeypatch.setattr("email.message._parseparam", parsed)
    web.answers["/a"] = Answer(b"a", headers={"content-type": content_type})
    fetched = await fetcher.get(web.url("/a"))
    assert (fetched.media_type, fetched.charset) == ("text/plain", charset)
