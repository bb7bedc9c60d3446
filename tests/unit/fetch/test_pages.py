"""What a model is shown of a page."""

from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from llama_stack_responses.fetch.address_policy import Guard, Refused
from llama_stack_responses.fetch.fetcher import Fetcher, FetchLimits
from llama_stack_responses.fetch.pages import Page, Pages
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from tests.support.web import Answer, Web

OWNER = ("", "ada")
OTTERS = """<html><head><title>Otters &amp;
 others</title><script>track()</script></head><body><nav><a href="/">Home</a></nav><article><h1>Otters</h1>
<p>Otters hold hands while they sleep, so that they do not drift apart.</p>
<p>They eat <a href="/fish">fish</a> and crabs, and they crack shells with stones.</p></article>
<footer>Cookies</footer></body></html>"""


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as web:
        yield web


@pytest.fixture(scope="module")
def pages() -> Pages:
    return Pages(
        Fetcher(Guard([ip_network("127.0.0.1/32")]), FetchLimits(10_000_000, 20, 3)), WorkerPool(PoolLimits()), 60
    )


async def test_a_page_is_its_main_text(web: Web, pages: Pages) -> None:
    web.answers["/old"] = Answer(status=302, headers={"location": "/otters"})
    web.say("/otters", OTTERS)
    page = await pages.open(web.url("/old"), OWNER)
    assert (page.url, page.title) == (web.url("/otters"), "Otters & others")
    assert page.text.splitlines() == [
        "Otters",
        "Otters hold hands while they sleep, so that they do not drift apart.",
        f"They eat [fish]({web.url('/fish')}) and crabs, and they crack shells with stones.",
    ]


@pytest.mark.parametrize("media_type", ["text/plain", "text/markdown", "application/json", "application/ld+json"])
async def test_what_is_text_already_stays_as_it_is(web: Web, pages: Pages, media_type: str) -> None:
    web.say("/a", "{\n\n\n\n}", media_type)
    assert await pages.open(web.url("/a"), OWNER) == Page(web.url("/a"), "127.0.0.1", "{\n\n}")


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
async def test_texts_are_decoded(web: Web, pages: Pages, content_type: str, body: bytes) -> None:
    web.answers["/a"] = Answer(body, headers={"content-type": content_type} if content_type else {})
    assert (await pages.open(web.url("/a"), OWNER)).text.strip() == "flügge"


async def test_an_unknown_charset_is_no_obstacle(web: Web, pages: Pages) -> None:
    web.say("/a", "otters", "text/plain; charset=klingon")
    assert (await pages.open(web.url("/a"), OWNER)).text == "otters"


@pytest.mark.parametrize(
    ("media_type", "body", "why"),
    [
        ("image/png", b"\x89PNG", "no text: the server calls it 'image/png'"),
        ("application/pdf", b"%PDF", "no text"),
        ("text/html", b"", "no text that can be read"),
        ("text/html", b"<html><body><script>x()</script></body></html>", "no text that can be read"),
        ("text/plain", b" \n ", "no text that can be read"),
    ],
)
async def test_what_cannot_be_read(web: Web, pages: Pages, media_type: str, body: bytes, why: str) -> None:
    web.answers["/a"] = Answer(body, headers={"content-type": media_type})
    with pytest.raises(Refused, match=why):
        await pages.open(web.url("/a"), OWNER)


@pytest.mark.parametrize("media_type", ["text/plain", "text/html"])
async def test_charset_that_is_none_of_the_web_is_not_honoured(web: Web, pages: Pages, media_type: str) -> None:
    # As punycode, these take minutes.
    body = b"<html><body><p>Otters hold hands.</p><!--" + b"9" * 2_000_000
    web.answers["/a"] = Answer(body, headers={"content-type": f"{media_type}; charset=punycode"})
    assert "Otters hold hands." in (await pages.open(web.url("/a"), OWNER)).text


async def test_page_that_takes_too_long_is_given_up(web: Web) -> None:
    fetcher = Fetcher(Guard([ip_network("127.0.0.1/32")]), FetchLimits(10_000_000, 20, 3))
    web.say("/a", "<html><body>" + "<p>Otters hold <b>hands</b> while they sleep.</p>" * 100_000)
    with pytest.raises(Refused, match=r"within 0\.001 seconds"):
        await Pages(fetcher, WorkerPool(PoolLimits()), 0.001).open(web.url("/a"), OWNER)


async def test_long_page_is_cut(web: Web, pages: Pages) -> None:
    web.say("/a", "x" * 1_000_001, "text/plain")
    assert len((await pages.open(web.url("/a"), OWNER)).text) == 1_000_000
