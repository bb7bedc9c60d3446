"""How the files and images of a conversation are resolved, and which parameter an error names."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_network
from threading import Event
from typing import Any

import pytest

from llama_stack_responses.admission import Admission, Reservation
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.services import Fetching, FileInputs
from llama_stack_responses.core.errors import ApiError, bad_request
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.documents.document import Document
from llama_stack_responses.fetch.address_policy import AddressPolicy
from llama_stack_responses.inputs.attachments import open_attachments
from llama_stack_responses.inputs.files import Count
from llama_stack_responses.process_pool.pool import WorkerPool
from llama_stack_responses.requests.request import parse_create
from tests.support.pdf import pdf, pdf_bomb
from tests.support.waiting import until
from tests.support.web import Answer, Web

Json = dict[str, Any]

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\b\2\0\0\0\x90wS\xde\0\0\0\1IDATxcrc."
TEXT = {"type": "input_text", "text": '<file name="a.txt">\nHello\n</file>'}
FETCHING = Fetching(allowed_networks=[ip_network("127.0.0.1/32")])


class StoredFiles:
    """Stored files, and the ids of those that were read."""

    def __init__(self, **files: Document) -> None:
        self.files = files
        self.read_ids: list[str] = []

    async def read(self, file_id: str, count: Count) -> Document:
        """Return the file of this id."""
        self.read_ids.append(file_id)
        if file_id not in self.files:
            raise bad_request("No such file.", "input", "file_not_found")
        count(len(self.files[file_id].content))
        return self.files[file_id]


STORED_FILES = {
    "text": Document("a.txt", "text/plain", b"Hello"),
    "image": Document("a", "", PNG),
    "webp": Document("a.png", "image/png", b"RIFF\x19\0\0\0WEBPVP8L" + bytes(17)),
    "avif": Document("a.avif", "image/avif", b"\0\0\0 ftypavif"),
    "odd": Document('a"\n<b>.txt', "text/plain", b"Hello"),
}


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server on this machine."""
    with Web() as web:
        yield web


def user(*parts: Json) -> Json:
    return {"type": "message", "role": "user", "content": list(parts)}


def file(**source: str) -> Json:
    return {"type": "input_file", **source}


def image(**source: str) -> Json:
    return {"type": "input_image", "detail": "low", **source}


def data_url(content: bytes, kind: str = "text/plain") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


async def resolved(
    items: list[Json],
    profile: Profile | None = None,
    stored_files: StoredFiles | None = None,
    history: int = 0,
    continued: Json | None = None,
    **limits: Any,
) -> list[Json]:
    """Return the items as the model receives them. The first `history` items come from what the request continues."""
    config = ResponsesConfig(fetch=FETCHING, files=FileInputs(**limits))
    request = {"model": "m", "input": items[history:], **(continued or {})}
    contents = Admission(config.files.content_quota)
    pool, address_policy = WorkerPool(config.files.pool_limits), AddressPolicy(FETCHING.allowed_networks)
    attachments = open_attachments(stored_files or StoredFiles(**STORED_FILES), config, pool, contents, address_policy)
    with contents.reserve(ANONYMOUS) as held:
        return await attachments.resolved(items, profile or Profile(), parse_create(request), ANONYMOUS, held)


async def refused(items: list[Json], profile: Profile | None = None, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await resolved(items, profile, **options)
    assert caught.value.status == 400
    return caught.value


async def test_items_without_files_stay_same_object() -> None:
    items = [user({"type": "input_text", "text": "Hi"}, image(image_url="https://a.b/c.png"))]
    assert await resolved(items) is items


@pytest.mark.parametrize(
    "part",
    [
        file(file_id="text"),
        file(filename="a.txt", file_data=data_url(b"Hello")),
        file(filename="a.txt", file_data="SGVs\nbG8="),
        file(file_id="text", file_url="https://unused.example/file"),
    ],
)
async def test_file_becomes_text(part: Json) -> None:
    assert await resolved([user(part)]) == [user(TEXT)]


async def test_data_url_is_never_fetched() -> None:
    items = [
        user(
            image(
                image_url="DATA:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
            )
        )
    ]
    assert await resolved(items, Profile(image_urls="fetch")) is items


async def test_file_keeps_only_its_cache_breakpoint() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    assert await resolved([user(file(file_id="text") | mark | {"detail": "high"})]) == [user(TEXT | mark)]


async def test_file_name_cannot_break_out_of_its_tag() -> None:
    [item] = await resolved([user(file(file_id="odd"))])
    assert item["content"][0]["text"].startswith('<file name="a___b_.txt">\n')


async def test_file_from_url_becomes_text(web: Web) -> None:
    web.answers["/b/a%20%C3%A4.txt"] = Answer(b"Gr\xf6\xdfe", headers={"content-type": "text/plain; charset=latin-1"})
    [item] = await resolved([user(file(file_url=web.url("/b/a%20%C3%A4.txt?x=1")))])
    assert item["content"] == [{"type": "input_text", "text": '<file name="a ä.txt">\nGröße\n</file>'}]


async def test_model_with_file_support_gets_files() -> None:
    given = file(file_data="SGVsbG8=")
    items = await resolved([user(file(file_id="text"), given)], Profile(files=True))
    assert items == [user(file(filename="a.txt", file_data=data_url(b"Hello")), given)]


@pytest.mark.parametrize(("file_id", "kind"), [("image", "image/png"), ("webp", "image/webp"), ("avif", "image/avif")])
async def test_stored_image_becomes_data_url_of_its_type(file_id: str, kind: str) -> None:
    expected = image(image_url=data_url(STORED_FILES[file_id].content, kind))
    assert await resolved([user(image(file_id=file_id))]) == [user(expected)]


async def test_screenshot_is_resolved_like_image() -> None:
    shot = {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "file_id": "image"},
    }
    [item] = await resolved([shot])
    assert item["output"] == {"type": "computer_screenshot", "image_url": data_url(PNG, "image/png")}


