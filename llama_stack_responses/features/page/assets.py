"""The files of the page, served from memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from ...core.discovery import folders_of_features
from ...core.types import Json
from ...items.kind import text_or_parts
from ...items.registry import ITEM_KINDS, REPLIES, REQUESTS, TOOL_TYPES
from ...items.view import View
from ...stream.call_kinds import FORMS
from .item_views import shown_as

_FOLDER: Final = Path(__file__).with_name("static")
_OVERRIDE: Final = "LLAMA_STACK_RESPONSES_UI_DIR"
"""Environment variable that names a folder whose files are read at each request, for work on the page."""

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
_INDEX: Final = "index.html"
_LIVE: Final = ("text", "language", "image", "run_by", "title", "failed_status")
"""What the page needs of a view for an item that is still streamed."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page.

    Attributes:
        content: its bytes.
        media_type: its media type.
        etag: the value of its `etag` header.
    """

    content: bytes
    media_type: str
    etag: str


class Assets:
    """The files of the page, by their path below `/ui/`.

    Args:
        environment: environment variables, one of which may name another folder.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        override = environment.get(_OVERRIDE)
        self._changing = Path(override) if override else None
        self._files = _files(_FOLDER) if override is None else {}

    def find(self, path: str) -> Asset | None:
        """Return a file; the index for the path of a view; None for a file that does not exist."""
        files = _files(self._changing) if self._changing else self._files
        name = path.rpartition("/")[2]
        return files.get(path) or (None if "." in name else files.get(_INDEX))


def _files(folder: Path) -> dict[str, Asset]:
    """Return the files of a folder and of features, and the module with what the server knows of items and tools."""
    folders = folders_of_features("page").items()
    others = {f"features/{name}/{path}": asset for name, each in folders for path, asset in _read(each).items()}
    return {**_read(folder), **others, "kinds.js": _asset(_kinds(), ".js")}


def _kinds() -> bytes:
    """Return the module.

    It says how the page shows items, by their types, which fields are streamed, by the names of events, and which tools
    the playground offers.
    """
    kinds = {name: {**_live(kind.view), **_answer(name)} for name, kind in ITEM_KINDS.items()}
    fields = [form.streamed for form in FORMS.values() if form.streamed]
    streamed = {each.delta(0, "", 0, "")["type"].split(".")[1]: each.key for each in fields}
    tools = [{"type": name, **asdict(tool.offered)} for name, tool in TOOL_TYPES.items() if tool.offered]
    names = {"KINDS": kinds, "STREAMED": streamed, "TOOLS": tools}
    return "".join(f"export const {name} = {json.dumps(value)};\n" for name, value in names.items()).encode()


def _answer(name: str) -> Json:
    """Return how a viewer answers items of this type, or of an answer, which of its fields names what it answers."""
    if name in REPLIES:
        return {"names": REPLIES[name].names, "to": REPLIES[name].to}
    answer, reply = REQUESTS.get(name, ("", None))
    approves = reply is not None and reply.waits_for == "approval"
    if reply is None or not (approves or ITEM_KINDS[answer].output is text_or_parts):
        return {}
    return {"answer": {"type": answer, "named_by": reply.named_by, "how": "approval" if approves else "text"}}


def _live(view: View | None) -> Json:
    return {"shown": shown_as(view), **{part: getattr(view, part) for part in _LIVE if hasattr(view, part)}}


def _read(folder: Path) -> dict[str, Asset]:
    paths = (path for path in sorted(folder.rglob("*")) if path.suffix in _TYPES and path.is_file())
    return {path.relative_to(folder).as_posix(): _asset(path.read_bytes(), path.suffix) for path in paths}


def _asset(content: bytes, suffix: str) -> Asset:
    return Asset(content, _TYPES[suffix], f'"{blake2b(content, digest_size=12).hexdigest()}"')
