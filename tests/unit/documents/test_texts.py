"""Files become text, or are refused with an error for the client."""

import asyncio
import codecs
import zlib

import pytest

from llama_stack_responses.documents.document import Document, Unreadable
from llama_stack_responses.documents.pdf import PdfLimits, Pdfs
from llama_stack_responses.documents.texts import ReadContext, Texts
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from llama_stack_responses.process_pool.time_budget import TimeBudget
from tests.support.pdf import pdf
from tests.support.shares import as_user
from tests.support.waiting import until

ZIP = b"PK\x03\x04\x14\x00\x00\x00"


class FakeProcessor:
    """A processor that records the files that it was given."""

    def __init__(self, text: str = "Read.", *, keeps: bool = False) -> None:
        self.keeps = keeps
        self.given: list[str] = []
        self.text_of_all = text

    async def text(self, document: Document) -> str:
        """Return the same text for each file."""
        self.given.append(document.name)
        return self.text_of_all


@pytest.fixture(scope="module")
def pool() -> WorkerPool:
    return WorkerPool(PoolLimits())


def texts_of(pool: WorkerPool, characters: int, processor: FakeProcessor | None = None, seconds: float = 60.0) -> Texts:
    return Texts(pool, Pdfs(PdfLimits(3, characters, 60.0), pool), characters, processor, seconds)


def context(*, keep: bool = True, seconds: float = 60.0) -> ReadContext:
    return ReadContext(TimeBudget(seconds), keep)


def document(content: bytes, media_type: str = "", charset: str | None = None) -> Document:
    return Document("a", media_type, content, charset)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (document("a,b\nä,€\n".encode()), "a,b\nä,€\n"),
        (document(codecs.BOM_UTF8 + b"x"), "x"),
        (document("x€".encode("utf-16")), "x€"),
        (document("Größe".encode("latin-1"), "text/plain"), "Größe"),
        (document("Größe".encode("cp1250"), "text/csv", "cp1250"), "Größe"),
        (document("Größe".encode(), "text/plain", "no-such-charset"), "Größe"),
        (document(b"\x1b[31mred\x1b[0m\ttab\r\n\x0c"), "\x1b[31mred\x1b[0m\ttab\r\n\x0c"),
        (document(b'{"a": 1}', "application/octet-stream"), '{"a": 1}'),
    ],
)
async def test_text_file_of_any_media_type_is_read(pool: WorkerPool, given: Document, text: str) -> None:
    assert await texts_of(pool, 100).extract(given, context()) == text


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        ("hex_codec", "41"),
        ("unicode_escape", r"\ud800"),
        ("utf-7", "+2AA-"),
        ("punycode", "abc-a"),
        ("utf-8\0", "A"),
        ("no-such-charset", "A"),
    ],
)
async def test_unknown_charset_is_ignored(pool: WorkerPool, charset: str, text: str) -> None:
    assert await texts_of(pool, 100).extract(document(text.encode(), "text/plain", charset), context()) == text


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (document(b" \n"), "no readable text"),
        (document(ZIP), "neither text nor a PDF"),
        (document("Größe".encode("latin-1")), "neither text nor a PDF"),
        (document(zlib.compress(b"x" * 1000), "text/plain", "zlib_codec"), "neither text nor a PDF"),
        (document(b"a\0b", "text/plain"), "neither text nor a PDF"),
        (document(b"x" * 101), "more than 100 characters"),
        (document("€".encode() * 5000), "more than 100 characters"),
    ],
)
async def test_file_without_text_is_refused(pool: WorkerPool, given: Document, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        await texts_of(pool, 100).extract(given, context())


async def test_processor_of_stack_reads_files_other_than_text(pool: WorkerPool) -> None:
    processor = FakeProcessor("half a \ud83d")
    texts = texts_of(pool, 100, processor)
    assert await texts.extract(document(ZIP), context()) == "half a �"
    assert await texts.extract(document(pdf("Hello")), context()) == "half a �"
    assert await texts.extract(document(b"text"), context()) == "text"
    assert len(processor.given) == 2


async def test_unstored_files_are_not_given_to_processor_that_stores(pool: WorkerPool) -> None:
    keeper, processor = FakeProcessor(keeps=True), FakeProcessor()
    assert await texts_of(pool, 100, keeper).extract(document(pdf("Hello")), context(keep=False)) == "Hello"
    with pytest.raises(Unreadable, match="'store' is false"):
        await texts_of(pool, 100, keeper).extract(document(ZIP), context(keep=False))
    assert keeper.given == []
    assert await texts_of(pool, 100, processor).extract(document(ZIP), context(keep=False)) == "Read."
    assert await texts_of(pool, 100, keeper).extract(document(ZIP), context()) == "Read."


async def test_same_file_is_read_once(pool: WorkerPool) -> None:
    processor = FakeProcessor()
    texts = texts_of(pool, 100, processor)
    assert [await texts.extract(document(ZIP), context()) for _ in range(2)] == ["Read."] * 2
    assert len(processor.given) == 1


async def test_cached_texts_are_bounded_in_size(pool: WorkerPool) -> None:
    processor = FakeProcessor("x" * 6_000_000)
    texts = texts_of(pool, 10_000_000, processor)
    for number in (1, 2, 1, 3, 1, 2):
        await texts.extract(document(ZIP + bytes([number])), context())
    # The second is evicted for the third, and then the third for the second.
    assert len(processor.given) == 4


async def test_processor_is_stopped_after_timeout(pool: WorkerPool) -> None:
    class Stalled(FakeProcessor):
        async def text(self, document: Document) -> str:
            await asyncio.Event().wait()
            return ""

    with pytest.raises(Unreadable, match=r"within 0\.01 seconds"):
        await texts_of(pool, 100, Stalled(), seconds=0.01).extract(document(ZIP), context())


async def test_processor_is_shared_fairly_between_owners() -> None:
    class Stalled(FakeProcessor):
        async def text(self, document: Document) -> str:
            if document.name == "stalled":
                await asyncio.Event().wait()
            return await super().text(document)

    pool = WorkerPool(PoolLimits(concurrency=2, concurrency_per_user=1))
    texts, queue = texts_of(pool, 100, Stalled()), pool._queue
    flood = [
        as_user("ann", texts.extract(Document("stalled", "", ZIP + bytes([number])), context())) for number in range(3)
    ]
    await until(lambda: queue.total - queue.left + queue.waiting == len(flood))
    assert await as_user("bob", texts.extract(document(ZIP), context())) == "Read."
    assert not any(each.done() for each in flood)
    for each in flood:
        each.cancel()
    await asyncio.wait(flood)


async def test_time_budget_of_request_limits_processor() -> None:
    class Stalled(FakeProcessor):
        async def text(self, document: Document) -> str:
            await asyncio.Event().wait()
            return ""

    texts, of_request = texts_of(WorkerPool(PoolLimits()), 100, Stalled()), context(seconds=0.01)
    for _ in range(2):
        with pytest.raises(Unreadable, match=r"0\.01 seconds together \(setting 'files.request_seconds'\)"):
            await texts.extract(document(ZIP), of_request)