async def test_same_source_is_read_once() -> None:
    stored_files = StoredFiles(**STORED_FILES)
    items = [user(file(file_id="text"), file(file_id="text")), user(file(file_id="text"))]
    assert await resolved(items, stored_files=stored_files) == [user(TEXT, TEXT), user(TEXT)]
    assert stored_files.read_ids == ["text"]


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (file(file_id="missing"), "file_id"),
        (image(file_id="text"), "file_id"),
        (file(file_data="!"), "file_data"),
        (file(file_url="http://127.0.0.2/"), "file_url"),
    ],
)
async def test_unreadable_file_names_its_parameter(part: Json, field: str) -> None:
    questions = [user({"type": "input_text", "text": "Hi"}), user({"type": "input_text", "text": "Hi"}, part)]
    assert (await refused(questions)).param == f"input[1].content[1].{field}"
    output = {"type": "function_call_output", "call_id": "c", "output": [part]}
    assert (await refused([output])).param == f"input[0].output[0].{field}"
    for continued in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}):
        assert [(await refused([*questions, user()], history=2, continued=continued)).param] == list(continued)


@pytest.mark.parametrize(
    ("part", "profile"),
    [
        (image(file_id="image"), Profile(images=False)),
        (image(image_url="https://a.b/c"), Profile(images=False)),
        ({"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF", "format": "wav"}}, Profile(audio=False)),
    ],
)
async def test_unsupported_part_of_the_newest_question_names_its_parameter(part: Json, profile: Profile) -> None:
    error = await refused([user(part)], profile)
    assert (error.param, error.code) == ("input[0].content[0]", "unsupported_value")


ANSWER: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
NOTE = {"type": "input_text", "text": "(an image that this model cannot see)"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "c"}


@pytest.mark.parametrize("source", [{"file_id": "gone"}, {"image_url": "https://a.b/c"}])
async def test_image_of_earlier_messages_and_tools_is_a_note_for_models_that_read_only_text(
    source: Json, caplog: pytest.LogCaptureFixture
) -> None:
    seen = image(**source)
    texts = {"type": "input_text", "text": "What is it?"}
    items = [user(texts, seen), ANSWER, {**OUTPUT, "output": [seen, file(file_id="text")]}, user(texts)]
    blind = await resolved(items, Profile(images=False))
    assert blind == [user(texts, NOTE), ANSWER, {**OUTPUT, "output": [NOTE, TEXT]}, user(texts)]
    assert items[0] == user(texts, seen)
    assert "gets notes in place of those" in caplog.text
    error = await refused([*items, user(image(image_url="https://a.b/d"))], Profile(images=False))
    assert (error.param, error.code) == ("input[4].content[0]", "unsupported_value")


async def test_screenshot_for_a_model_without_images_is_refused() -> None:
    screen = {"type": "computer_screenshot", "image_url": "https://a.b/c"}
    items = [user(TEXT), {"type": "computer_call_output", "call_id": "c", "output": screen}, user(TEXT)]
    assert (await refused(items, Profile(images=False))).code == "unsupported_value"


async def test_files_of_response_are_limited_together() -> None:
    parts = [file(filename="a.txt", file_data=data_url(b"Hello" + bytes([65 + n]))) for n in range(3)]
    assert await resolved([user(*parts)], max_bytes=18, max_files=3)
    assert "too large" in (await refused([user(*parts)], max_bytes=17)).message
    assert "more than 2 files" in (await refused([user(*parts)], max_files=2)).message


