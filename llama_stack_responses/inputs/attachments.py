"""Files and images of a conversation, converted to the form that its model accepts.

The store keeps the client's form. The conversion is repeated for each response.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import unquote, urlsplit

from ..admission import Admission, Reservation
from ..chat.adaptation.message_edits import MEDIA
from ..chat.profile import Profile
from ..concurrency.large_base64 import decoded, decoded_bytes, encoded, encoded_bytes
from ..concurrency.offloading import in_thread_if_large
from ..concurrency.tasks import gather_or_cancel
from ..config import ResponsesConfig
from ..config.services import FileInputs
from ..core.base64_pieces import data_start
from ..core.errors import ApiError, bad_request
from ..core.media_formats import IMAGE_HEAD_BYTES, false_format, image_format, may_be_image
from ..core.owner import Owner
from ..core.shapes import excerpt
from ..core.types import Json
from ..documents.document import Document, Processor, Unreadable
from ..documents.pdf import PdfLimits, Pdfs
from ..documents.texts import ReadContext, Texts
from ..fetch.address_policy import AddressPolicy, UrlRefused
from ..fetch.fetcher import CONNECTION_BYTES, Fetcher, FetchLimits
from ..logs import get_logger
from ..process_pool.pool import WorkerPool
from ..process_pool.time_budget import TimeBudget
from ..requests.request import CreateRequest
from .files import Files

logger = get_logger(__name__)

_MAX_CONCURRENT_READS: Final = 4
"""Maximum files of one response that are read at the same time."""

_FIELDS: Final = ("file_id", "file_data", "file_url", "image_url")
"""Fields that may hold a file or an image; the first one present is used."""


class Attachments:
    """Converts files and images for models.

    Args:
        files: the stored files.
        fetcher: fetches URLs.
        texts: extracts text from files.
        limits: limits of the files of one response.
        contents: counts the bytes of files being read, and of their converted content.
    """

    def __init__(self, files: Files, fetcher: Fetcher, texts: Texts, limits: FileInputs, contents: Admission) -> None:
        self.contents = contents
        self.files = files
        self.fetcher = fetcher
        self.texts = texts
        self.limits = limits

    async def resolved(
        self, items: list[Json], profile: Profile, request: CreateRequest, owner: Owner, held: Reservation
    ) -> list[Json]:
        """Return the items with the content that their model needs: no file ids, and no URLs that it does not fetch.

        Args:
            items: the whole conversation.
            profile: the profile of the model.
            request: the request whose input ends the conversation.
            owner: the user of the request.
            held: reservation for the converted content; it must be released with the items.

        Raises:
            ApiError: 400 for content that the model does not accept or that cannot be read; 429 if too many files of
                this owner wait or are held, 503 if too many of all users are held; `param` names the part.
        """
        if not await in_thread_if_large(partial(_have_media, items), items):
            return items
        budget = TimeBudget(self.limits.request_seconds)
        reading = _RequestFiles(self, profile, request, owner, ReadContext(budget, request.store), held)
        await in_thread_if_large(partial(reading.register, items), items)
        if reading.unseen:
            logger.warning(
                "a model whose profile takes no images, or no audio, gets notes in place of those of earlier messages "
                "and of tools: %r",
                request.model,
            )
        if not (reading.sources or reading.unseen):
            return items
        await reading.read()
        return await in_thread_if_large(lambda: [reading.applied(*each) for each in enumerate(items)], items)


def open_attachments(
    files: Files,
    config: ResponsesConfig,
    pool: WorkerPool,
    contents: Admission,
    address_policy: AddressPolicy,
    processor: Processor | None = None,
) -> Attachments:
    """Return attachments for this configuration; `processor` reads kinds of files that this package cannot read."""
    limits, fetching = config.files, config.fetch
    fetcher = Fetcher(address_policy, FetchLimits(limits.max_bytes, fetching.seconds, fetching.redirects))
    pdfs = Pdfs(PdfLimits(limits.max_pages, limits.max_characters, limits.seconds), pool)
    texts = Texts(pool, pdfs, limits.max_characters, processor, limits.seconds)
    return Attachments(files, fetcher, texts, limits, contents)


@dataclass(frozen=True, slots=True)
class _Source:
    """The origin of a part's content. Parts with the same source are read once."""

    type: str
    field: str
    value: str
    filename: str | None


