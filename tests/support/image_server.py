"""A stand-in for a server with OpenAI's API for images, on a `Web`.

images = ImageServer(web)                       # answers with a new image for each call
images.next = [Answer(b"<html>"), streamed(png(1), png(2))]    # or with these, in this order
images.calls                                     # the calls, oldest first
"""

import base64
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.support.web import Answer, ReceivedRequest, Web

type Json = dict[str, Any]

JSON: Final = {"content-type": "application/json"}
EVENTS: Final = {"content-type": "text/event-stream"}
JPEG: Final = b"\xff\xd8\xff\xe0" + b"jpeg"
WEBP: Final = b"RIFF\x04\x00\x00\x00WEBPVP8 "
PARTIAL: Final = "response.image_generation_call.partial_image"
GIF: Final = b"GIF89a" + bytes(8)


def png(shade: int, size: int = 0) -> bytes:
    """Return a valid PNG image of one pixel, with this shade of grey; `size` bytes more follow its end."""
    parts = (
        (b"IHDR", struct.pack(">2I5B", 1, 1, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes([0, shade]))),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + bytes(size)


def base64_of(image: bytes) -> str:
    """Return an image in base64."""
    return base64.b64encode(image).decode()


def data_url(image: bytes) -> str:
    """Return an image as a data URL."""
    return f"data:image/png;base64,{base64_of(image)}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the server.

    Attributes:
        kind: `generations` or `edits`.
        fields: those of the JSON, or the texts of the form.
        files: the files of the form, by their fields.
        headers: those of the request.
    """

    kind: str
    fields: Json
    files: Sequence[tuple[str, bytes]]
    headers: Mapping[str, str]


def answer(image: bytes | str, **about: Any) -> Answer:
    """Return the answer with an image."""
    data = image if isinstance(image, str) else base64_of(image)
    return Answer(json.dumps({"created": 1, "data": [{"b64_json": data}], **about}).encode(), headers=JSON)


def refused(status: int, **error: Any) -> Answer:
    """Return an error in OpenAI's form."""
    return Answer(json.dumps({"error": error}).encode(), status, JSON)


def frames(*data: Any) -> list[bytes]:
    """Return these events as the frames of a stream."""
    return [b"data: %b\n\n" % (each if isinstance(each, bytes) else json.dumps(each).encode()) for each in data]


def events(*data: Any) -> Answer:
    """Return a stream of these events."""
    return Answer(frames(*data), headers=EVENTS)


def steps(*images: bytes, **about: Any) -> list[Json]:
    """Return the events in OpenAI's form for these images: all but the last are unfinished."""
    *partial, final = map(base64_of, images)
    kind = "image_generation"
    return [
        *(
            {"type": f"{kind}.partial_image", "partial_image_index": number, "b64_json": data, **about}
            for number, data in enumerate(partial)
        ),
        {"type": f"{kind}.completed", "b64_json": final, **about},
    ]


def streamed(*images: bytes, **about: Any) -> Answer:
    """Return a stream in OpenAI's form: all images but the last are unfinished."""
    return events(*steps(*images, **about))


def as_replayed(stream: Sequence[Json]) -> list[Json]:
    """Return the events of a stream as a replay has them: the final image takes the place of unfinished ones."""
    output = stream[-1]["response"]["output"]
    return [_finished(event, output) if event["type"] == PARTIAL else event for event in stream]


def _finished(event: Json, output: Sequence[Json]) -> Json:
    item = output[event["output_index"]]
    settings = {name: item.get(name) for name in ("background", "output_format", "quality", "size")}
    return {**event, **settings, "partial_image_b64": item["result"] or ""}


class ImageServer:
    """The server, below `/images/v1` of a web server.

    Attributes:
        calls: the calls so far.
        next: the next answers; without any, a new image is the answer.
    """

    def __init__(self, web: Web) -> None:
        """Serve on this web server until it is reset."""
        self.calls: list[Call] = []
        self.next: list[Answer] = []
        for kind in ("generations", "edits"):
            web.answers[f"/images/v1/images/{kind}"] = self._answer
        self.url = web.url("/images/v1")

    def _answer(self, request: ReceivedRequest) -> Answer:
        media_type = request.headers["content-type"]
        fields, files = (request.json(), []) if media_type == JSON["content-type"] else _form(media_type, request.body)
        self.calls.append(Call(request.path.rpartition("/")[2], fields, files, request.headers))
        return self.next.pop(0) if self.next else answer(png(len(self.calls)))


def _form(media_type: str, body: bytes) -> tuple[Json, list[tuple[str, bytes]]]:
    """Return the texts and the files of a form."""
    boundary = media_type.partition("boundary=")[2].encode()
    fields: Json = {}
    files: list[tuple[str, bytes]] = []
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        content = content.removesuffix(b"\r\n")
        name = head.partition(b'name="')[2].partition(b'"')[0].decode()
        if b"filename=" in head:
            files.append((name, content))
        else:
            fields[name] = content.decode()
    return fields, files