@pytest.mark.parametrize("source", ["text", "image"])
async def test_file_attached_repeatedly_counts_each_time(source: str) -> None:
    size = len(STORED_FILES[source].content)
    parts = [(file if source == "text" else image)(file_id=source)] * 50
    stored_files = StoredFiles(**STORED_FILES)
    assert await resolved([user(*parts[:25]), user(*parts[25:])], stored_files=stored_files, max_bytes=50 * size)
    assert stored_files.read_ids == [source]
    error = await refused([user(*parts)], max_bytes=50 * size - 1)
    assert error.param == "input[0].content[0].file_id"
    assert "too large" in error.message


async def test_fetched_file_is_limited_while_read(web: Web) -> None:
    web.say("/a.txt", "x" * 100, "text/plain")
    assert "larger than 99 bytes" in (await refused([user(file(file_url=web.url("/a.txt")))], max_bytes=99)).message


class AttachmentsHarness:
    """Attachments whose contents are counted, for several requests.

    Attributes:
        contents: the admission that counts them.
    """

    def __init__(self, stored_files: StoredFiles, **limits: Any) -> None:
        config = ResponsesConfig(fetch=FETCHING, files=FileInputs(**limits))
        self.contents = Admission(config.files.content_quota)
        pool, address_policy = WorkerPool(config.files.pool_limits), AddressPolicy(FETCHING.allowed_networks)
        self._attachments = open_attachments(stored_files, config, pool, self.contents, address_policy)

    async def read(
        self, held: Reservation, *parts: Json, profile: Profile | None = None, owner: Owner = ANONYMOUS
    ) -> None:
        """Read the files that a request of these parts names."""
        request = parse_create({"model": "m", "input": [user(*parts)]})
        await self._attachments.resolved(request.input_items, profile or Profile(), request, owner, held)


MILLION = 1_000_000
PICTURE = Document("a.png", "image/png", PNG + bytes(4 * MILLION))


async def test_contents_count_for_their_user_until_released() -> None:
    harness = AttachmentsHarness(StoredFiles(image=PICTURE), max_bytes=5 * MILLION, bytes_per_user=15 * MILLION)
    ada, bob = Owner("ada"), Owner("bob")
    with harness.contents.reserve(ada) as held:
        await harness.read(held, image(file_id="image"), owner=ada)
        # Its base64; the file itself is no longer counted.
        assert harness.contents.held == pytest.approx(4 * MILLION * 4 / 3, rel=0.01)
        before = harness.contents.held
        with harness.contents.reserve(ada) as another:
            await harness.read(another, image(file_id="image"), owner=ada)
            with harness.contents.reserve(ada) as third, pytest.raises(ApiError) as caught:
                await harness.read(third, image(file_id="image"), owner=ada)
        assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
        assert caught.value.param == "input[0].content[0].file_id"
        assert "too many files, pages and running outputs open at the same time" in caught.value.message
        assert harness.contents.held == before
        with harness.contents.reserve(bob) as theirs:
            await harness.read(theirs, image(file_id="image"), owner=bob)
    assert harness.contents.held == 0


async def test_contents_of_all_users_are_limited_together() -> None:
    harness = AttachmentsHarness(
        StoredFiles(image=PICTURE), max_bytes=5 * MILLION, bytes_per_user=15 * MILLION, total_bytes=25 * MILLION
    )
    users = [Owner(name) for name in ("ada", "bob", "eve")]
    with ExitStack() as opened:
        reservations = [opened.enter_context(harness.contents.reserve(each)) for each in users]
        for reservation, owner in zip(reservations[:2], users, strict=False):
            await harness.read(reservation, image(file_id="image"), owner=owner)
        with pytest.raises(ApiError) as caught:
            await harness.read(reservations[2], image(file_id="image"), owner=users[2])
    # While the file becomes base64, it counts twice: that would leave less than as much for others.
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert harness.contents.held == 0


async def test_too_large_stored_file_is_not_read() -> None:
    read = False

    class Large(StoredFiles):
        async def read(self, file_id: str, count: Count) -> Document:
            nonlocal read
            count(10**12)
            read = True
            raise AssertionError

    assert "too large" in (await refused([user(file(file_id="text"))], stored_files=Large())).message
    assert not read


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
async def test_aborted_file_releases_its_reservation(web: Web, ends: str) -> None:
    harness, resume = AttachmentsHarness(StoredFiles(**STORED_FILES)), Event()
    web.answers["/slow"] = Answer([bytes(MILLION), resume, b"", b"x" * (64 * 2**20)])
    with harness.contents.reserve(ANONYMOUS) as held:
        reading = asyncio.create_task(harness.read(held, file(file_url=web.url("/slow"))))
        await until(lambda: harness.contents.held >= MILLION * 0.9)
        if ends == "cancelled":
            reading.cancel()
        resume.set()
        await asyncio.wait([reading])
        assert reading.cancelled() == (ends == "cancelled")
        assert reading.cancelled() or "larger than" in str(reading.exception())
        assert harness.contents.held == 0