@dataclass(slots=True)
class _RequestFiles:
    """The files that are read for one response.

    Attributes:
        context: the owner and time budget for extracting text.
        held: reservation for the converted content.
        sources: one part for each source that has to be read.
        counts: number of parts of each source.
        unseen: the indices of items with parts that the model does not accept and gets notes of.
        converted: converted content of each source.
        size: bytes that were read, plus those that repeated parts add.
    """

    attachments: Attachments
    profile: Profile
    request: CreateRequest
    owner: Owner
    context: ReadContext
    held: Reservation
    sources: dict[_Source, Json] = field(default_factory=dict)
    counts: Counter[_Source] = field(default_factory=Counter)
    unseen: set[int] = field(default_factory=set)
    converted: dict[_Source, Json] = field(default_factory=dict)
    size: int = 0

    def register(self, items: Sequence[Json]) -> None:
        """Register the sources of the items' parts to be read.

        Raises:
            ApiError: the model does not accept a part of the newest question, or a screenshot.
        """
        question = _newest_question(items)
        for number, path, part in ((number, *each) for number, item in enumerate(items) for each in _parts(item)):
            if self._is_unseen(part):
                # Earlier messages, and outputs of tools, are not the user's to change.
                if number >= question or "[" not in path:
                    raise self._refused(part)
                self.unseen.add(number)
            elif source := self._source(part):
                self.sources.setdefault(source, part)
                self.counts[source] += 1

    async def read(self) -> None:
        """Read all registered sources.

        Raises:
            ApiError: a source cannot be read.
        """
        limit = self.attachments.limits.max_files
        if len(self.sources) > limit:
            message = f"This conversation has more than {limit} files and images. Send fewer."
            raise bad_request(message, "input", "array_above_max_length")
        slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)

        async def read(source: _Source, part: Json) -> None:
            async with slots:
                self.converted[source] = await self._content(source, part)

        await gather_or_cancel(read(source, part) for source, part in self.sources.items())

    def applied(self, number: int, item: Json) -> Json:
        """Return the item with this index with the converted content of its parts."""
        for name in ("content", "output"):
            held = item.get(name)
            if isinstance(held, list):
                apply = self._noted if number in self.unseen else self._applied
                parts = [apply(part) for part in held]
                if any(new is not old for new, old in zip(parts, held, strict=True)):
                    return {**item, name: parts}
            elif isinstance(held, dict):
                return {**item, name: self._applied(held)}
        return item

    def _noted(self, part: Json) -> Json:
        if not self._is_unseen(part):
            return self._applied(part)
        return {"type": "input_text", "text": _NOTES[_CAPABILITY[part["type"]]]}

    def _applied(self, part: Json) -> Json:
        content = self.converted.get(source) if (source := self._source(part)) else None
        if content is None:
            return part
        names = ["prompt_cache_breakpoint", *(() if part["type"] == "input_file" else ("type", "detail"))]
        return {name: part[name] for name in names if name in part} | content

    def _source(self, part: Json) -> _Source | None:
        """Return the source of a part, or None if the model accepts the part unchanged."""
        kind = part.get("type")
        name = next((name for name in _FIELDS if part.get(name)), None)
        if kind not in _CAPABILITY or name is None:
            return None
        to_fetch = self.profile.image_urls == "fetch" and part.get("image_url", "")[:5].lower() != "data:"
        if (name == "image_url" and not to_fetch) or (name == "file_data" and self.profile.files):
            return None
        return _Source(kind, name, part[name], part.get("filename"))

    def _is_unseen(self, part: Json) -> bool:
        what = _CAPABILITY.get(part.get("type", ""))
        return what in _NOTES and not getattr(self.profile, what)

    def _refused(self, part: Json) -> ApiError:
        message = f"This model does not accept {_CAPABILITY[part['type']]} as input."
        return bad_request(message, self._param(part, None), "unsupported_value")

    async def _content(self, source: _Source, part: Json) -> Json:
        is_image = _CAPABILITY[source.type] == "images"
        try:
            with self.attachments.contents.reserve(self.owner) as reading:
                content = await self._read(source, reading)
            self.held.add(self.counts[source] * sum(map(sys.getsizeof, content.values())))
            return content
        except UrlRefused as refused:
            code = "failed_to_download_image" if is_image else "failed_to_download_file"
            message = f"The {'image' if is_image else 'file'} could not be fetched: {refused}"
        except Unreadable as why:
            code = "unsupported_image_media_type" if is_image else "invalid_file"
            name = source.filename or (source.value if source.field == "file_id" else None)
            message = f"The file '{excerpt(name)}' {why}" if name else f"The file {why}"
        except ApiError as error:
            error.param = self._param(part, source.field)
            raise
        raise bad_request(message, self._param(part, source.field), code)

    async def _read(self, source: _Source, reading: Reservation) -> Json:
        """Return the converted content of a source. Its file, and its base64, count on `reading`."""
        document = await self._document(source, reading)
        if _CAPABILITY[source.type] == "images":
            self._count_parts(source, document, len(document.content))
            reading.add(encoded_bytes(document.content))
            return await _image(document)
        return await self._file(source, document, reading)

    def _count(self, size: int) -> None:
        self.size += size
        max_bytes = self.attachments.limits.max_bytes
        if self.size > max_bytes:
            raise Unreadable(
                f"is too large: the files and images of one response may have {max_bytes} bytes together, and each "
                "counts as often as it is attached."
            )

    def _count_parts(self, source: _Source, document: Document, size: int) -> None:
        """Count the total size of a file in all of its parts, minus the size counted when it was read.

        Args:
            size: size of the content of one part for the model; a text may be longer than its file.
        """
        self._count(max(0, size * self.counts[source] - len(document.content)))

    async def _document(self, source: _Source, reading: Reservation) -> Document:
        def count(size: int) -> None:
            self._count(size)
            reading.add(size)

        match source.field:
            case "file_id":
                return await self.attachments.files.read(source.value, count)
            case "file_data":
                reading.add(decoded_bytes(source.value))
                document = await _of_data(source)
                self._count(len(document.content))
                return document
        reading.add(CONNECTION_BYTES)
        fetched = await self.attachments.fetcher.get(source.value, count)
        name = unquote(urlsplit(fetched.url).path.rpartition("/")[2])
        return Document(name, fetched.media_type, fetched.body, fetched.charset)

    async def _file(self, source: _Source, document: Document, reading: Reservation) -> Json:
        name = source.filename or document.name
        if not document.content:
            raise Unreadable("is empty.")
        if called := false_format(document.content, document.media_type, name):
            raise Unreadable(f"is called {called} by its type or name, but its content is none.")
        if self.profile.files:
            self._count_parts(source, document, len(document.content))
            reading.add(encoded_bytes(document.content))
            media_type = document.media_type or "application/octet-stream"
            return {"type": "input_file", "filename": name, "file_data": await _data_url(media_type, document.content)}
        text = await self.attachments.texts.extract(document, self.context)
        self._count_parts(source, document, len(text))
        return {"type": "input_text", "text": f'<file name="{_quotable(name)}">\n{text}\n</file>'}

    def _param(self, part: Json, name: str | None) -> str:
        """Return the request's name for a part, or for a field of it.

        A part of the history gets the name of the parameter that the history belongs to.
        """
        for number, item in enumerate(self.request.input_items):
            for path, candidate in _parts(item):
                if candidate == part:
                    return ".".join(filter(None, [f"input[{number}].{path}", name]))
        for variable, value in ((self.request.prompt or {}).get("variables") or {}).items():
            if value == part:
                return ".".join(filter(None, [f"prompt.variables.{variable}", name]))
        if self.request.conversation:
            return "conversation"
        return "previous_response_id" if self.request.previous_response_id else "input"


