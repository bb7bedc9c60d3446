"""Files in requests: by id, URL and data, as text or unchanged, and their errors."""

import base64
import zlib
from collections.abc import Callable
from typing import Any, Final

import openai
import pytest

from tests.support.openai_client import MODEL, NAME, Json, create, function, messages, stored, stream
from tests.support.pdf import encrypted, pdf
from tests.support.upstream import Upstream, reply, text
from tests.support.web import Answer, Web
from tests.support.wire import Wire

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

SAID: Final = reply(text("I see."))
PDF: Final = pdf("Otters sleep.", "Hand in hand.")
READ: Final = '<file name="otters.pdf">\nOtters sleep.\n\nHand in hand.\n</file>'
CALL: Final[Json] = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


def data_url(content: bytes, kind: str = "application/pdf") -> str:
    """Return the content as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def message_with(*parts: Json) -> Any:
    """Return an input of one message."""
    return [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, *parts]}]


def given(upstream: Upstream) -> str:
    """Return the text after the question that the model received."""
    question, text = messages(upstream)[0]["content"].split("\n\n", 1)
    assert question == "What is it?"
    return str(text)


WAYS: Final[dict[str, Callable[[openai.OpenAI, Web], Json]]] = {
    "an id": lambda client, _: {"file_id": client.files.create(file=("otters.pdf", PDF), purpose="assistants").id},
    "a URL": lambda _, web: {"file_url": web.url("/papers/otters.pdf")},
    "data": lambda _, __: {"filename": "otters.pdf", "file_data": data_url(PDF)},
    "plain base64": lambda _, __: {"filename": "otters.pdf", "file_data": base64.encodebytes(PDF).decode()},
}


@pytest.mark.parametrize("way", WAYS)
def test_pdf_is_sent_as_text_and_stored_unchanged(
    client: openai.OpenAI, upstream: Upstream, web: Web, way: str
) -> None:
    upstream.script(NAME, SAID)
    web.answers["/papers/otters.pdf"] = Answer(PDF, headers={"content-type": "application/octet-stream"})
    part = {"type": "input_file", **WAYS[way](client, web)}
    first = create(client, model=MODEL, input=message_with(part))
    assert given(upstream) == READ
    item: Any = client.responses.input_items.list(first["id"]).data[0].to_dict()
    assert item["content"][1] == part
    create(client, model=MODEL, input="Sure?", previous_response_id=first["id"])
    assert given(upstream) == READ


@pytest.mark.parametrize("way", WAYS)
def test_model_with_file_input_receives_the_file(client: openai.OpenAI, upstream: Upstream, web: Web, way: str) -> None:
    upstream.script("reads-files", SAID)
    web.answers["/papers/otters.pdf"] = Answer(PDF, headers={"content-type": "application/pdf"})
    part = {"type": "input_file", **WAYS[way](client, web)}
    create(client, model="local/reads-files", input=message_with(part))
    question, part_of_file = messages(upstream, "reads-files")[0]["content"]
    assert question == {"type": "text", "text": "What is it?"}
    file = part_of_file["file"]
    assert file["filename"] == "otters.pdf"
    assert file["file_data"] == part.get("file_data", data_url(PDF))


@pytest.mark.parametrize(
    ("name", "content"),
    [("notes.md", "# Otters ä"), ("a.csv", "a,b\n1,2\n"), ("a.html", "<p>Otters</p>"), ("run", "print('x')\n")],
)
def test_text_file_is_sent_as_text(client: openai.OpenAI, upstream: Upstream, name: str, content: str) -> None:
    upstream.script(NAME, SAID)
    file = client.files.create(file=(name, content.encode()), purpose="assistants")
    create(client, model=MODEL, input=message_with({"type": "input_file", "file_id": file.id}))
    assert given(upstream) == f'<file name="{name}">\n{content}\n</file>'


def test_files_in_tool_output_and_developer_message_are_sent_as_text(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    file = {"type": "input_file", "filename": "a.txt", "file_data": data_url(b"Blue.", "text/plain")}
    output: Json = {"type": "function_call_output", "call_id": "c1", "output": [file]}
    developer = {"role": "developer", "content": [file]}
    result: Any = [developer, {"role": "user", "content": "Look!"}, CALL, output]
    create(client, model=MODEL, input=result, tools=[function("look")])
    blue = '<file name="a.txt">\nBlue.\n</file>'
    assert [(each["role"], each["content"]) for each in messages(upstream)] == [
        ("system", blue),
        ("user", "Look!"),
        ("assistant", None),
        ("tool", blue),
    ]


def test_background_response_reads_file_url(client: openai.OpenAI, upstream: Upstream, web: Web) -> None:
    upstream.script(NAME, SAID)
    web.answers["/otters.pdf"] = Answer(PDF)
    part = {"type": "input_file", "file_url": web.url("/otters.pdf")}
    with client.responses.create(model=MODEL, input=message_with(part), background=True, stream=True) as events:
        [*_, last] = events
    assert last.type == "response.completed"
    assert given(upstream) == READ


def test_file_url_gone_before_the_job_runs_fails_the_response(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, web: Web
) -> None:
    answers = iter([Answer(PDF)])
    web.answers["/otters.pdf"] = lambda _: next(answers, Answer(status=404))
    part = {"type": "input_file", "file_url": web.url("/otters.pdf")}
    streamed = stream(client, model=MODEL, input=message_with(part), background=True)
    error = streamed.response["error"]
    assert (error["code"], error["param"]) == ("invalid_prompt", "input")
    assert "404" in error["message"]
    assert stored(client, streamed.response["id"]) == streamed.response
    assert wire.replay(streamed.response["id"]) == streamed.events
    assert upstream.requests() == []


WRONG: Final[dict[str, tuple[Json, str, str]]] = {
    "broken": ({"file_data": data_url(PDF[:200])}, "invalid_file", "a damaged PDF"),
    "encrypted": ({"file_data": data_url(encrypted(PDF, "secret"))}, "invalid_file", "needs a password"),
    "pictures of pages": ({"file_data": data_url(pdf("", ""))}, "invalid_file", "no readable text"),
    "no base64": ({"file_data": "data:application/pdf;base64,?!"}, "invalid_value", "invalid base64"),
    "nothing": ({"file_data": data_url(b"")}, "invalid_value", "empty base64"),
    "HTML called PDF": ({"file_data": data_url(b"<p>Sign in.</p>")}, "invalid_value", "called a PDF"),
    "no host": ({"file_url": "https:///otters.pdf"}, "invalid_value", "name of a host"),
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
def test_invalid_file_is_400_with_its_field(client: openai.OpenAI, upstream: Upstream, case: str, mode: str) -> None:
    source, code, why = WRONG[case]
    [field] = source
    how: Any = {mode: True}
    with pytest.raises(openai.BadRequestError, match=why) as raised:
        client.responses.create(model=MODEL, input=message_with({"type": "input_file", **source}), **how)
    assert (raised.value.code, raised.value.param) == (code, f"input[0].content[1].{field}")
    assert upstream.requests() == []


def test_file_url_not_found_is_400_without_the_query_string(client: openai.OpenAI, web: Web) -> None:
    source: Json = {"type": "input_file", "file_url": web.url("/otters.pdf?token=secret-4711")}
    with pytest.raises(openai.BadRequestError, match="404") as raised:
        client.responses.create(model=MODEL, input=message_with(source))
    assert "secret-4711" not in raised.value.message
