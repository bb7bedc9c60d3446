"""The part of a page that a model receives."""

import asyncio
from collections.abc import Iterator
from ipaddress import ip_network
from threading import Event

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.fetch.address_policy import AddressPolicy, UrlRefused
from llama_stack_responses.fetch.fetcher import Fetcher, FetchLimits
from llama_stack_responses.fetch.pages import WebPage, WebPages
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from tests.support.waiting import until
from tests.support.web import Answer, Web

OWNER = Owner("ada")
POOL = WorkerPool(PoolLimits())
OTTERS = """<html><head><title>Otters &amp;
 others</title><script>track()</script></head><body><nav><a href="/">Home</a></nav><article><h1>Otters</h1>
<p>Otters hold hands while they sleep, so that they do not drift apart.</p>
<p>They eat <a href="/fish">fish</a> and crabs, and they crack shells with stones.</p></article>
<footer>Cookies</footer></body></html>"""


def contents(per_user: int = 2**30) -> Admission:
    return Admission(Quota("files, pages and running outputs", 2**30, per_user))


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as web:
        yield web


@pytest.fixture
def pages() -> WebPages:
    return WebPages(
        Fetcher(AddressPolicy([ip_network("127.0.0.1/32")]), FetchLimits(10_000_000, 20, 3)),
        POOL,
        60,
        contents(),
    )


async def test_page_is_reduced_to_main_text(web: Web, pages: WebPages) -> None:
    web.answers["/old"] = Answer(status=302, headers={"location": "/otters"})
    web.say("/otters", OTTERS)
    page = await pages.of(OWNER).fetch(web.url("/old"))
    assert (page.url, page.title) == (web.url("/otters"), "Otters & others")
    assert page.text.splitlines() == [
        "Otters",
        "Otters hold hands while they sleep, so that they do not drift apart.",
        f"They eat [fish]({web.url('/fish')}) and crabs, and they crack shells with stones.",
    ]


@pytest.mark.parametrize("media_type", ["text/plain", "text/markdown", "application/json", "application/ld+json"])
async def test_plain_text_stays_unchanged(web: Web, pages: WebPages, media_type: str) -> None:
    web.say("/a", "{\n\n\n\n}", media_type)
    assert await pages.of(OWNER).fetch(web.url("/a")) == WebPage(web.url("/a"), "127.0.0.1", "{\n\n}")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain; charset=latin-1", b"fl\xfcgge"),
        ("text/plain; charset=utf-8", "flügge".encode()),
        ("text/html; charset=latin-1", b"<html><body><p>fl\xfcgge</p></body></html>"),
        ("text/html", "<html><head><meta charset='utf-8'></head><body><p>flügge</p></body></html>".encode()),
        ("", "<html><body><p>flügge</p></body></html>".encode()),
    ],
)
async def test_page_is_decoded_by_charset(web: Web, pages: WebPages, content_type: str, body: bytes) -> None:
    web.answers["/a"] = Answer(body, headers={"content-type": content_type} if content_type else {})
    assert (await pages.of(OWNER).fetch(web.url("/a"))).text.strip() == "flügge"


async def test_unknown_charset_is_ignored(web: Web, pages: WebPages) -> None:
    web.say("/a", "otters", "text/plain; charset=klingon")
    assert (await pages.of(OWNER).fetch(web.url("/a"))).text == "otters"


@pytest.mark.parametrize(
    ("media_type", "body", "why"),
    [
        ("image/png", b"\x89PNG", "not text: its content type is 'image/png'"),
        ("application/pdf", b"%PDF", "not text"),
        ("text/html", b"", "no readable text"),
        ("text/html", b"<html><body><script>x()</script></body></html>", "no readable text"),
        ("text/plain", b" \n ", "no readable text"),
    ],
)
async def test_page_without_text_is_refused(web: Web, pages: WebPages, media_type: str, body: bytes, why: str) -> None:
    web.answers["/a"] = Answer(body, headers={"content-type": media_type})
    with pytest.raises(UrlRefused, match=why):
        await pages.of(OWNER).fetch(web.url("/a"))


@pytest.mark.parametrize("media_type", ["text/plain", "text/html"])
async def test_charset_outside_encoding_standard_is_ignored(web: Web, pages: WebPages, media_type: str) -> None:
    # Decoding these as punycode takes minutes.
    body = b"<html><body><p>Otters hold hands.</p><!--" + b"9" * 2_000_000
    web.answers["/a"] = Answer(body, headers={"content-type": f"{media_type}; charset=punycode"})
    assert "Otters hold hands." in (await pages.of(OWNER).fetch(web.url("/a"))).text


