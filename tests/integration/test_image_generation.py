"""Image generation with an image server, over HTTP."""

import base64
import json
from threading import Event
from typing import Any, Final

import openai
import pytest

from llama_stack_responses.features.images.names import image_name
from tests.support.image_server import (
    JSON,
    WEBP,
    ImageServer,
    answer,
    as_replayed,
    base64_of,
    data_url,
    png,
    refused,
    streamed,
)
from tests.support.loop_holds import LoopHolds
from tests.support.openai_client import MODEL, NAME, create, messages, sent, stored, stream, tool_outputs
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, reply, text, tool_call
from tests.support.waiting import wait_until
from tests.support.web import Answer, Web
from tests.support.wire import Json, Wire, output_text

pytestmark = pytest.mark.live

TOOL: Final[Any] = {"type": "image_generation"}
DONE: Final = reply(text("Done."))
PROGRESS: Final = [
    "output_item.added",
    "image_generation_call.in_progress",
    "image_generation_call.generating",
    "image_generation_call.completed",
    "output_item.done",
]


@pytest.fixture
def images(web: Web) -> ImageServer:
    return ImageServer(web)


def drawing(prompt: str, *names: str) -> Any:
    """Return a reply that generates an image, or edits images with these names."""
    arguments = {"prompt": prompt, **({"images": names} if names else {})}
    return reply(tool_call(0, "call_a", "generate_image", json.dumps(arguments)))


def drawings(response: Json) -> list[Json]:
    """Return the image generation calls of a response."""
    return [item for item in response["output"] if item["type"] == "image_generation_call"]


def drawn(client: openai.OpenAI, upstream: Upstream, **params: Any) -> tuple[Json, Json]:
    """Return a response with one image, and its call."""
    upstream.script(NAME, [drawing("An otter"), DONE])
    response = create(client, model=MODEL, input="Draw", tools=[TOOL], **params)
    return response, drawings(response)[0]


def edited(client: openai.OpenAI, upstream: Upstream, images: ImageServer, name: str, **params: Any) -> None:
    """Check that a response edits the image that is called `name`, the first that the server made."""
    upstream.script(NAME, [drawing("With a hat", name), DONE])
    response = create(client, model=MODEL, tools=[TOOL], **params)
    assert (images.calls[-1].kind, images.calls[-1].files) == ("edits", [("image", png(1))])
    assert [(item["status"], item["action"]) for item in drawings(response)] == [("completed", "edit")]
    assert output_text(response) == "Done."


def test_image_is_streamed_stored_and_replayed(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, images: ImageServer
) -> None:
    details = {"image_tokens": 0, "text_tokens": 7}
    usage = {"input_tokens": 7, "input_tokens_details": details, "output_tokens": 515, "total_tokens": 522}
    images.next = [answer(png(1), quality="high", background="opaque", usage=usage)]
    upstream.script(NAME, [drawing("An otter"), DONE])
    tool = {**TOOL, "size": "1024x1024", "quality": "high"}
    answered = stream(client, model=MODEL, input="Draw", tools=[tool])
    [item] = drawings(answered.response)
    assert base64.b64decode(item["result"]) == png(1)
    settings = {name: item[name] for name in ("background", "output_format", "quality", "size", "revised_prompt")}
    assert settings == {
        "background": "opaque",
        "output_format": "png",
        "quality": "high",
        "size": "1024x1024",
        "revised_prompt": "An otter",
    }
    assert [each["response"]["tool_usage"] for each in answered.events[:2]] == [None, None]
    images_used = {**usage, "output_tokens_details": {"image_tokens": 515, "text_tokens": 0}}
    assert answered.response["tool_usage"] == {"image_gen": images_used, "web_search": {"num_requests": 0}}
    about_it = [event["type"] for event in answered.events if event.get("output_index") == 0]
    assert about_it == [f"response.{name}" for name in PROGRESS]
    assert stored(client, answered.response["id"]) == answered.response
    assert wire.replay(answered.response["id"]) == answered.events
    name = image_name(item["id"])
    assert tool_outputs(upstream) == [f"The image was generated, and the user sees it. Its name is '{name}'."]
    [call] = images.calls
    asked = {"prompt": "An otter", "size": "1024x1024", "quality": "high", "response_format": "b64_json"}
    assert (call.kind, call.fields, call.headers["authorization"]) == ("generations", asked, "Bearer image-key-4711")


def test_sdk_reads_the_image_and_its_partial_images(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, images: ImageServer
) -> None:
    images.next = [streamed(png(1), png(2), png(3))]
    upstream.script(NAME, [drawing("An otter"), DONE])
    tool: Any = {**TOOL, "partial_images": 2}
    with client.responses.stream(model=MODEL, input="Draw", tools=[tool]) as events:
        partial = [each for each in events if each.type == "response.image_generation_call.partial_image"]
        final = events.get_final_response()
    assert [(each.partial_image_index, each.partial_image_b64) for each in partial] == [
        (0, base64_of(png(1))),
        (1, base64_of(png(2))),
    ]
    assert final.output[0].type == "image_generation_call"
    assert final.output[0].result == base64_of(png(3))
    assert images.calls[0].fields["stream"] is True


