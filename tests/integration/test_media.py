"""Images and audio: by URL, as data and by the id of a file in the host's Files API."""

import base64
import struct
import zlib
from typing import Any, Final

import openai
import pytest

from tests.support.one_pixel import ONE_PIXEL
from tests.support.openai_client import MODEL, NAME, Json, create, function, messages, stream
from tests.support.upstream import Upstream, reply, text
from tests.support.web import Answer, Web

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

SAID: Final = reply(text("I see."))
URL: Final = "https://example.org/cat.png?size=1&x=%20"
CALL: Final[Json] = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


def png() -> bytes:
    """Return a PNG of one red pixel."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0\xff\0\0")), (b"IEND", b"")]
    packed = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def image_url(url: str, **more: str) -> Json:
    """Return an image as a chat content part."""
    return {"type": "image_url", "image_url": {"url": url, **more}}


PARTS: Final[dict[str, tuple[Json, Json]]] = {
    "an image's URL": ({"type": "input_image", "image_url": URL}, image_url(URL)),
    "an image's data": ({"type": "input_image", "image_url": ONE_PIXEL}, image_url(ONE_PIXEL)),
    "an image with nulls": ({"type": "input_image", "image_url": URL, "file_id": None, "detail": None}, image_url(URL)),
    "detail auto": ({"type": "input_image", "image_url": URL, "detail": "auto"}, image_url(URL)),
    **{
        f"detail {detail}": (
            {"type": "input_image", "image_url": URL, "detail": detail},
            image_url(URL, detail="high" if detail == "original" else detail),
        )
        for detail in ("low", "high", "original")
    },
    "audio": (
        {"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF", "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF", "format": "wav"}},
    ),
}


@pytest.mark.parametrize("case", PARTS)
def test_media_part_is_sent_as_its_chat_part(client: openai.OpenAI, upstream: Upstream, case: str) -> None:
    upstream.script(NAME, SAID)
    part, expected = PARTS[case]
    questions = [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, part]}]
    first = stream(client, model=MODEL, input=questions).response
    message = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, expected]}
    assert messages(upstream) == [message]
    create(client, model=MODEL, input="Sure?", previous_response_id=first["id"])
    assert messages(upstream)[0] == message


def test_message_with_only_an_image_is_sent(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    create(client, model=MODEL, input=[{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}])
    assert messages(upstream) == [{"role": "user", "content": [image_url(URL)]}]


# -- files that were uploaded ----------------------------------------------------------


def test_uploaded_image_is_sent_as_data_and_stored_by_id(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    file = client.files.create(file=("pixel.png", png()), purpose="assistants")
    part: Any = {"type": "input_image", "file_id": file.id, "detail": "high"}
    first = create(client, model=MODEL, input=[{"role": "user", "content": [part]}])
    url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    assert messages(upstream) == [{"role": "user", "content": [image_url(url, detail="high")]}]
    # The history keeps the file id, and the next response reads the file again.
    [item] = client.responses.input_items.list(first["id"]).data
    assert item.to_dict()["content"] == [part]
    create(client, model=MODEL, input="Sure?", previous_response_id=first["id"])
    assert messages(upstream)[0] == {"role": "user", "content": [image_url(url, detail="high")]}


def test_file_id_used_twice_is_sent_twice(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    file = client.files.create(file=("pixel.png", png()), purpose="assistants")
    part = {"type": "input_image", "file_id": file.id}
    create(client, model=MODEL, input=[{"role": "user", "content": [part, part]}])
    first, second = messages(upstream)[0]["content"]
    assert first == second


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_missing_file_id_is_400(client: openai.OpenAI, upstream: Upstream, kind: Any) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(
            model=MODEL, input=[{"role": "user", "content": [{"type": kind, "file_id": "missing-file"}]}]
        )
    assert (raised.value.code, raised.value.param) == ("file_not_found", "input[0].content[0].file_id")
    assert "missing-file" in raised.value.message
    assert upstream.requests() == []


def test_continuing_after_deletion_of_a_file_is_400(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    file = client.files.create(file=("pixel.png", png()), purpose="assistants")
    part: Any = {"type": "input_image", "file_id": file.id}
    first = create(client, model=MODEL, input=[{"role": "user", "content": [part]}])
    client.files.delete(file.id)
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model=MODEL, input="Sure?", previous_response_id=first["id"])
    assert (raised.value.code, raised.value.param) == ("file_not_found", "previous_response_id")


# -- outputs of tools -----------------------------------------------------------------


def test_image_in_tool_output_is_sent_in_the_next_user_message(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    other = {**CALL, "call_id": "c2"}
    output = [
        {"type": "input_text", "text": "A cat:"},
        {"type": "input_image", "image_url": ONE_PIXEL, "detail": "low"},
    ]
    questions = [
        {"role": "user", "content": "Look!"},
        CALL,
        other,
        {"type": "function_call_output", "call_id": "c1", "output": output},
        {"type": "function_call_output", "call_id": "c2", "output": "Nothing."},
    ]
    first = create(client, model=MODEL, input=questions, tools=[function("look")])
    called, shown, nothing, attached = messages(upstream)[1:]
    assert [call["id"] for call in called["tool_calls"]] == ["c1", "c2"]
    assert (shown["tool_call_id"], nothing) == ("c1", {"role": "tool", "tool_call_id": "c2", "content": "Nothing."})
    assert shown["content"].startswith("A cat:\n")
    assert attached == {"role": "user", "content": [image_url(ONE_PIXEL, detail="low")]}
    kept = client.responses.input_items.list(first["id"], order="asc").data[3].to_dict()
    assert kept["output"] == output


def test_uploaded_image_in_tool_output_is_sent_as_data(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    file = client.files.create(file=("pixel.png", png()), purpose="assistants")
    output = {
        "type": "function_call_output",
        "call_id": "c1",
        "output": [{"type": "input_image", "file_id": file.id}],
    }
    create(client, model=MODEL, input=[{"role": "user", "content": "Look!"}, CALL, output], tools=[function("look")])
    [attached] = messages(upstream)[-1]["content"]
    assert base64.b64decode(attached["image_url"]["url"].partition(",")[2]) == png()


# -- models that take other media --------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": URL},
        {"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF", "format": "wav"}},
    ],
    ids=["an image", "audio"],
)
def test_media_that_the_model_does_not_support_is_400(client: openai.OpenAI, upstream: Upstream, part: Any) -> None:
    questions: Any = [{"role": "user", "content": "Look!"}, {"role": "user", "content": [part]}]
    with pytest.raises(openai.BadRequestError, match="does not accept") as raised:
        client.responses.create(model="local/blind", input=questions)
    assert raised.value.param == "input[1].content[0]"
    assert upstream.requests() == []


@pytest.mark.parametrize("way", ["by id", "resent"])
def test_thread_with_an_image_goes_on_with_a_model_that_reads_only_text(
    client: openai.OpenAI, upstream: Upstream, way: str
) -> None:
    upstream.script(NAME, SAID)
    upstream.script("blind", SAID)
    question: Json = {"role": "user", "content": [{"type": "input_image", "image_url": ONE_PIXEL}]}
    first = create(client, model=MODEL, input=[question])
    more = {"role": "user", "content": "Sure?"}
    again: Json = (
        {"input": [more], "previous_response_id": first["id"]}
        if way == "by id"
        else {"input": [question, *first["output"], more], "store": False}
    )
    create(client, model="local/blind", **again)
    assert messages(upstream, "blind")[0] == {"role": "user", "content": "(an image that this model cannot see)"}


def test_image_url_is_fetched_once_where_the_model_server_must_not(
    client: openai.OpenAI, upstream: Upstream, web: Web
) -> None:
    upstream.script("offline", SAID)
    web.answers["/pixel"] = Answer(png(), headers={"content-type": "image/png; x=1"})
    part: Any = {"type": "input_image", "image_url": web.url("/pixel"), "detail": "low"}
    data: Any = {"type": "input_image", "image_url": ONE_PIXEL}
    first = create(client, model="local/offline", input=[{"role": "user", "content": [part, data, part]}])
    fetched = image_url(f"data:image/png;base64,{base64.b64encode(png()).decode()}", detail="low")
    assert messages(upstream, "offline") == [{"role": "user", "content": [fetched, image_url(ONE_PIXEL), fetched]}]
    assert [request.path for request in web.seen] == ["/pixel"]
    item: Any = client.responses.input_items.list(first["id"]).data[0].to_dict()
    assert item["content"][0] == part


@pytest.mark.parametrize(
    ("path", "code"),
    [("/missing", "failed_to_download_image"), ("/page", "unsupported_image_media_type")],
)
def test_image_url_that_cannot_be_fetched_is_400(
    client: openai.OpenAI, upstream: Upstream, web: Web, path: str, code: str
) -> None:
    web.say("/page", "<p>No image.</p>")
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(
            model="local/offline",
            input=[
                {"role": "user", "content": [{"type": "input_image", "image_url": web.url(path), "detail": "auto"}]}
            ],
        )
    assert (raised.value.code, raised.value.param) == (code, "input[0].content[0].image_url")


# -- invalid media ---------------------------------------------------------------------


WRONG: Final[dict[str, tuple[Json, str]]] = {
    "an image of nothing": ({"type": "input_image"}, "input[0].content[0].image_url"),
    "an unknown detail": ({"type": "input_image", "image_url": URL, "detail": "blurry"}, "input[0].content[0].detail"),
    "an image's URL as an object": (
        {"type": "input_image", "image_url": {"url": URL}},
        "input[0].content[0].image_url",
    ),
    "a chat message's part": ({"type": "image_url", "image_url": {"url": URL}}, "input[0].content[0].type"),
    "a file of nothing": ({"type": "input_file", "filename": "a.pdf"}, "input[0].content[0].file_data"),
    "an image in a file of the server's": (
        {"type": "input_image", "image_url": "file:///etc/passwd"},
        "input[0].content[0].image_url",
    ),
    "an image without a host": ({"type": "input_image", "image_url": "http:///x"}, "input[0].content[0].image_url"),
    "audio of broken base64": (
        {"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF?!", "format": "wav"}},
        "input[0].content[0].input_audio.data",
    ),
    "audio of an unknown format": (
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "flac"}},
        "input[0].content[0].input_audio.format",
    ),
}


PNG_URL: Final = "data:image/png;base64,"
NO_IMAGES: Final[dict[str, tuple[str, str]]] = {
    "a text": ("data:text/plain;base64,SGVsbG8=", "but got unsupported MIME type 'text/plain'."),
    "a PDF": ("data:application/pdf;base64,JVBERi0=", "but got unsupported MIME type 'application/pdf'."),
    "no media type": ("data:;base64,SGVsbG8=", "but got unsupported MIME type ''."),
    "nothing": (PNG_URL, "but got empty base64-encoded bytes."),
    "broken base64": (PNG_URL + "iVBORw0KGgo?", "but got an invalid base64-encoded value."),
    "long broken base64": (ONE_PIXEL[:-1] + "A" * 400_001 + "?", "but got an invalid base64-encoded value."),
    "no base64": ("data:image/png,%89PNG", "but got a value without ';base64,' after its MIME type."),
    "HTML called JPEG": (
        f"data:image/jpeg;base64,{base64.b64encode(b'<!doctype html><p>Not found.</p>').decode()}",
        "does not represent a valid image.",
    ),
    "HTML called SVG": (
        f"data:image/svg+xml;base64,{base64.b64encode(b'<html><svg/></html>').decode()}",
        "does not represent a valid image.",
    ),
    "a PNG without its picture": (
        PNG_URL + base64.b64encode(png()[:40]).decode(),
        "does not represent a valid image.",
    ),
    "a PNG of its first bytes": (PNG_URL + "iVBORw0KGgo=", "does not represent a valid image."),
}


@pytest.mark.parametrize("case", NO_IMAGES)
def test_data_url_that_is_no_image_is_400_in_messages_and_call_outputs(
    client: openai.OpenAI, upstream: Upstream, case: str
) -> None:
    url, said = NO_IMAGES[case]
    part = {"type": "input_image", "image_url": url}
    inputs: dict[str, Any] = {
        "input[0].content[0].image_url": [{"role": "user", "content": [part]}],
        "input[1].output[0].image_url": [CALL, {"type": "function_call_output", "call_id": "c1", "output": [part]}],
    }
    for param, items in inputs.items():
        with pytest.raises(openai.BadRequestError) as raised:
            client.responses.create(model=MODEL, input=items)
        assert (raised.value.code, raised.value.param) == ("invalid_value", param)
        assert said in raised.value.message
    assert upstream.requests() == []


@pytest.mark.parametrize("case", WRONG)
def test_invalid_media_part_is_400_with_its_field(client: openai.OpenAI, upstream: Upstream, case: str) -> None:
    part: Any
    part, param = WRONG[case]
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model=MODEL, input=[{"role": "user", "content": [part]}])
    assert (raised.value.type, raised.value.param) == ("invalid_request_error", param)
    assert upstream.requests() == []