async def test_slow_extraction_times_out(web: Web) -> None:
    fetcher = Fetcher(AddressPolicy([ip_network("127.0.0.1/32")]), FetchLimits(10_000_000, 20, 3))
    web.say("/a", "<html><body>" + "<p>Otters hold <b>hands</b> while they sleep.</p>" * 100_000)
    with pytest.raises(UrlRefused, match=r"within 0\.001 seconds"):
        await WebPages(fetcher, WorkerPool(PoolLimits()), 0.001, contents()).of(OWNER).fetch(web.url("/a"))


async def test_long_page_is_cut(web: Web, pages: WebPages) -> None:
    web.say("/a", "x" * 1_000_001, "text/plain")
    assert len((await pages.of(OWNER).fetch(web.url("/a"))).text) == 1_000_000


async def test_pages_being_read_count_against_user_quota(web: Web) -> None:
    held, resume = contents(3_000_000), Event()
    fetcher = Fetcher(AddressPolicy([ip_network("127.0.0.1/32")]), FetchLimits(10_000_000, 20, 3))
    pages = WebPages(fetcher, WorkerPool(PoolLimits()), 60, held)
    web.answers["/slow"] = Answer([b"x" * 2_000_000, resume, b"x"], headers={"content-type": "text/plain"})
    web.say("/a", "x" * 1_500_000, "text/plain")
    opened = pages.of(OWNER)
    first = asyncio.create_task(opened.fetch(web.url("/slow")))
    # All of the first piece except the rest of a chunk, and the connection.
    await until(lambda: held.held >= 2_450_000)
    with pytest.raises(UrlRefused, match="You have too many files, pages and running outputs open at the same time"):
        await pages.of(OWNER).fetch(web.url("/a"))
    await pages.of(Owner("bob")).fetch(web.url("/a"))
    resume.set()
    await first
    opened.release()
    await pages.of(OWNER).fetch(web.url("/a"))


async def test_cancelled_page_releases_its_reservation(web: Web) -> None:
    held = contents()
    fetcher = Fetcher(AddressPolicy([ip_network("127.0.0.1/32")]), FetchLimits(10_000_000, 20, 3))
    pages, resume = WebPages(fetcher, WorkerPool(PoolLimits()), 60, held), Event()
    web.answers["/slow"] = Answer([b"x" * 2_000_000, resume], headers={"content-type": "text/plain"})
    reading = asyncio.create_task(pages.of(OWNER).fetch(web.url("/slow")))
    await until(lambda: held.held >= 1_900_000)
    reading.cancel()
    await asyncio.wait([reading])
    resume.set()
    assert held.held == 0


async def test_kept_pages_count_until_they_are_released(web: Web, pages: WebPages) -> None:
    web.say("/a", "x" * 500_000, "text/plain")
    web.say("/b", "y" * 300_000, "text/plain")
    opened = pages.of(OWNER)
    await opened.fetch(web.url("/a"))
    assert 500_000 <= pages.contents.held < 510_000
    assert await opened.fetch(web.url("/a")) is await opened.fetch(web.url("/a"))
    await asyncio.gather(opened.fetch(web.url("/b")), opened.fetch(web.url("/b")))
    assert 800_000 <= pages.contents.held < 810_000
    opened.release()
    assert pages.contents.held == 0


async def test_kept_pages_count_against_user_quota(web: Web) -> None:
    fetcher = Fetcher(AddressPolicy([ip_network("127.0.0.1/32")]), FetchLimits(10_000_000, 20, 3))
    pages = WebPages(fetcher, WorkerPool(PoolLimits()), 60, contents(1_500_000))
    web.say("/a", "x" * 800_000, "text/plain")
    first, second = pages.of(OWNER), pages.of(OWNER)
    await first.fetch(web.url("/a"))
    with pytest.raises(UrlRefused, match="You have too many files, pages and running outputs open at the same time"):
        await second.fetch(web.url("/a"))
    first.release()
    await second.fetch(web.url("/a"))
    second.release()
    assert pages.contents.held == 0


async def test_oldest_kept_page_is_dropped(web: Web, pages: WebPages) -> None:
    opened = pages.of(OWNER)
    for number in range(17):
        web.say(f"/{number}", "x" * 10_000, "text/plain")
        await opened.fetch(web.url(f"/{number}"))
    assert 160_000 <= pages.contents.held < 170_000
    await opened.fetch(web.url("/16"))
    assert len(web.seen) == 17
    await opened.fetch(web.url("/0"))
    assert len(web.seen) == 18
    opened.release()


async def test_refused_page_is_not_counted(web: Web, pages: WebPages) -> None:
    web.answers["/a"] = Answer(b"", headers={"content-type": "text/html"})
    with pytest.raises(UrlRefused):
        await pages.of(OWNER).fetch(web.url("/a"))
    assert pages.contents.held == 0
