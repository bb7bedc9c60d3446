"""Prompts of the host's Prompts API: variables, echo, versions and errors."""

import base64
from typing import Any, Final

import openai
import pytest

from tests.support.openai_client import MODEL, NAME, Json, create, messages, stored, stream
from tests.support.pdf import pdf
from tests.support.prompts import PromptsClient
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text
from tests.support.wire import Wire, output_text

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

SAID: Final = reply(text("Yes."))
NOBODYS: Final = "pmpt_" + "0" * 48
IMAGE: Final = {"type": "input_image", "image_url": "https://example.org/cat.png", "detail": "auto"}


@pytest.fixture
def prompts(stack: LiveStack) -> PromptsClient:
    """The prompts of the session's stack."""
    return PromptsClient(stack)


def developer(*parts: str | Json) -> Json:
    """Return the developer message of a prompt."""
    content = [{"type": "input_text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"type": "message", "role": "developer", "content": content}


def test_prompt_variables_are_substituted_and_echoed(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, prompts: PromptsClient
) -> None:
    upstream.script(NAME, SAID)
    prompt_id = prompts.write("Speak {{ language }} with {{name}}.", "language", "name")
    variables: Any = {"language": "Greek", "name": {"type": "input_text", "text": "Ada"}}
    streamed = stream(client, model=MODEL, input="Hi", prompt={"id": prompt_id, "variables": variables})
    response = streamed.response
    assert messages(upstream) == [
        {"role": "system", "content": "Speak Greek with Ada."},
        {"role": "user", "content": "Hi"},
    ]
    assert response["instructions"] == [developer("Speak Greek with Ada.")]
    assert response["prompt"] == {"id": prompt_id, "variables": variables, "version": "1"}
    assert stored(client, response["id"]) == response
    assert wire.replay(response["id"]) == streamed.events
    # The prompt is not part of the history.
    assert [item.to_dict()["type"] for item in client.responses.input_items.list(response["id"]).data] == ["message"]
    create(client, model=MODEL, input="And?", previous_response_id=response["id"])
    assert [message["role"] for message in messages(upstream)] == ["user", "assistant", "user"]


def test_prompt_version_and_instructions_are_sent_without_input(
    client: openai.OpenAI, upstream: Upstream, prompts: PromptsClient
) -> None:
    upstream.script(NAME, SAID)
    prompt_id = prompts.write("Say one.")
    prompts.rewrite(prompt_id, 1, "Say two.")
    newest = create(client, model=MODEL, prompt={"id": prompt_id}, instructions="Be kind.")
    assert messages(upstream) == [{"role": "system", "content": "Say two.\n\nBe kind."}]
    assert newest["prompt"] == {"id": prompt_id, "variables": {}, "version": "2"}
    assert newest["instructions"] == [developer("Say two."), developer("Be kind.")]
    assert client.responses.input_items.list(newest["id"]).data == []
    first = create(client, model=MODEL, prompt={"id": prompt_id, "version": "1"}, store=False)
    assert messages(upstream) == [{"role": "system", "content": "Say one."}]
    assert first["prompt"]["version"] == "1"


def test_prompt_with_file_and_image_variables_is_sent(
    client: openai.OpenAI, upstream: Upstream, prompts: PromptsClient
) -> None:
    upstream.script(NAME, SAID)
    prompt_id = prompts.write("Compare {{paper}} with {{picture}}.", "paper", "picture")
    data = f"data:application/pdf;base64,{base64.b64encode(pdf('Otters sleep.')).decode()}"
    paper = {"type": "input_file", "filename": "a.pdf", "file_data": data}
    request: Any = {"id": prompt_id, "variables": {"paper": paper, "picture": IMAGE}}
    response = create(client, model=MODEL, input="Well?", prompt=request, instructions="Be brief.")
    output = 'Compare <file name="a.pdf">\nOtters sleep.\n</file> with (see the attachment in the next message).'
    assert messages(upstream) == [
        {"role": "system", "content": f"{output}\n\nBe brief."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE["image_url"]}}]},
        {"role": "user", "content": "Well?"},
    ]
    assert response["instructions"][0] == developer("Compare ", paper, " with ", IMAGE, ".")
    request["variables"]["paper"] = {**paper, "file_data": data[:200]}
    with pytest.raises(openai.BadRequestError, match="damaged PDF") as raised:
        client.responses.create(model=MODEL, prompt=request)
    assert raised.value.param == "prompt.variables.paper.file_data"


def test_prompt_is_resolved_when_the_response_is_created(
    client: openai.OpenAI, upstream: Upstream, prompts: PromptsClient, wire: Wire
) -> None:
    upstream.script(NAME, SAID)
    prompt_id = prompts.write("Say one to {{name}}.", "name")
    request: Json = {"model": MODEL, "prompt": {"id": prompt_id, "variables": {"name": "Ada"}}}
    with client.responses.create(**request, background=True, stream=True) as events:
        [*_, last] = events
    assert last.type == "response.completed"
    assert messages(upstream) == [{"role": "system", "content": "Say one to Ada."}]
    # A repeated key returns the same response even if the prompt has changed.
    key = {"Idempotency-Key": "prompts-1"}
    first = client.responses.create(**request, extra_headers=key)
    prompts.rewrite(prompt_id, 1, "Say two to {{name}}.", "name")
    again = client.responses.create(**request, extra_headers=key)
    assert again.to_dict() == first.to_dict()
    assert len(upstream.requests(NAME)) == 2
    assert output_text(create(client, **request)) == "Yes."
    assert messages(upstream) == [{"role": "system", "content": "Say two to Ada."}]


WRONG: Final[dict[str, tuple[Json, type[openai.APIStatusError], str, str]]] = {
    "an unknown id": ({"id": NOBODYS}, openai.NotFoundError, "prompt", "prompt_not_found"),
    "an id of another form": ({"id": "pmpt_1:default"}, openai.NotFoundError, "prompt", "prompt_not_found"),
    "an unknown version": ({"version": "9"}, openai.NotFoundError, "prompt", "prompt_not_found"),
    "a missing variable": ({}, openai.BadRequestError, "prompt.variables", "prompt_variable_missing"),
    "an unknown variable": (
        {"variables": {"name": "a", "x": "b"}},
        openai.BadRequestError,
        "prompt.variables",
        "prompt_variable_unknown",
    ),
    "a number": ({"variables": {"name": 3}}, openai.BadRequestError, "prompt.variables.name", "invalid_type"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_prompt_reference_is_refused(
    client: openai.OpenAI, upstream: Upstream, prompts: PromptsClient, case: str
) -> None:
    prompt: Any
    prompt, error, param, code = WRONG[case]
    prompt = {"id": prompts.write("Hello {{name}}", "name"), **prompt}
    with pytest.raises(error) as raised:
        client.responses.create(model=MODEL, input="Hi", prompt=prompt)
    assert (raised.value.param, raised.value.code) == (param, code)
    assert upstream.requests() == []