def test_replay_has_the_final_image_in_place_of_partial_ones(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, images: ImageServer
) -> None:
    images.next = [streamed(png(1), png(2))]
    upstream.script(NAME, [drawing("An otter"), DONE])
    answered = stream(client, model=MODEL, input="Draw", tools=[{**TOOL, "partial_images": 1}])
    assert "image_generation_call.partial_image" in answered.types
    assert wire.replay(answered.response["id"]) == as_replayed(answered.events)


def test_background_response_streams_an_image(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, images: ImageServer
) -> None:
    images.next = [streamed(png(1), png(2))]
    upstream.script(NAME, [drawing("An otter"), DONE])
    tool = {**TOOL, "partial_images": 1}
    answered = stream(client, model=MODEL, input="Draw", tools=[tool], background=True)
    assert [item["result"] for item in drawings(answered.response)] == [base64_of(png(2))]
    assert answered.types.count("image_generation_call.partial_image") == 1
    assert stored(client, answered.response["id"]) == answered.response


def test_next_response_edits_the_image(client: openai.OpenAI, upstream: Upstream, images: ImageServer) -> None:
    first, item = drawn(client, upstream)
    edited(client, upstream, images, image_name(item["id"]), input="A hat", previous_response_id=first["id"])


def test_conversation_edits_the_image(client: openai.OpenAI, upstream: Upstream, images: ImageServer) -> None:
    conversation = client.conversations.create().id
    _, item = drawn(client, upstream, conversation=conversation)
    edited(client, upstream, images, image_name(item["id"]), input="A hat", conversation=conversation)


def test_resent_call_with_only_its_id_has_the_stored_image(
    client: openai.OpenAI, upstream: Upstream, images: ImageServer
) -> None:
    _, item = drawn(client, upstream)
    resent = [{"role": "user", "content": "A hat"}, {"type": "image_generation_call", "id": item["id"]}]
    edited(client, upstream, images, image_name(item["id"]), input=resent)
    assert "An otter" in str(messages(upstream))


def test_resent_call_of_a_response_that_was_not_stored_brings_its_image(
    client: openai.OpenAI, upstream: Upstream, images: ImageServer
) -> None:
    first, item = drawn(client, upstream, store=False)
    resent = [{"role": "user", "content": "Draw"}, *first["output"], {"role": "user", "content": "A hat"}]
    edited(client, upstream, images, image_name(item["id"]), input=resent, store=False)
    roles = [message["role"] for message in messages(upstream)]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool"]
    assert base64_of(png(1)) not in str(messages(upstream))


def test_unknown_id_of_a_resent_call_is_404(client: openai.OpenAI, upstream: Upstream, images: ImageServer) -> None:
    resent: Any = [{"type": "image_generation_call", "id": "ig_unknown"}]
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=MODEL, input=resent, tools=[TOOL])


def test_images_and_masks_of_the_user_are_sent_to_the_server(
    client: openai.OpenAI, upstream: Upstream, images: ImageServer, web: Web
) -> None:
    web.answers["/photo.webp"] = Answer(WEBP, headers={"content-type": "image/webp"})
    photo = client.files.create(file=("photo.png", png(7)), purpose="assistants")
    mask = client.files.create(file=("mask.png", png(8)), purpose="assistants")
    upstream.script(NAME, [drawing("Merge", "input-1", "input-2", "input-3"), DONE])
    parts = [
        {"type": "input_image", "file_id": photo.id, "detail": "auto"},
        {"type": "input_image", "image_url": data_url(png(9)), "detail": "auto"},
        {"type": "input_image", "image_url": web.url("/photo.webp"), "detail": "auto"},
    ]
    tool = {**TOOL, "input_image_mask": {"file_id": mask.id}, "input_fidelity": "high"}
    response = create(client, model=MODEL, input=[{"role": "user", "content": parts}], tools=[tool])
    [call] = images.calls
    assert call.files == [("image[]", png(7)), ("image[]", png(9)), ("image[]", WEBP), ("mask", png(8))]
    assert call.fields == {"prompt": "Merge", "input_fidelity": "high", "response_format": "b64_json"}
    assert drawings(response)[0]["action"] == "edit"


FAILURES: Final = {
    "page": Answer(b"<html>", headers={"content-type": "text/html"}),
    "redirect": Answer(b"", 307, {"location": "http://169.254.169.254/latest"}),
    "refusal": refused(401, message="Incorrect API key provided: image-key-4711"),
    "endless": Answer([b'{"data": [{"b64_json": "', *[b"A" * 2**20] * 40], headers=JSON),
    "not base64": answer("A-A"),
}


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.usefixtures("calm")
def test_failed_call_does_not_fail_the_response(
    client: openai.OpenAI, stack: LiveStack, upstream: Upstream, images: ImageServer, kind: str
) -> None:
    images.next = [FAILURES[kind]]
    upstream.script(NAME, [drawing("An otter"), reply(text("I cannot."))])
    answered = stream(client, model=MODEL, input="Draw", tools=[TOOL])
    [item] = drawings(answered.response)
    assert (item["status"], item["result"], item["revised_prompt"]) == ("failed", None, "An otter")
    assert (answered.response["status"], output_text(answered.response)) == ("completed", "I cannot.")
    assert "image_generation_call.completed" not in answered.types
    assert "image server" in tool_outputs(upstream)[0]
    assert "image-key-4711" not in tool_outputs(upstream)[0] + stack.log.read_text(errors="replace")