async def test_text_counts_instead_of_file_it_was_read_from() -> None:
    harness = AttachmentsHarness(
        StoredFiles(text=Document("a.pdf", "application/pdf", pdf("Otters sleep.") + bytes(MILLION)))
    )
    with harness.contents.reserve(ANONYMOUS) as held:
        await harness.read(held, file(file_id="text"), file(file_id="text"))
        assert 0 < harness.contents.held < 1000
    assert harness.contents.held == 0


def test_quota_below_one_request_is_invalid_configuration() -> None:
    for name in ("total_bytes", "bytes_per_user"):
        with pytest.raises(ValueError, match="three times 'max_bytes'"):
            FileInputs.model_validate({"max_bytes": 1000, name: 2999})


async def test_files_over_time_limit_are_refused_with_setting_name() -> None:
    error = await refused(
        [user(file(file_data=data_url(pdf_bomb(60_000_000), "application/pdf")))], request_seconds=0.001
    )
    assert (error.code, error.param) == ("invalid_file", "input[0].content[0].file_data")
    assert "'files.request_seconds'" in error.message


async def test_base64_of_any_size_is_decoded() -> None:
    content = b"Otters hold hands. " * 20_000
    encoded = base64.encodebytes(content).decode()
    read = await resolved([user(file(filename="a.txt", file_data=encoded))])
    assert read[0]["content"][0]["text"] == f'<file name="a.txt">\n{content.decode()}\n</file>'


HTML = b"<!doctype html><p>Sign in.</p>"


@pytest.mark.parametrize("profile", [Profile(), Profile(files=True)], ids=["as text", "as file"])
@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (Document("a.pdf", "application/pdf", HTML), "called a PDF"),
        (Document("a.PDF", "text/html", HTML), "called a PDF"),
        (Document("a", "application/pdf", b"a\0"), "called a PDF"),
        (Document("a.png", "image/png", HTML), "called an image"),
        (Document("a.pdf", "application/pdf", b""), "is empty"),
        (Document("a.txt", "text/plain", b""), "is empty"),
    ],
)
async def test_stored_file_that_is_not_what_it_is_called_is_refused(
    stored: Document, why: str, profile: Profile
) -> None:
    error = await refused([user(file(file_id="a"))], profile, stored_files=StoredFiles(a=stored))
    assert (error.code, error.param) == ("invalid_file", "input[0].content[0].file_id")
    assert why in error.message


async def test_page_at_the_url_of_a_pdf_is_refused(web: Web) -> None:
    web.say("/a.pdf", HTML.decode())
    error = await refused([user(file(file_url=web.url("/a.pdf")))])
    assert (error.code, error.param) == ("invalid_file", "input[0].content[0].file_url")


async def test_text_keeps_the_name_of_the_pdf_that_it_was_read_from() -> None:
    [item] = await resolved([user(file(filename="a.pdf", file_data=data_url(b"Hello", "text/markdown")))])
    assert item["content"][0]["text"] == '<file name="a.pdf">\nHello\n</file>'


@pytest.mark.parametrize(
    ("media_type", "content"), [("image/png", HTML), ("image/png", PNG[:8]), ("image/svg+xml", HTML)]
)
async def test_stored_image_that_is_none_is_refused(media_type: str, content: bytes) -> None:
    stored = StoredFiles(a=Document("a.png", media_type, content))
    error = await refused([user(image(file_id="a"))], stored_files=stored)
    assert error.code == "unsupported_image_media_type"


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (file(file_id="binary", filename="x.bin"), "The file 'x.bin' is neither"),
        (file(file_id="binary"), "The file 'binary' is neither"),
        (file(file_data=data_url(b"a\0b"), filename="n" * 1000), "The file 'nnn"),
        (file(file_id="empty", filename="e.txt"), "The file 'e.txt' is empty."),
        (file(file_data=data_url(b"a\0b")), "The file is neither"),
    ],
)
async def test_file_that_cannot_be_read_is_named(part: Json, named: str) -> None:
    stored = StoredFiles(binary=Document("b", "", b"a\0b"), empty=Document("e", "", b""))
    error = await refused([user(part)], stored_files=stored)
    assert error.message.startswith(named)
    assert len(error.message) < 500
