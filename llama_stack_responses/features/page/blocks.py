"""Parts of a view: texts, code, images, files and links, each bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...core.base64_pieces import data_start
from ...core.json_blocks import blocks
from ...core.types import Json
from ...items.view import Link, objects

MARKDOWN_CHARACTERS: Final = 100_000
"""Maximum number of characters of a text that is rendered; a longer one is shown as it is."""

_TEXT_CHARACTERS: Final = 1_000_000
_CODE_CHARACTERS: Final = 200_000
_SHORT_CHARACTERS: Final = 500
_LINK_CHARACTERS: Final = 2048
_IMAGE_CHARACTERS: Final = 2**20
_GENERATED_CHARACTERS: Final = 16 * 2**20
_GENERATED_FORMATS: Final = ("png", "jpeg", "gif", "webp")
_PICTURE: Final = re.compile("data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]*")


@dataclass(slots=True)
class Budget:
    """The characters that a view may still hold; texts beyond that are cut.

    Attributes:
        left: characters.
        generated: characters of generated images, which would take the room of the texts.
    """

    left: int = 4_000_000
    generated: int = 2 * _GENERATED_CHARACTERS

    def cut(self, text: str, max_characters: int) -> tuple[str, bool]:
        """Return the text's beginning, and whether it was cut."""
        beginning = text[: min(max_characters, self.left)]
        self.left -= len(beginning)
        return beginning, len(beginning) < len(text)


def words(text: str, budget: Budget, citations: Sequence[Json] = ()) -> Json:
    """Return the block of a text: Markdown, to be rendered, or plain text if it is too long for that."""
    beginning, cut = budget.cut(text, _TEXT_CHARACTERS)
    if len(beginning) > MARKDOWN_CHARACTERS:
        return {"kind": "text", "text": beginning, "truncated": cut}
    return {"kind": "markdown", "html": None, "text": beginning, "truncated": cut, "citations": list(citations)}


def plain(text: str, budget: Budget) -> Json:
    """Return the block of a text that is shown as it is."""
    beginning, cut = budget.cut(text, _TEXT_CHARACTERS)
    return {"kind": "text", "text": beginning, "truncated": cut}


def code(text: str, language: str, budget: Budget) -> Json:
    """Return the block of code, or of a program's output."""
    beginning, cut = budget.cut(text, _CODE_CHARACTERS)
    return {"kind": "code", "text": beginning, "language": language, "truncated": cut}


def as_json(value: Any, budget: Budget, kind: str = "code") -> Json:
    """Return the block of a JSON value, given as such or as text."""
    return {**code(indented(value), "json", budget), "kind": kind}


def indented(value: Any) -> str:
    """Return a JSON value with indents; a text that is no JSON, or a long one, as it is."""
    if not isinstance(value, str):
        text = _beginning(value)
        return text if len(text) > _CODE_CHARACTERS else json.dumps(value, indent=2, ensure_ascii=False)
    if len(value) > _CODE_CHARACTERS:
        return value
    try:
        return json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return value


def _beginning(value: Any) -> str:
    """Return a value as JSON; of a long one, only a little more than a block shows."""
    text = ""
    for block in blocks(value):
        text += block.decode("utf-8", "replace")
        if len(text) > _CODE_CHARACTERS:
            break
    return text


def is_json(text: str) -> bool:
    """Return whether a text of bounded length is a JSON object or array."""
    if len(text) > _CODE_CHARACTERS or text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def image(url: Any, file_id: Any, detail: Any, budget: Budget) -> Json:
    """Return the block of an image. Only small pictures in data URLs are shown; others are links."""
    source = url if isinstance(url, str) and len(url) <= _IMAGE_CHARACTERS and _PICTURE.fullmatch(url) else None
    if source and len(source) > budget.left:
        source = None
    budget.left -= len(source or "")
    return {"kind": "image", "url": source, "link": web_link(url), "file_id": short(file_id), "detail": short(detail)}


def generated_image(data: Any, image_format: Any, budget: Budget) -> Json:
    """Return the block of an image that a tool generated, given as base64; without the image if there is no room."""
    shown = isinstance(data, str) and len(data) <= min(_GENERATED_CHARACTERS, budget.generated)
    form = image_format if image_format in _GENERATED_FORMATS else _GENERATED_FORMATS[0]
    budget.generated -= len(data) if shown else 0
    url = f"data:image/{form};base64,{data}" if shown else None
    return {"kind": "image", "url": url, "link": None, "file_id": None, "detail": None}


def file(part: Mapping[str, Any]) -> Json:
    """Return the block of a file of a message."""
    data = part.get("file_data")
    size = _decoded_bytes(data) if isinstance(data, str) else None
    link = web_link(part.get("file_url"))
    name, file_id = short(part.get("filename")), short(part.get("file_id"))
    return {"kind": "file", "name": name, "file_id": file_id, "link": link, "bytes": size}


def _decoded_bytes(data: str) -> int:
    """Return the size of Base64, which may stand in a data URL."""
    characters = len(data) - data_start(data)
    return characters * 3 // 4 - data.count("=", max(0, len(data) - 2))


def link(found: Link, budget: Budget) -> Json:
    """Return the block of a page or a file that a search found."""
    text, _ = budget.cut(found.text if isinstance(found.text, str) else "", 2000)
    title, file_id = short(found.title), short(found.file_id)
    return {"kind": "link", "link": web_link(found.url), "title": title, "text": text, "file_id": file_id}


def web_link(url: Any) -> str | None:
    """Return an address of the web; None for any other, which a page must not open."""
    if isinstance(url, str) and len(url) <= _LINK_CHARACTERS and url.lower().startswith(("http://", "https://")):
        return url
    return None


def short(value: Any) -> str | None:
    """Return a value as a short text; None if there is none."""
    return None if value is None else str(value)[:_SHORT_CHARACTERS] if isinstance(value, str | int | float) else None


def citations(annotations: Any) -> list[Json]:
    """Return what the annotations of a text cite."""
    return [
        {
            "title": short(each.get("title")),
            "link": web_link(each.get("url")),
            "file_id": short(each.get("file_id")),
            "container_id": short(each.get("container_id")),
            "name": short(each.get("filename")),
            "start": _index(each.get("start_index")),
            "end": _index(each.get("end_index")),
        }
        for each in objects(annotations)
    ]


def _index(value: Any) -> int | None:
    return value if isinstance(value, int) else None