def test_blocked_call_has_its_error(client: openai.OpenAI, upstream: Upstream, images: ImageServer) -> None:
    images.next = [refused(400, code="moderation_blocked", message="Rejected by the safety system.")]
    _, item = drawn(client, upstream)
    assert item["error"]["code"] == "moderation_blocked"


def test_cancel_ends_a_call(client: openai.OpenAI, wire: Wire, upstream: Upstream, images: ImageServer) -> None:
    forever = Event()
    images.next = [Answer([b"{", forever], headers=JSON)]
    upstream.script(NAME, [drawing("An otter"), DONE])
    response = client.responses.create(model=MODEL, input="Draw", tools=[TOOL], background=True)
    wait_until(lambda: bool(images.calls))
    client.responses.cancel(response.id)
    wait_until(lambda: wire.retrieve(response.id)["status"] not in ("queued", "in_progress"))
    cancelled = wire.retrieve(response.id)
    forever.set()
    assert (cancelled["status"], [item["status"] for item in drawings(cancelled)]) == ("cancelled", ["failed"])
    assert wire.replay(response.id)[-1]["response"] == cancelled
    create(client, model=MODEL, input="Go on.", previous_response_id=response.id)
    [call] = messages(upstream)[1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"prompt": "An otter"}


def test_tool_choice_requires_one_image(client: openai.OpenAI, upstream: Upstream, images: ImageServer) -> None:
    upstream.script(NAME, [drawing("An otter"), DONE])
    create(client, model=MODEL, input="Draw", tools=[TOOL], tool_choice={"type": "image_generation"})
    first, second = (request.body for request in upstream.requests(NAME))
    assert (first["tool_choice"], second["tool_choice"]) == ("required", "auto")


def test_allowed_tools_and_max_tool_calls_hold_for_images(
    client: openai.OpenAI, upstream: Upstream, images: ImageServer
) -> None:
    upstream.script(NAME, [drawing("One"), drawing("Two"), DONE])
    choice: Any = {"type": "allowed_tools", "mode": "auto", "tools": [TOOL]}
    response = create(client, model=MODEL, input="Draw", tools=[TOOL], tool_choice=choice, max_tool_calls=1)
    assert len(drawings(response)) == len(images.calls) == 1
    assert "No more tools may be called" in tool_outputs(upstream)[-1]


def test_invalid_declaration_is_400(client: openai.OpenAI, upstream: Upstream) -> None:
    tool: Any = {**TOOL, "size": "large"}
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model=MODEL, input="Draw", tools=[tool])
    assert (raised.value.param, raised.value.code) == ("tools[0].size", "invalid_value")


def test_large_images_do_not_block_other_requests(
    client: openai.OpenAI, wire: Wire, upstream: Upstream, images: ImageServer, loop_holds: LoopHolds
) -> None:
    large = [png(number, 8 * 2**20) for number in range(2)]
    images.next = [streamed(*large)]
    upstream.script(NAME, [drawing("An otter"), DONE])
    tool = {**TOOL, "partial_images": 1}
    # Not `stream`, which takes quadratic time for large events.
    answered = wire.post({"model": MODEL, "input": "Draw", "stream": True, "tools": [tool]})
    assert answered.text.count(base64_of(large[0])) == 1
    assert answered.text.count(base64_of(large[1])) == 2  # in the item and in the response
    response_id = json.loads(answered.text.splitlines()[1].removeprefix("data: "))["response"]["id"]
    [item] = drawings(wire.retrieve(response_id))
    upstream.script(NAME, [drawing("Bigger", image_name(item["id"])), DONE])
    create(client, model=MODEL, input="Bigger", tools=[TOOL], previous_response_id=response_id)
    assert images.calls[1].files == [("image", large[1])]
    loop_holds.assert_none_above(0.1)


def test_page_shows_the_image(client: openai.OpenAI, wire: Wire, upstream: Upstream, images: ImageServer) -> None:
    response, _ = drawn(client, upstream)
    view = wire.http.get(f"/ui/responses/{response['id']}").json()
    [call] = [each for each in view["items"] if each["type"] == "image_generation_call"]
    assert [result["url"] for result in call["results"]] == [data_url(png(1))]
    assert (call["name"], call["arguments"]["text"]) == ("image_generation", "An otter")


def test_chat_request_offers_the_function(client: openai.OpenAI, upstream: Upstream, images: ImageServer) -> None:
    upstream.script(NAME, DONE)
    create(client, model=MODEL, input="Hi", tools=[TOOL])
    [tool] = sent(upstream)["tools"]
    assert tool["function"]["name"] == "generate_image"
    assert tool["function"]["parameters"]["properties"].keys() == {"prompt", "images"}
