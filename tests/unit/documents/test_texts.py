"""Files become text, or are refused in words for whoever sent them."""

import asyncio
import codecs
import zlib

import pytest

from llama_stack_responses.documents.document import Document, Unreadable
from llama_stack_responses.documents.pdf import PdfLimits, Pdfs
from llama_stack_responses.documents.texts import Texts
from tests.support.pdf import pdf

PDFS = Pdfs(PdfLimits(3, 100, 60.0, 2**30), 1)
ZIP = b"PK\x03\x04\x14\x00\x00\x00"


class Reader:
    """A processor that says which files it was given."""

    def __init__(self, text: str = "Read.", *, keeps: bool = False) -> None:
        self.keeps = keeps
        self.given: list[str] = []
        self.text_of_all = text

    async def text(self, document: Document) -> str:
        """The same for each."""
        self.given.append(document.name)
        return self.text_of_all


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
async def test_text_is_text_whatever_it_is_called(given: Document, text: str) -> None:
    assert await Texts(PDFS, 100).of(given) == text


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
async def test_what_is_no_charset_changes_nothing(charset: str, text: str) -> None:
    assert await Texts(PDFS, 100).of(document(text.encode(), "text/plain", charset)) == text


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (document(b""), "is empty"),
        (document(b" \n"), "no text that can be read"),
        (document(ZIP), "neither text nor a PDF"),
        (document("Größe".encode("latin-1")), "neither text nor a PDF"),
        (document(zlib.compress(b"x" * 1000), "text/plain", "zlib_codec"), "neither text nor a PDF"),
        (document(b"a\0b", "text/plain"), "neither text nor a PDF"),
        (document(b"x" * 101), "more than 100 characters"),
        (document("€".encode() * 5000), "more than 100 characters"),
    ],
)
async def test_what_has_no_text_is_refused(given: Document, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        await Texts(PDFS, 100).of(given)


async def test_the_stacks_processor_reads_what_is_no_text() -> None:
    reader = Reader("half a \ud83d")
    texts = Texts(PDFS, 100, reader)
    assert await texts.of(document(ZIP)) == "half a �"
    assert await texts.of(document(pdf("Hello"))) == "half a �"
    assert await texts.of(document(b"text")) == "text"
    assert len(reader.given) == 2


async def test_what_must_not_be_stored_is_given_to_none_that_does() -> None:
    keeper, reader = Reader(keeps=True), Reader()
    assert await Texts(PDFS, 100, keeper).of(document(pdf("Hello")), keep=False) == "Hello"
    with pytest.raises(Unreadable, match="'store' is false"):
        await Texts(PDFS, 100, keeper).of(document(ZIP), keep=False)
    assert keeper.given == []
    assert await Texts(PDFS, 100, reader).of(document(ZIP), keep=False) == "Read."
    assert await Texts(PDFS, 100, keeper).of(document(ZIP)) == "Read."


async def test_a_file_is_read_once() -> None:
    reader = Reader()
    texts = Texts(PDFS, 100, reader)
    assert [await texts.of(document(ZIP)) for _ in range(2)] == ["Read."] * 2
    assert len(reader.given) == 1


async def test_what_is_remembered_is_bounded() -> None:
    reader = Reader("x" * 6_000_000)
    texts = Texts(PDFS, 10_000_000, reader)
    for number in (1, 2, 1, 3, 1, 2):
        await texts.of(document(ZIP + bytes([number])))
    # The second has to make room for the third, and then the third for it.
    assert len(reader.given) == 4


async def test_the_processors_time_is_bounded() -> None:
    class Stalled(Reader):
        async def text(self, document: Document) -> str:
            await asyncio.Event().wait()
            return ""

    with pytest.raises(Unreadable, match=r"within 0\.01 seconds"):
        await Texts(PDFS, 100, Stalled(), seconds=0.01).of(document(ZIP))
