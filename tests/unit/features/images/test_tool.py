"""The image generation tool, with an image server on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from threading import Event
from typing import Any, Final

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.features.images.client import ImageServer, ImageServerLimits
from llama_stack_responses.features.images.names import image_name
from llama_stack_responses.features.images.reader import ImageReader
from llama_stack_responses.features.images.tool import ImageServices, ImageSupport, ImageTool
from llama_stack_responses.fetch.address_policy import AddressPolicy
from llama_stack_responses.fetch.fetcher import Fetcher, FetchLimits
from llama_stack_responses.inputs.files import NoFiles
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.requests.unavailable_tools import UnavailableTool
from llama_stack_responses.tools.registry import HostedTool
from llama_stack_responses.tools.toolset import Toolset
from tests.support import image_server
from tests.support.image_server import GIF, JPEG, WEBP, answer, base64_of, data_url, events, png, refused, streamed
from tests.support.inference import Round, finish, text
from tests.support.shares import as_user
from tests.support.web import Answer, Web
from tests.unit.tools.tools_harness import ToolsHarness, calls

Json = dict[str, Any]

ANSWER: Round = [text("Done."), finish()]
TOOL: Final = {"type": "image_generation"}
ALL: Final = ImageSupport(
    options=("background", "input_fidelity", "moderation", "output_format", "partial_images", "quality", "size")
)
QUOTA: Final = Quota("images", 2**26, 2**26)


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with Web() as web:
        yield web


@pytest.fixture
def served(web: Web) -> image_server.ImageServer:
    web.reset()
    return image_server.ImageServer(web)


def services(
    served: image_server.ImageServer,
    support: ImageSupport = ALL,
    owner: Owner = ANONYMOUS,
    quota: Quota = QUOTA,
    **limits: Any,
) -> ImageServices:
    fetcher = Fetcher(AddressPolicy(), FetchLimits(2**20, 5.0, 2))
    server = ImageServer(served.url, "key-4711", limits=ImageServerLimits(**{"seconds": 10.0, **limits}))
    contents = Admission(quota)
    reader = ImageReader(NoFiles(), fetcher, 2**20)
    return ImageServices(server, support, reader.read, lambda: contents.reserve(owner))


def tool_of(used: ImageServices) -> Json:
    return {"of_features": {"image_generation": HostedTool(partial(ImageTool, services=used))}}


def drawing(*arguments: Json) -> Round:
    return calls(*(("generate_image", each) for each in arguments))


def message(*images: str) -> Json:
    parts = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in images]
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look"}, *parts]}


async def turn(used: ImageServices, *rounds: Round, tool: Json | None = None, **more: Any) -> ToolsHarness:
    """Run a turn with these rounds and an answer, and return it."""
    harness = ToolsHarness(tool_of(used), [*rounds, ANSWER], tools=[tool or TOOL], **more)
    await harness.run()
    await used.server.close()
    return harness


def outputs(harness: ToolsHarness) -> list[str]:
    """Return what the model got in its last round for its calls."""
    return [each["content"] for each in harness.inference.requests[-1]["messages"] if each["role"] == "tool"]


def items(harness: ToolsHarness) -> list[Json]:
    return [item for item in harness.history if item["type"] == "image_generation_call"]


async def test_call_generates_an_image(served: image_server.ImageServer) -> None:
    harness = await turn(services(served), drawing({"prompt": " An otter "}))
    [item] = items(harness)
    assert item | {"id": "", "exchange": {}} == {
        "type": "image_generation_call",
        "id": "",
        "status": "completed",
        "result": base64_of(png(1)),
        "revised_prompt": "An otter",
        "action": "generate",
        "background": "auto",
        "output_format": "png",
        "quality": "auto",
        "size": "auto",
        "exchange": {},
    }
    assert outputs(harness) == [
        f"The image was generated, and the user sees it. Its name is '{image_name(item['id'])}'."
    ]
    [call] = served.calls
    assert (call.kind, call.fields) == ("generations", {"prompt": "An otter", "response_format": "b64_json"})
    assert call.headers["authorization"] == "Bearer key-4711"
    about_it = [each["type"].removeprefix("response.") for each in harness.events if each.get("output_index") == 0]
    assert about_it == [
        "output_item.added",
        "image_generation_call.in_progress",
        "image_generation_call.generating",
        "image_generation_call.completed",
        "output_item.done",
    ]
    added = next(each["item"] for each in harness.events if each["type"] == "response.output_item.added")
    assert added == {"type": "image_generation_call", "id": item["id"], "status": "in_progress", "result": None}


async def test_only_options_that_differ_from_defaults_are_sent(served: image_server.ImageServer) -> None:
    tool: Json = {**TOOL, "background": "transparent", "moderation": "low", "quality": "auto", "size": "512x512"}
    tool |= {"model": "gpt-image-2", "input_fidelity": "high", "output_format": "png", "partial_images": 0}
    served.next = [answer(WEBP, quality="high", size="640x480", background="blue")]
    harness = await turn(services(served), drawing({"prompt": "An otter"}), tool=tool)
    assert served.calls[0].fields == {
        "prompt": "An otter",
        "model": "gpt-image-2",
        "background": "transparent",
        "moderation": "low",
        "size": "512x512",
    }
    [item] = items(harness)
    said = {name: item[name] for name in ("background", "output_format", "quality", "size")}
    assert said == {"background": "transparent", "output_format": "webp", "quality": "high", "size": "640x480"}


async def test_partial_images_are_shown_in_order(served: image_server.ImageServer) -> None:
    served.next = [streamed(png(1), png(2), png(3), png(3), quality="low", size="1x1")]
    harness = await turn(services(served), drawing({"prompt": "An otter"}), tool={**TOOL, "partial_images": 2})
    assert served.calls[0].fields == {
        "prompt": "An otter",
        "response_format": "b64_json",
        "stream": True,
        "partial_images": 2,
    }
    shown = [each for each in harness.events if each["type"].endswith("partial_image")]
    assert [(each["partial_image_index"], each["partial_image_b64"]) for each in shown] == [
        (0, base64_of(png(1))),
        (1, base64_of(png(2))),
    ]
    assert [(each["quality"], each["size"], each["output_format"]) for each in shown] == [("low", "1x1", "png")] * 2
    assert items(harness)[0]["result"] == base64_of(png(3))


async def test_edit_sends_the_named_images_and_the_mask(served: image_server.ImageServer) -> None:
    tool = {**TOOL, "input_fidelity": "high", "moderation": "low", "input_image_mask": {"image_url": data_url(png(9))}}
    history = [message(data_url(png(7)), data_url(JPEG)), message(data_url(GIF))]
    asked = {"prompt": "Merge them", "images": ["input-2", "input-1"]}
    harness = await turn(services(served), drawing(asked), tool=tool, history=history)
    [call] = served.calls
    assert (call.kind, call.fields) == (
        "edits",
        {"prompt": "Merge them", "response_format": "b64_json", "input_fidelity": "high"},
    )
    assert call.files == [("image[]", JPEG), ("image[]", png(7)), ("mask", png(9))]
    assert items(harness)[0]["action"] == "edit"


async def test_generated_image_can_be_edited_in_the_same_and_in_a_later_turn(served: image_server.ImageServer) -> None:
    first = await turn(services(served), drawing({"prompt": "An otter"}), input="Draw")
    name = image_name(items(first)[0]["id"])
    second = await turn(
        services(served),
        drawing({"prompt": "With a hat", "images": name}),
        drawing({"prompt": "Both", "images": [name, "image-000000"]}),
        history=first.history,
    )
    assert [(each.kind, each.files) for each in served.calls[1:]] == [("edits", [("image", png(1))])]
    assert (
        f"There is no image named 'image-000000' in this conversation. Its images: '{name}', '" in outputs(second)[-1]
    )
    assert [item["status"] for item in items(second)] == ["completed", "completed", "failed"]


async def test_url_in_the_result_of_an_item_is_not_fetched(served: image_server.ImageServer, web: Web) -> None:
    item: Json = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": web.url("/image")}
    edit = drawing({"prompt": "A hat", "images": [image_name("ig_1")]})
    harness = await turn(services(served), edit, input=[item, message()])
    assert "its data is not valid base64" in outputs(harness)[-1]
    assert web.seen == []


async def test_model_reads_why_an_image_of_a_resent_call_was_blocked(served: image_server.ImageServer) -> None:
    error = {"type": "image_generation_user_error", "code": "moderation_blocked", "message": "It was refused."}
    item: Json = {"type": "image_generation_call", "id": "ig_1", "status": "failed", "result": None, "error": error}
    harness = await turn(services(served), input=[item, message()])
    assert outputs(harness) == ["It was refused."]


async def test_action_edit_edits_the_newest_images(served: image_server.ImageServer) -> None:
    tool = {**TOOL, "action": "edit"}
    history = [message(data_url(png(5))), message(data_url(png(7)), data_url(png(8)))]
    await turn(services(served), drawing({"prompt": "Merge"}), tool=tool, history=history)
    assert [content for _, content in served.calls[0].files] == [png(7), png(8)]
    nothing = await turn(services(served), drawing({"prompt": "Merge"}), tool=tool)
    assert outputs(nothing) == ["There is no image in this conversation that could be edited."]
    assert [item["status"] for item in items(nothing)] == ["failed"]


async def test_mask_goes_with_the_newest_image(served: image_server.ImageServer) -> None:
    tool = {**TOOL, "input_image_mask": {"image_url": data_url(png(9))}}
    await turn(services(served), drawing({"prompt": "A hat"}), tool=tool, history=[message(data_url(png(5)))])
    nothing = await turn(services(served), drawing({"prompt": "A hat"}), tool=tool)
    assert [call.files for call in served.calls] == [[("image", png(5)), ("mask", png(9))]]
    assert outputs(nothing) == ["There is no image in this conversation that could be edited."]


async def test_action_generate_offers_no_edits(served: image_server.ImageServer) -> None:
    harness = await turn(
        services(served), drawing({"prompt": "A", "images": ["input-1"]}), tool={**TOOL, "action": "generate"}
    )
    assert harness.offered()["generate_image"]["parameters"]["properties"].keys() == {"prompt"}
    assert "cannot be edited here" in outputs(harness)[0]
    assert served.calls == []


async def test_model_gets_the_image_if_it_sees_images(served: image_server.ImageServer) -> None:
    seen = ImageSupport(model_sees_images=True)
    harness = await turn(services(served, seen), drawing({"prompt": "An otter"}))
    [attached] = [each for each in harness.inference.requests[-1]["messages"] if isinstance(each["content"], list)]
    assert attached["content"] == [{"type": "image_url", "image_url": {"url": data_url(png(1))}}]


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ({}, "The arguments of this call are not valid"),
        ({"prompt": "  "}, "The arguments of this call are not valid"),
        ({"prompt": "a" * 32_001}, "The prompt is too long"),
        ({"prompt": "a", "images": [f"input-{number}" for number in range(1, 18)]}, "At most 16 images"),
        ({"prompt": "a", "images": ["input-18"]}, "The image 'input-18' has none of the formats"),
        ({"prompt": "a", "images": ["input-19"]}, "The image 'input-19' cannot be read: its data is not valid base64."),
        ({"prompt": "a", "images": ["input-20"]}, "has no public address"),
        (
            {"prompt": "a", "images": ["input-21"]},
            "The image 'input-21' cannot be read: it has more than 1048576 bytes.",
        ),
    ],
)
async def test_unusable_call_fails_before_the_server_is_asked(
    served: image_server.ImageServer, arguments: Json, output: str
) -> None:
    others = [
        "data:image/png;base64,AAAA",
        "data:image/png;base64,A",
        "http://127.0.0.1:9/a.png",
        data_url(png(1, 2**20)),
    ]
    history = [message(*[data_url(png(1))] * 17, *others)]
    harness = await turn(services(served), drawing(arguments), history=history)
    assert output in outputs(harness)[0]
    assert [(item["status"], item["result"]) for item in items(harness)] == [("failed", None)]
    assert served.calls == []


HTML: Final = {"content-type": "text/html"}
FAILURES: Final[dict[str, tuple[Answer, str]]] = {
    "page": (Answer(b"<html>Welcome</html>", headers=HTML), "not in the form of OpenAI's API for images"),
    "nothing": (Answer(b"{}", headers=image_server.JSON), "not in the form of OpenAI's API for images"),
    "no image": (Answer(b'{"data": [{}]}', headers=image_server.JSON), "The image server's answer has no image."),
    "url": (Answer(b'{"data": [{"url": "http://a/"}]}', headers=image_server.JSON), "answered with a URL"),
    "broken base64": (answer("AAA"), "not valid base64"),
    "text": (answer(b"Hello, world"), "no image in one of the formats"),
    "bomb": (answer(png(1, 200_000)), "larger than 100000 bytes"),
    "much more": (
        Answer([b'{"data": "', b"A" * 2**20, b'"}'], headers=image_server.JSON),
        "larger than 100000 bytes",
    ),
    "compressed": (Answer(b"", headers={**image_server.JSON, "content-encoding": "gzip"}), "compressed its answer"),
    "redirect": (Answer(b"", 302, {"location": "http://169.254.169.254/"}), "answered with a redirect"),
    "error": (refused(400, message="Too\nwide"), "refused the call with status 400: Too wide"),
    "detail": (Answer(b'{"detail": "No model"}', 404, image_server.JSON), "refused the call with status 404: No model"),
    "secret": (refused(401, message="Incorrect key: key-4711"), "refused the call with status 401."),
    "broken error": (Answer(b"<html>", 502, HTML), "refused the call with status 502."),
    "stream without image": (events({"type": "x"}, b"[DONE]"), "stream ended without an image"),
    "error in stream": (events({"error": {"message": "No memory"}}), "The image server failed: No memory"),
    "no events": (events(b"{"), "not in the form of OpenAI's API for images"),
    "lines": (Answer([b"\n" * 5_000], headers=image_server.EVENTS), "not in the form of OpenAI's API for images"),
    "cut off": (
        Answer(b"", headers={**image_server.JSON, "content-length": "9"}),
        "could not be reached, or broke off",
    ),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_unusable_answer_fails_the_call_with_one_sentence(
    served: image_server.ImageServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    served.next, expected = [FAILURES[kind][0]], FAILURES[kind][1]
    harness = await turn(services(served, image_bytes=100_000), drawing({"prompt": "An otter"}))
    [output] = outputs(harness)
    assert expected in output
    assert "key-4711" not in output + caplog.text
    assert "the image server failed: " in caplog.text
    [item] = items(harness)
    assert (item["status"], item["result"], "error" in item) == ("failed", None, False)


async def test_blocked_call_has_an_error(served: image_server.ImageServer, caplog: pytest.LogCaptureFixture) -> None:
    served.next = [refused(400, code="moderation_blocked", message="Your request was rejected.")]
    harness = await turn(services(served), drawing({"prompt": "An otter"}))
    [item] = items(harness)
    assert (item["error"]["code"], item["status"]) == ("moderation_blocked", "failed")
    assert "Your request was rejected." in item["error"]["message"]
    assert "the image server failed" not in caplog.text


async def test_silent_server_fails_the_call_in_time(served: image_server.ImageServer) -> None:
    forever = Event()
    served.next = [Answer([b'{"data": [', forever], headers=image_server.JSON)]
    harness = await turn(services(served, seconds=0.2), drawing({"prompt": "An otter"}))
    forever.set()
    assert outputs(harness) == ["The image server did not answer within 0.2 seconds."]


async def test_dead_server_fails_the_call(served: image_server.ImageServer) -> None:
    served.url = "http://127.0.0.1:9/v1"
    harness = await turn(services(served), drawing({"prompt": "An otter"}))
    assert outputs(harness) == ["The image server could not be reached, or broke off (ConnectError)."]


@pytest.mark.parametrize(
    "image", [answer(f"data:image/png;base64,{base64_of(png(1))}"), answer(f" {base64_of(png(1))}\n")]
)
async def test_image_becomes_plain_base64(served: image_server.ImageServer, image: Answer) -> None:
    served.next = [image]
    harness = await turn(services(served), drawing({"prompt": "An otter"}))
    assert items(harness)[0]["result"] == base64_of(png(1))


async def test_images_over_the_quota_of_a_user_fail(served: image_server.ImageServer) -> None:
    served.next = [answer(png(1, 60_000))]
    harness = await turn(services(served, quota=Quota("images", 100_000, 100_000)), drawing({"prompt": "An otter"}))
    assert "too many images" in outputs(harness)[0].lower()


@pytest.mark.parametrize(
    ("support", "tool", "param"),
    [
        (ImageSupport(), {"quality": "high"}, "quality"),
        (ImageSupport(), {"size": "512x512"}, "size"),
        (ImageSupport(), {"partial_images": 1}, "partial_images"),
        (ImageSupport(edits=False), {"action": "edit"}, "action"),
        (ImageSupport(edits=False), {"input_image_mask": {"file_id": "file-1"}}, "input_image_mask"),
        (ImageSupport(options=("input_fidelity",), edits=False), {"input_fidelity": "low"}, "input_fidelity"),
        (ImageSupport(model="flux", models=("sd",)), {"model": "gpt-image-2"}, "model"),
    ],
)
async def test_what_the_server_cannot_do_is_refused(
    served: image_server.ImageServer, support: ImageSupport, tool: Json, param: str
) -> None:
    search = {"type": "tool_search"}
    with pytest.raises(UnavailableTool) as caught:
        ToolsHarness(tool_of(services(served, support)), [], tools=[search, TOOL | tool])
    assert caught.value.param == f"tools[1].{param}"


def test_stack_without_an_image_server_refuses_the_tool() -> None:
    with pytest.raises(UnavailableTool, match="no provider for tools of the type 'image_generation'"):
        Toolset(parse_create({"model": "m", "input": "Hi", "tools": [TOOL]}), {})


@pytest.mark.parametrize(
    "tool",
    [
        {"quality": "auto", "size": "auto", "background": "auto", "moderation": "auto", "action": "auto"},
        {"output_format": "png", "output_compression": 100, "partial_images": 0, "model": "flux"},
        {"action": "generate", "model": "sd"},
    ],
)
async def test_what_needs_nothing_of_the_server_is_accepted(served: image_server.ImageServer, tool: Json) -> None:
    support = ImageSupport(model="flux", models=("sd",), edits=False)
    await turn(services(served, support), drawing({"prompt": "An otter"}), tool=TOOL | tool)
    assert served.calls[0].fields.keys() == {"prompt", "model", "response_format"}


async def test_stream_of_images_counts_as_one(served: image_server.ImageServer) -> None:
    served.next = [streamed(*[png(number, 60_000) for number in range(4)])]
    quota = Quota("images", 500_000, 500_000)
    used = services(served, quota=quota, image_bytes=90_000)
    harness = await turn(used, drawing({"prompt": "An otter"}), tool={**TOOL, "partial_images": 3})
    assert [item["status"] for item in items(harness)] == ["completed"]


async def test_users_take_turns(served: image_server.ImageServer) -> None:
    """With one slot, an image of the second user does not wait for all of the first user."""
    first, second = Owner("first"), Owner("second")
    ended: list[str] = []
    slots = ImageServerLimits(concurrency=1, concurrency_per_user=1, waiting_per_user=2)
    server = ImageServer(served.url, limits=slots)
    one, two = services(served, owner=first), services(served, owner=second)

    async def draw(used: ImageServices, owner: Owner) -> None:
        shared = ImageServices(server, used.support, used.read, used.reserve)
        harness = ToolsHarness(tool_of(shared), [drawing({"prompt": owner.principal}), ANSWER], tools=[TOOL])
        await harness.run()
        ended.append(f"{owner.principal}: {items(harness)[0]['status']}")

    begun = Event()
    served.next = [Answer([begun, answer(png(1)).body], headers=image_server.JSON)]  # type: ignore[list-item]
    waiting = [as_user(each[1].identity, draw(*each)) for each in [(one, first)] * 4 + [(two, second)]]
    async with asyncio.timeout(60):
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        begun.set()
        await asyncio.gather(*waiting)
    await server.close()
    assert sorted(ended) == [*["first: completed"] * 3, "first: failed", "second: completed"]
    assert [call.fields["prompt"] for call in served.calls] == ["first", "first", "second", "first"]


async def test_partial_images_are_not_requested_without_a_stream(served: image_server.ImageServer) -> None:
    tool = {**TOOL, "partial_images": 3}
    await turn(services(served), drawing({"prompt": "An otter"}), tool=tool, stream=False)
    assert "stream" not in served.calls[0].fields
