"""Files in requests: by id, URL and data, as text or as they are, and what is wrong with them."""

import base64
import zlib
from collections.abc import Callable
from typing import Any, Final

import openai
import pytest

from tests.support.asking import MODEL, NAME, Json, create, function, messages, stored, stream
from tests.support.pdf import encrypted, pdf
from tests.support.upstream import Upstream, reply, text
from tests.support.web import Answer, Web
from tests.support.wire import Wire

pytestmark = pytest.mark.live

SAID: Final = reply(text("I see."))
PDF: Final = pdf("Otters sleep.", "Hand in hand.")
READ: Final = '<file name="otters.pdf">\nOtters sleep.\n\nHand in hand.\n</file>'
CALL: Final[Json] = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


def data_url(content: bytes, kind: str = "application/pdf") -> str:
    """The content as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def asked(*parts: Json) -> Any:
    """An input of one message."""
    return [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, *parts]}]


def given(upstream: Upstream, model: str = NAME) -> Json:
    """What the model was sent behind the question."""
    question, file = messages(upstream, model)[0]["content"]
    assert question == {"type": "text", "text": "What is it?"}
    found: Json = file
    return found


WAYS: Final[dict[str, Callable[[openai.OpenAI, Web], Json]]] = {
    "an id": lambda client, _: {"file_id": client.files.create(file=("otters.pdf", PDF), purpose="assistants").id},
    "a URL": lambda _, web: {"file_url": web.url("/papers/otters.pdf")},
    "data": lambda _, __: {"filename": "otters.pdf", "file_data": data_url(PDF)},
    "plain base64": lambda _, __: {"filename": "otters.pdf", "file_data": base64.encodebytes(PDF).decode()},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_pdf_becomes_text_and_stays_what_it_was(
    client: openai.OpenAI, upstream: Upstream, web: Web, way: str
) -> None:
    upstream.script(NAME, SAID)
    web.answers["/papers/otters.pdf"] = Answer(PDF, headers={"content-type": "application/octet-stream"})
    part = {"type": "input_file", **WAYS[way](client, web)}
    first = create(client, model=MODEL, input=asked(part))
    assert given(upstream) == {"type": "text", "text": READ}
    item: Any = client.responses.input_items.list(first["id"]).data[0].to_dict()
    assert item["content"][1] == part
    create(client, model=MODEL, input="Sure?", previous_response_id=first["id"])
    assert given(upstream) == {"type": "text", "text": READ}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_takes_files_gets_the_file(client: openai.OpenAI, upstream: Upstream, web: Web, way: str) -> None:
    upstream.script("reads-files", SAID)
    web.answers["/papers/otters.pdf"] = Answer(PDF, headers={"content-type": "application/pdf"})
    part = {"type": "input_file", **WAYS[way](client, web)}
    create(client, model="local/reads-files", input=asked(part))
    file = given(upstream, "reads-files")["file"]
    assert file["filename"] == "otters.pdf"
    assert file["file_data"] == part.get("file_data", data_url(PDF))


@pytest.mark.parametrize(
    ("name", "content"),
    [("notes.md", "# Otters ä"), ("a.csv", "a,b\n1,2\n"), ("a.html", "<p>Otters</p>"), ("run", "print('x')\n")],
)
def test_a_file_of_text(client: openai.OpenAI, upstream: Upstream, name: str, content: str) -> None:
    upstream.script(NAME, SAID)
    file = client.files.create(file=(name, content.encode()), purpose="assistants")
    create(client, model=MODEL, input=asked({"type": "input_file", "file_id": file.id}))
    assert given(upstream) == {"type": "text", "text": f'<file name="{name}">\n{content}\n</file>'}


def test_a_file_in_a_tools_output_and_one_of_a_developer(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    file = {"type": "input_file", "filename": "a.txt", "file_data": data_url(b"Blue.", "text/plain")}
    output: Json = {"type": "function_call_output", "call_id": "c1", "output": [file]}
    developer = {"role": "developer", "content": [file]}
    told: Any = [developer, {"role": "user", "content": "Look!"}, CALL, output]
    create(client, model=MODEL, input=told, tools=[function("look")])
    blue = '<file name="a.txt">\nBlue.\n</file>'
    assert [(each["role"], each["content"]) for each in messages(upstream)] == [
        ("system", blue),
        ("user", "Look!"),
        ("assistant", None),
        ("tool", blue),
    ]


def test_a_file_in_the_background(client: openai.OpenAI, upstream: Upstream, web: Web) -> None:
    upstream.script(NAME, SAID)
    web.answers["/otters.pdf"] = Answer(PDF)
    part = {"type": "input_file", "file_url": web.url("/otters.pdf")}
    with client.responses.create(model=MODEL, input=asked(part), background=True, stream=True) as events:
        [*_, last] = events
    assert last.type == "response.completed"
    assert given(upstream) == {"type": "text", "text": READ}


def test_a_file_that_is_gone_when_it_is_needed_fails_in_the_background(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, web: Web
) -> None:
    answers = iter([Answer(PDF)])
    web.answers["/otters.pdf"] = lambda _: next(answers, Answer(status=404))
    part = {"type": "input_file", "file_url": web.url("/otters.pdf")}
    streamed = stream(client, model=MODEL, input=asked(part), background=True)
    error = streamed.response["error"]
    assert (error["code"], error["param"]) == ("invalid_prompt", "input")
    assert "404" in error["message"]
    assert stored(client, streamed.response["id"]) == streamed.response
    assert wire.replay(streamed.response["id"]) == streamed.events
    assert upstream.requests() == []


WRONG: Final[dict[str, tuple[Json, str, str]]] = {
    "broken": ({"file_data": data_url(PDF[:200])}, "invalid_file", "a broken PDF"),
    "encrypted": ({"file_data": data_url(encrypted(PDF, "secret"))}, "invalid_file", "needs a password"),
    "pictures of pages": ({"file_data": data_url(pdf("", ""))}, "invalid_file", "no text that can be read"),
    "no base64": ({"file_data": "data:application/pdf;base64,?!"}, "invalid_file", "not in base64"),
    "a picture": ({"file_data": data_url(b"\x89PNG\r\n\x1a\n\0\0", "image/png")}, "invalid_file", "neither text nor"),
    "no charset": (
        {"file_data": data_url(zlib.compress(b"A"), "image/x;charset=zlib_codec")},
        "invalid_file",
        "neither text nor",
    ),
    "a file of the server's": ({"file_url": "file:///etc/passwd"}, "invalid_value", "begins with https"),
    "the cloud's secrets": ({"file_url": "http://169.254.169.254/x"}, "failed_to_download_file", "no public address"),
}


@pytest.mark.parametrize("mode", ["stream", "background"])
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_file(client: openai.OpenAI, upstream: Upstream, case: str, mode: str) -> None:
    source, code, why = WRONG[case]
    [field] = source
    how: Any = {mode: True}
    with pytest.raises(openai.BadRequestError, match=why) as raised:
        client.responses.create(model=MODEL, input=asked({"type": "input_file", **source}), **how)
    assert (raised.value.code, raised.value.param) == (code, f"input[0].content[1].{field}")
    assert upstream.requests() == []


def test_a_file_that_is_not_at_its_url(client: openai.OpenAI, web: Web) -> None:
    source: Json = {"type": "input_file", "file_url": web.url("/otters.pdf?token=secret-4711")}
    with pytest.raises(openai.BadRequestError, match="404") as raised:
        client.responses.create(model=MODEL, input=asked(source))
    assert "secret-4711" not in raised.value.message
