"""The files and images of a conversation, in the form in which its model takes them.

What is stored is what the client sent; what stands here is made of it anew for each response.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ..chat.profile import Profile
from ..concurrency import at_once
from ..config import FileInputs, ResponsesConfig
from ..core.errors import ApiError, bad_request
from ..core.owner import Owner
from ..core.schema.request import CreateRequest
from ..documents.document import Document, Processor, Unreadable
from ..documents.pdf import PdfLimits, Pdfs
from ..documents.texts import Reader, Texts
from ..fetch.address_policy import Guard, Refused
from ..fetch.fetcher import Fetcher, FetchLimits
from ..process_pool.pool import WorkerPool
from ..process_pool.time_budget import TimeBudget
from .files import Files
from .large_base64 import decoded, encoded

Json = dict[str, Any]

_AT_ONCE: Final = 4
"""Files of one response that are read at a time."""

_IMAGES: Final = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
"""The image formats that all models with eyes take, by their first bytes; WebP has its name further in."""

_FIELDS: Final = ("file_id", "file_data", "file_url", "image_url")
"""Where a file or an image may be; the first that is given counts."""


class Attachments:
    """Makes files and images fit for models.

    Args:
        files: the stored files.
        fetcher: reads what URLs name.
        texts: makes text of files.
        limits: bounds on what one response reads.
    """

    def __init__(self, files: Files, fetcher: Fetcher, texts: Texts, limits: FileInputs) -> None:
        self.files = files
        self.fetcher = fetcher
        self.texts = texts
        self.limits = limits

    async def resolved(self, items: list[Json], profile: Profile, request: CreateRequest, owner: Owner) -> list[Json]:
        """The items with all that their model needs in them: no id of a file, and no URL that it does not fetch.

        Args:
            items: the whole conversation.
            request: whose input it ends with.
            owner: who asks.

        Raises:
            ApiError: 400 for what the model does not take, and for what cannot be read; 429 where too many files of
                this owner wait to be read; `param` names the part.
        """
        budget = TimeBudget(self.limits.request_seconds)
        reading = _Reading(self, profile, request, Reader(owner.identity, budget, request.store))
        for part in (part for item in items for _, part in _places(item)):
            reading.want(part)
        if not reading.wanted:
            return items
        await reading.read()
        return [reading.applied(item) for item in items]


def open_attachments(
    files: Files, config: ResponsesConfig, pool: WorkerPool, processor: Processor | None = None
) -> Attachments:
    """Attachments as the configuration wants them; `processor` reads files that this package does not."""
    limits, fetching = config.files, config.fetch
    guard = Guard(fetching.allowed_networks)
    fetcher = Fetcher(guard, FetchLimits(limits.max_bytes, fetching.seconds, fetching.redirects))
    pdfs = Pdfs(PdfLimits(limits.max_pages, limits.max_characters, limits.seconds), pool)
    texts = Texts(pool, pdfs, limits.max_characters, processor, limits.seconds)
    return Attachments(files, fetcher, texts, limits)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a part's content comes from: parts that have it in common are read once."""

    type: str
    field: str
    value: str
    filename: str | None


