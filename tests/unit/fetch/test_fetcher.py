"""What the fetcher reads from servers of every kind, and the requests that it refuses."""

import gzip
import ssl
import zlib
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_network
from pathlib import Path
from threading import Event

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.fetch.address_policy import AddressPolicy, UrlRefused
from llama_stack_responses.fetch.fetcher import Fetcher, FetchLimits
from tests.support.certificates import Certificates
from tests.support.web import Answer, Web

HERE = [ip_network("127.0.0.1/32")]
LIMITS = FetchLimits(size=100_000, seconds=20, redirects=3)


def uncounted(_: int) -> None:
    """Count nothing."""


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as web:
        yield web


def resolving(*answers: Sequence[str]) -> AddressPolicy:
    """Return an address policy whose DNS lookups give these answers in turn."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop(0)

    return AddressPolicy(HERE, resolve=resolve)


async def resolving_nothing(host: str, port: int) -> Sequence[str]:
    raise OSError("not found")


def trusting(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.path("ca.pem"))


@pytest.fixture
def fetcher() -> Fetcher:
    return Fetcher(AddressPolicy(HERE), LIMITS)


async def test_body_and_content_type_are_read(web: Web, fetcher: Fetcher) -> None:
    web.say("/a", "Otters", "Text/Plain; charset=latin-1")
    fetched = await fetcher.get(web.url("/a"), uncounted)
    assert fetched.body == b"Otters"
    assert (fetched.url, fetched.media_type, fetched.charset) == (web.url("/a"), "text/plain", "latin-1")
    assert web.seen[0].headers["host"] == f"127.0.0.1:{web.port}"


async def test_redirects_are_followed(web: Web, fetcher: Fetcher) -> None:
    web.answers["/a"] = Answer(status=302, headers={"location": "/b"})
    web.answers["/b"] = Answer(status=301, headers={"location": web.url("/c")})
    web.say("/c", "here")
    fetched = await fetcher.get(web.url("/a"), uncounted)
    assert (fetched.url, fetched.body) == (web.url("/c"), b"here")


async def test_redirects_are_limited(web: Web, fetcher: Fetcher) -> None:
    web.answers["/a"] = Answer(status=302, headers={"location": "/a"})
    with pytest.raises(UrlRefused, match="redirects more than 3 times"):
        await fetcher.get(web.url("/a"), uncounted)
    assert len(web.seen) == 4


async def test_redirect_body_is_not_read(web: Web, fetcher: Fetcher) -> None:
    never = Event()
    web.answers["/a"] = Answer(status=302, headers={"location": "/b"}, body=[b"endless", never])
    web.say("/b", "here")
    try:
        assert (await fetcher.get(web.url("/a"), uncounted)).body == b"here"
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
async def test_redirect_target_is_checked_by_policy(web: Web, fetcher: Fetcher, location: str, why: str) -> None:
    web.answers["/a"] = Answer(status=302, headers={"location": location.format(port=web.port)})
    with pytest.raises(UrlRefused, match=why):
        await fetcher.get(web.url("/a"), uncounted)
    assert [request.path for request in web.seen] == ["/a"]


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "/etc/passwd", "http://", "data:text/plain,a", "http://a b/", "http://[1/", ""]
)
async def test_url_that_is_not_page_is_refused(fetcher: Fetcher, url: str) -> None:
    with pytest.raises(UrlRefused):
        await fetcher.get(url, uncounted)


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
async def test_url_with_odd_host_is_refused(url: str) -> None:
    with pytest.raises(UrlRefused):
        await Fetcher(AddressPolicy(resolve=resolving_nothing), LIMITS).get(url, uncounted)


@pytest.mark.parametrize("url", [each for each in ODD_HOSTS if each.isascii() and "[" not in each])
async def test_redirect_to_odd_host_is_refused(web: Web, url: str) -> None:
    web.answers["/a"] = Answer(status=302, headers={"location": url[:10_000]})
    fetcher = Fetcher(resolving(["127.0.0.1"], []), LIMITS)
    with pytest.raises(UrlRefused):
        await fetcher.get(web.url("/a", "odd.example"), uncounted)


async def test_connection_uses_checked_address() -> None:
    """DNS rebinding gains nothing: the name is resolved only once per connection."""
    with Web() as allowed, Web("127.0.0.2", allowed.port) as hidden:
        allowed.say("/a", "allowed")
        hidden.say("/a", "hidden")
        fetcher = Fetcher(resolving(["127.0.0.2", "127.0.0.1"], ["127.0.0.2"]), LIMITS)
        assert (await fetcher.get(allowed.url("/a", "changing.example"), uncounted)).body == b"allowed"
        assert allowed.seen[0].headers["host"] == f"changing.example:{allowed.port}"
        with pytest.raises(UrlRefused, match="no public address"):
            await fetcher.get(allowed.url("/a", "changing.example"), uncounted)
        assert hidden.seen == []


async def test_redirect_to_same_host_resolves_it_again() -> None:
    with Web() as allowed, Web("127.0.0.2", allowed.port) as hidden:
        allowed.answers["/a"] = Answer(status=302, headers={"location": "/b"})
        hidden.say("/b", "hidden")
        fetcher = Fetcher(resolving(["127.0.0.1"], ["127.0.0.2"]), LIMITS)
        with pytest.raises(UrlRefused, match="no public address"):
            await fetcher.get(allowed.url("/a", "changing.example"), uncounted)
        assert hidden.seen == []


async def test_next_address_is_tried_if_connection_is_refused() -> None:
    with Web() as web:
        web.say("/a", "here")
        policy = AddressPolicy([ip_network("127.0.0.0/8")], resolve=resolving(["127.0.0.3", "127.0.0.1"])._resolve)
        assert (await Fetcher(policy, LIMITS).get(web.url("/a", "two.example"), uncounted)).body == b"here"


async def test_certificate_is_verified_for_host_name(tmp_path: Path) -> None:
    certificates = Certificates.create_in(tmp_path, ["good.example"])
    with Web(certificate=certificates.of_server()) as web:
        web.say("/a", "safe")
        fetcher = Fetcher(resolving(["127.0.0.1"], ["127.0.0.1"]), LIMITS, trusting(certificates))
        assert (await fetcher.get(web.url("/a", "good.example"), uncounted)).body == b"safe"
        with pytest.raises(UrlRefused, match="could not be fetched"):
            await fetcher.get(web.url("/a", "other.example"), uncounted)


async def test_connection_is_not_reused_for_other_host(tmp_path: Path) -> None:
    """The second name has the same address but no certificate there, and an open connection does not change that."""
    certificates = Certificates.create_in(tmp_path, ["good.example"])
    with Web(certificate=certificates.of_server()) as web:
        web.answers["/a"] = Answer(status=302, headers={"location": web.url("/b", "other.example")})
        web.say("/b", "not for other.example")
        fetcher = Fetcher(resolving(["127.0.0.1"], ["127.0.0.1"]), LIMITS, trusting(certificates))
        with pytest.raises(UrlRefused, match="could not be fetched"):
            await fetcher.get(web.url("/a", "good.example"), uncounted)
        assert [request.path for request in web.seen] == ["/a"]


async def test_gzip_body_is_decoded(web: Web, fetcher: Fetcher) -> None:
    headers = {"content-encoding": "gzip", "content-type": "text/plain"}
    web.answers["/a"] = Answer(gzip.compress(b"small" * 1000), headers=headers)
    assert (await fetcher.get(web.url("/a"), uncounted)).body == b"small" * 1000


@pytest.mark.parametrize(
    ("size", "encode", "encoding"),
    [(100_001, bytes, ""), (50_000_000, gzip.compress, "gzip"), (50_000_000, zlib.compress, "deflate")],
    ids=["plain", "gzip", "deflate"],
)
async def test_oversized_body_is_refused(
    web: Web, fetcher: Fetcher, size: int, encode: Callable[[bytes], bytes], encoding: str
) -> None:
    web.answers["/a"] = Answer(encode(bytes(size)), headers={"content-encoding": encoding} if encoding else {})
    with pytest.raises(UrlRefused, match="larger than 100000 bytes"):
        await fetcher.get(web.url("/a"), uncounted)


async def test_endless_body_is_refused_at_limit(web: Web, fetcher: Fetcher) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 10_000

    web.answers["/a"] = Answer(endless())
    with pytest.raises(UrlRefused, match="larger than"):
        await fetcher.get(web.url("/a"), uncounted)


@pytest.mark.parametrize(
    ("body", "encoding", "why"), [(b"no gzip", "gzip", "cannot be decompressed"), (b"?", "br", "was not requested")]
)
async def test_invalid_content_encoding_is_refused(
    web: Web, fetcher: Fetcher, body: bytes, encoding: str, why: str
) -> None:
    web.answers["/a"] = Answer(body, headers={"content-encoding": encoding})
    with pytest.raises(UrlRefused, match=why):
        await fetcher.get(web.url("/a"), uncounted)


@pytest.mark.parametrize("before", [[], [b"drop "]])
async def test_slow_server_times_out(web: Web, before: list[bytes]) -> None:
    gate = Event()
    web.answers["/a"] = Answer([*before, gate, b"late"])
    try:
        with pytest.raises(UrlRefused, match=r"did not answer within 0\.3 seconds"):
            await Fetcher(AddressPolicy(HERE), FetchLimits(100_000, 0.3, 3)).get(web.url("/a"), uncounted)
    finally:
        gate.set()


async def test_http_error_status_is_reported(web: Web, fetcher: Fetcher) -> None:
    with pytest.raises(UrlRefused, match=r"answered 404 Not Found\."):
        await fetcher.get(web.url("/nothing"), uncounted)


async def test_truncated_body_is_refused(web: Web, fetcher: Fetcher) -> None:
    web.answers["/a"] = Answer(b"less", headers={"content-length": "100"})
    with pytest.raises(UrlRefused, match="could not be fetched"):
        await fetcher.get(web.url("/a"), uncounted)


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
async def test_charset_is_read_without_quadratic_header_parser(
    web: Web, fetcher: Fetcher, content_type: str, charset: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(_: str) -> list[str]:
        raise AssertionError("the email package parses the header")

    monkeypatch.setattr("email.message._parseparam", parsed)
    web.answers["/a"] = Answer(b"a", headers={"content-type": content_type})
    fetched = await fetcher.get(web.url("/a"), uncounted)
    assert (fetched.media_type, fetched.charset) == ("text/plain", charset)


async def test_body_of_known_size_counts_before_reading(web: Web, fetcher: Fetcher) -> None:
    counted: list[int] = []
    web.say("/a", "x" * 50_000, "text/plain")
    await fetcher.get(web.url("/a"), counted.append)
    assert counted == [50_000]


@pytest.mark.parametrize("headers", [{}, {"content-encoding": "gzip"}])
async def test_body_of_unknown_size_counts_as_it_arrives(web: Web, fetcher: Fetcher, headers: dict[str, str]) -> None:
    body, counted = b"x" * 90_000, list[int]()
    web.answers["/a"] = Answer([gzip.compress(body) if headers else body], headers=headers)
    await fetcher.get(web.url("/a"), counted.append)
    assert sum(counted) == 90_000


async def test_refused_count_stops_reading(web: Web, fetcher: Fetcher) -> None:
    def refuse(size: int) -> None:
        if size:
            raise ApiError(429, "Too much.")

    resume = Event()
    web.answers["/a"] = Answer([b"x" * 90_000, resume])
    with pytest.raises(ApiError, match="Too much"):
        await fetcher.get(web.url("/a"), refuse)
    resume.set()