_CAPABILITY: Final = {
    "input_image": "images",
    "computer_screenshot": "images",
    "input_file": "files",
    "input_audio": "audio",
}
"""The input capability of the model that a type of part needs. Without `files`, files become text."""


_NOTES: Final = {"images": MEDIA["image_url"], "audio": MEDIA["input_audio"]}
"""What a model reads in place of media that it does not accept, by the capability that it lacks."""


def _newest_question(items: Sequence[Json]) -> int:
    """Return the index of the first of the messages behind all that a model or a tool has said."""
    numbers = range(len(items) - 1, -1, -1)
    asked = ("user", "system", "developer")
    return next((number + 1 for number in numbers if items[number].get("role") not in asked), 0)


def _have_media(items: Sequence[Json]) -> bool:
    """Return whether an item has a part that may need a capability of the model."""
    for item in items:
        for name in ("content", "output"):
            held = item.get(name)
            parts = held if type(held) is list else (held,) if isinstance(held, dict) else ()
            for part in parts:
                if part.get("type") in _CAPABILITY:
                    return True
    return False


def _parts(item: Json) -> Iterator[tuple[str, Json]]:
    """Yield the parts of an item, each with its path."""
    for name in ("content", "output"):
        held = item.get(name)
        if isinstance(held, dict):
            yield name, held
        elif isinstance(held, list):
            yield from ((f"{name}[{number}]", part) for number, part in enumerate(held))


async def _image(document: Document) -> Json:
    found = image_format(document.content)
    media_type = f"image/{found}" if found else document.media_type
    beginning = document.content[:IMAGE_HEAD_BYTES]
    if not media_type.startswith("image/") or not may_be_image(beginning, len(document.content), media_type):
        raise Unreadable("is not an image. Send PNG, JPEG, GIF or WebP.")
    return {"image_url": await _data_url(media_type, document.content)}


async def _of_data(source: _Source) -> Document:
    """Return the file in `file_data`: a data URL, or plain base64."""
    start = data_start(source.value)
    parameters = source.value[:start].removesuffix(",").removeprefix("data:").split(";")
    try:
        content = await decoded(source.value, start)
    except ValueError:
        raise Unreadable("is not in base64: send 'data:MEDIA/TYPE;base64,...'.") from None
    charset = next((each[8:] for each in parameters if each.lower().startswith("charset=")), None)
    return Document(source.filename or "file", parameters[0].lower(), content, charset)


async def _data_url(media_type: str, content: bytes) -> str:
    return f"data:{media_type};base64,{await encoded(content)}"


def _quotable(name: str) -> str:
    """Return a file's name without characters that would end the line or the quotes around it."""
    return "".join("_" if each in '"<>' or not each.isprintable() else each for each in name) or "file"