@dataclass(slots=True)
class _Reading:
    """What is read for one response.

    Attributes:
        reader: for whom.
        wanted: a part of each source that has to be read.
        places: how many parts each source has.
        made: what becomes of the parts of a source.
        size: bytes that were read, and that repeated parts add.
    """

    means: Attachments
    profile: Profile
    request: CreateRequest
    reader: Reader
    wanted: dict[_Source, Json] = field(default_factory=dict)
    places: Counter[_Source] = field(default_factory=Counter)
    made: dict[_Source, Json] = field(default_factory=dict)
    size: int = 0

    def want(self, part: Json) -> None:
        """Notes what has to be read for a part.

        Raises:
            ApiError: the model does not take it.
        """
        self._check(part)
        if source := self._source(part):
            self.wanted.setdefault(source, part)
            self.places[source] += 1

    async def read(self) -> None:
        """Reads what was noted.

        Raises:
            ApiError: something of it cannot be read.
        """
        if len(self.wanted) > self.means.limits.max_files:
            message = f"This conversation has more than {self.means.limits.max_files} files and images to be read."
            raise bad_request(message, "input", "array_above_max_length")
        places = asyncio.Semaphore(_AT_ONCE)

        async def read(source: _Source, part: Json) -> None:
            async with places:
                self.made[source] = await self._made(source, part)

        await at_once(read(source, part) for source, part in self.wanted.items())

    def applied(self, item: Json) -> Json:
        """The item with what was made of its parts."""
        for name in ("content", "output"):
            held = item.get(name)
            if isinstance(held, list):
                parts = [self._applied(part) for part in held]
                if any(new is not old for new, old in zip(parts, held, strict=True)):
                    return {**item, name: parts}
            elif isinstance(held, dict):
                return {**item, name: self._applied(held)}
        return item

    def _applied(self, part: Json) -> Json:
        made = self.made.get(source) if (source := self._source(part)) else None
        if made is None:
            return part
        kept = ["prompt_cache_breakpoint", *(() if part["type"] == "input_file" else ("type", "detail"))]
        return {name: part[name] for name in kept if name in part} | made

    def _source(self, part: Json) -> _Source | None:
        """Where to read what this part names; None where the model takes the part as it is."""
        kind = part.get("type")
        name = next((name for name in _FIELDS if part.get(name)), None)
        if kind not in _TAKEN or name is None:
            return None
        to_fetch = self.profile.image_urls == "fetch" and part.get("image_url", "")[:5].lower() != "data:"
        if (name == "image_url" and not to_fetch) or (name == "file_data" and self.profile.files):
            return None
        return _Source(kind, name, part[name], part.get("filename"))

    def _check(self, part: Json) -> None:
        what = _TAKEN.get(part.get("type", ""))
        if what in ("images", "audio") and not getattr(self.profile, what):
            message = f"This model does not take {what} as input."
            raise bad_request(message, self._param(part, None), "unsupported_value")

    async def _made(self, source: _Source, part: Json) -> Json:
        is_image = _TAKEN[source.type] == "images"
        try:
            document = await self._document(source)
            self._count(len(document.content))
            if is_image:
                self._count_parts(source, document, len(document.content))
                return await _image(document)
            return await self._file(source, document)
        except Refused as refused:
            code = "failed_to_download_image" if is_image else "failed_to_download_file"
            message = f"The {'image' if is_image else 'file'} could not be fetched: {refused}"
        except Unreadable as why:
            code = "unsupported_image_media_type" if is_image else "invalid_file"
            message = f"The file {why}"
        except ApiError as error:
            error.param = self._param(part, source.field)
            raise
        raise bad_request(message, self._param(part, source.field), code)

    def _count(self, size: int) -> None:
        self.size += size
        most = self.means.limits.max_bytes
        if self.size > most:
            raise Unreadable(
                f"is too large: this server reads {most} bytes of files and images for one response, and counts one "
                "as often as it is attached."
            )

    def _count_parts(self, source: _Source, document: Document, size: int) -> None:
        """Counts what a file comes to in all of its parts, beyond what was counted when it was read.

        Args:
            size: of what one part says to the model; a text may be longer than its file.
        """
        self._count(max(0, size * self.places[source] - len(document.content)))

    async def _document(self, source: _Source) -> Document:
        match source.field:
            case "file_id":
                return await self.means.files.read(source.value)
            case "file_data":
                return await _of_data(source)
        fetched = await self.means.fetcher.get(source.value)
        name = unquote(urlsplit(fetched.url).path.rpartition("/")[2])
        return Document(name, fetched.media_type, fetched.body, fetched.charset)

    async def _file(self, source: _Source, document: Document) -> Json:
        name = source.filename or document.name
        if self.profile.files:
            self._count_parts(source, document, len(document.content))
            media_type = document.media_type or "application/octet-stream"
            return {"type": "input_file", "filename": name, "file_data": await _data_url(media_type, document.content)}
        text = await self.means.texts.of(document, self.reader)
        self._count_parts(source, document, len(text))
        return {"type": "input_text", "text": f'<file name="{_quotable(name)}">\n{text}\n</file>'}

    def _param(self, part: Json, name: str | None) -> str:
        """What the request calls a part, or a field of it; what is none of its own came with its history."""
        for number, item in enumerate(self.request.input_items):
            for place, its in _places(item):
                if its == part:
                    return ".".join(filter(None, [f"input[{number}].{place}", name]))
        for variable, given in ((self.request.prompt or {}).get("variables") or {}).items():
            if given == part:
                return ".".join(filter(None, [f"prompt.variables.{variable}", name]))
        if self.request.conversation:
            return "conversation"
        return "previous_response_id" if self.request.previous_response_id else "input"


_DATA_HEAD: Final = 1_000
"""Characters of a data URL within which its data begins."""

_TAKEN: Final = {
    "input_image": "images",
    "computer_screenshot": "images",
    "input_file": "files",
    "input_audio": "audio",
}
"""What a model has to take, by the type of a part. Files become text where it does not."""


def _places(item: Json) -> Iterator[tuple[str, Json]]:
    """The parts of an item, each with where it stands."""
    for name in ("content", "output"):
        held = item.get(name)
        if isinstance(held, dict):
            yield name, held
        elif isinstance(held, list):
            yield from ((f"{name}[{number}]", part) for number, part in enumerate(held))


async def _image(document: Document) -> Json:
    head = document.content[:12]
    media_type = next((kind for start, kind in _IMAGES.items() if head.startswith(start)), document.media_type)
    if head[:4] == b"RIFF" and head[8:] == b"WEBP":
        media_type = "image/webp"
    if not media_type.startswith("image/"):
        raise Unreadable("is not an image. Send PNG, JPEG, GIF or WebP.")
    return {"image_url": await _data_url(media_type, document.content)}


async def _of_data(source: _Source) -> Document:
    """The file in `file_data`: a data URL, or plain base64."""
    # A comma is no character of base64, and the head of a data URL is short.
    comma = source.value.find(",", 0, _DATA_HEAD)
    head, data = source.value[: max(comma, 0)], source.value[comma + 1 :]
    parameters = head.removeprefix("data:").split(";")
    try:
        content = await decoded(data)
    except ValueError:
        raise Unreadable("is not in base64: send 'data:MEDIA/TYPE;base64,...'.") from None
    charset = next((each[8:] for each in parameters if each.lower().startswith("charset=")), None)
    return Document(source.filename or "file", parameters[0].lower(), content, charset)


async def _data_url(media_type: str, content: bytes) -> str:
    return f"data:{media_type};base64,{await encoded(content)}"


def _quotable(name: str) -> str:
    """A file's name without what would end the line or the quotes that it stands in."""
    return "".join("_" if each in '"<>' or not each.isprintable() else each for each in name) or "file"
