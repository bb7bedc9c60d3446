"""The files of the page, served from memory once the page has been opened.

Their addresses have a hash of all of them, `/ui/v-<hash>/app.js`, so that a browser keeps them as long as it can, and a
page never has files of two versions. The index alone has an address without one, and names the others.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Final

from ...core.discovery import folders_of_features
from ...core.types import Json
from ...items.kind import text_or_parts
from ...items.registry import ITEM_KINDS, REPLIES, REQUESTS, TOOL_TYPES
from ...items.view import View
from ...requests.tool_secrets import SECRETS
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
_GZIP: Final = 31
"""The largest window of `zlib`, with the header and trailer of gzip."""

_COMPRESSED: Final = frozenset({".css", ".html", ".js", ".json", ".svg", ".txt"})
_VERSION: Final = re.compile("v-([0-9a-f]{16})/")
_IMPORT: Final = re.compile(r'^import (?:.* from )?"\./([\w./-]+\.js)";$', re.MULTILINE)
_LINK: Final = re.compile(r'"/ui/([\w.-]+\.[a-z]+)"')
_PRELOADS: Final = "<!-- modulepreload -->"
_LIVE: Final = ("text", "language", "image", "run_by", "title", "failed_status")
"""What the page needs of a view for an item that is still streamed."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page.

    Attributes:
        content: its bytes.
        compressed: the same with gzip; None if that saves nothing.
        media_type: its media type.
        digest: names its content.
    """

    content: bytes
    compressed: bytes | None
    media_type: str
    digest: str


class Assets:
    """The files of the page, by their path below `/ui/`.

    Args:
        environment: environment variables, one of which may name another folder.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        override = environment.get(_OVERRIDE)
        self._changing = Path(override) if override else None
        self._reading = Lock()
        self._files: Mapping[str, Asset] = {}
        self._version = ""

    @property
    def is_read(self) -> bool:
        """Whether the files are in memory."""
        return bool(self._files) and not self._changing

    def read(self) -> None:
        """Read and compress the files, once. This takes a tenth of a second, so it is no work of the event loop."""
        with self._reading:
            if not self.is_read:
                self._files, self._version = _files(self._changing or _FOLDER)

    def find(self, path: str) -> Asset | None:
        """Return a file that was read; the index for the path of a view; None for a file that does not exist."""
        files = self._files
        path = _VERSION.sub("", path, count=1)
        name = path.rpartition("/")[2]
        return files.get(path) or (None if "." in name else files.get(_INDEX))

    def is_lasting(self, path: str) -> bool:
        """Return whether the path never has another content: it has the hash of the files."""
        found = _VERSION.match(path)
        return not self._changing and found is not None and found[1] == self._version


def _files(folder: Path) -> tuple[dict[str, Asset], str]:
    """Return the files of a folder and of features, the module with what the server knows, and the hash of all."""
    folders = folders_of_features("page").items()
    contents = _read(folder) | {"kinds.js": _kinds()}
    for name, each in folders:
        contents |= {f"features/{name}/{path}": content for path, content in _read(each).items()}
    whole = blake2b(digest_size=8)
    for path, content in sorted(contents.items()):
        whole.update(path.encode() + b"\0" + blake2b(content).digest())
    version = whole.hexdigest()
    files = {path: _asset(content, Path(path).suffix) for path, content in contents.items() if path != _INDEX}
    return files | ({_INDEX: _index(contents, version)} if _INDEX in contents else {}), version


def _index(contents: Mapping[str, bytes], version: str) -> Asset:
    """Return the index, which names the other files by their hash, and the modules that the first view needs."""
    folder = f"/ui/v-{version}/"
    preloads = "\n    ".join(f'<link rel="modulepreload" href="{folder}{name}">' for name in _imported(contents))
    page = contents[_INDEX].decode().replace(_PRELOADS, preloads)
    page = _LINK.sub(lambda found: f'"{folder}{found[1]}"', page)
    return _asset(page.encode(), ".html")


def _imported(contents: Mapping[str, bytes]) -> list[str]:
    """Return the modules that the first one imports, and those that they import."""
    found, waiting = dict[str, None](), [name for name in ("app.js",) if name in contents]
    while waiting:
        for name in _IMPORT.findall(contents[waiting.pop()].decode()):
            if name not in found and name in contents:
                found[name] = None
                waiting.append(name)
    return list(found)


def _kinds() -> bytes:
    """Return the module.

    It says how the page shows items, by their types, which fields are streamed, by the names of events, which tools the
    playground offers, and what is secret in a tool.
    """
    kinds = {name: {**_live(kind.view), **_answer(name)} for name, kind in ITEM_KINDS.items()}
    fields = [form.streamed for form in FORMS.values() if form.streamed]
    streamed = {each.delta(0, "", 0, "")["type"].split(".")[1]: each.key for each in fields}
    tools = [{"type": name, **asdict(tool.offered)} for name, tool in TOOL_TYPES.items() if tool.offered]
    names = {"KINDS": kinds, "STREAMED": streamed, "TOOLS": tools, "SECRETS": SECRETS}
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


def _read(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.suffix in _TYPES and path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _asset(content: bytes, suffix: str) -> Asset:
    compressed = zlib.compress(content, level=9, wbits=_GZIP) if suffix in _COMPRESSED else content
    smaller = compressed if len(compressed) < len(content) else None
    return Asset(content, smaller, _TYPES[suffix], blake2b(content, digest_size=12).hexdigest())
