"""Requests to a live stack with the openai package, with validation of every byte of the answers.

streamed = stream(client, model=MODEL, input="Hi")     # WireError if a strict client would reject the stream
assert streamed.response["output"][0]["content"][0]["text"] == "Hello"
response = create(client, model=MODEL, input="Hi")     # the same, not streamed
assert sent(upstream) == {...}                         # the only chat request to the model server
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import openai

from tests.support.sse import Event, Frames, read_sse
from tests.support.strict import check_finished, check_stream, validate_response
from tests.support.upstream import Upstream

type Json = dict[str, Any]

NAME: Final = "m"
"""The scripted model for tests that need only one."""
MODEL: Final = f"local/{NAME}"
"""The stack's name for it."""


@dataclass(frozen=True, slots=True)
class ValidatedStream:
    """A validated stream."""

    frames: Frames
    headers: Mapping[str, str]
    response: Json

    @property
    def events(self) -> list[Event]:
        """The data of each frame."""
        return self.frames.events

    @property
    def types(self) -> list[str]:
        """The events' types, without the common prefix."""
        return [name.removeprefix("response.") for name, _ in self.frames]

    def texts(self, kind: str) -> list[str]:
        """Return the deltas of the `response.<kind>.delta` events."""
        return [data["delta"] for name, data in self.frames if name == f"response.{kind}.delta"]


def tool_outputs(upstream: Upstream, model: str = NAME) -> list[Any]:
    """Return the tool outputs in the last chat request."""
    return [message["content"] for message in messages(upstream, model) if message["role"] == "tool"]


def stream(client: openai.OpenAI, *, adapted: Collection[str] = (), **params: Any) -> ValidatedStream:
    """Request a stream with `responses.create(stream=True, **params)` and validate it; `adapted` as in `check_stream`."""
    with client.responses.with_streaming_response.create(stream=True, **params) as answer:
        headers = dict(answer.headers)
        frames = read_sse(answer.iter_bytes())
    return ValidatedStream(frames, headers, check_stream(frames.events, adapted=adapted))


def create(client: openai.OpenAI, **params: Any) -> Json:
    """Create a response with `responses.create(**params)`; return it as JSON."""
    return judged(client.responses.with_raw_response.create(**params).http_response.json())


def stored(client: openai.OpenAI, response_id: str) -> Json:
    """Return a stored response as JSON."""
    return judged(client.responses.with_raw_response.retrieve(response_id).http_response.json())


def judged(response: Json) -> Json:
    """Return the response; WireError if it is not finished or does not match the types."""
    validate_response(response)
    check_finished(response)
    return response


def sent(upstream: Upstream, model: str = NAME) -> Json:
    """Return the body of the only chat request to the model."""
    [request] = upstream.requests(model)
    return request.body


def messages(upstream: Upstream, model: str = NAME) -> list[Json]:
    """Return the messages of the last chat request to the model."""
    found: list[Json] = upstream.requests(model)[-1].body["messages"]
    return found


def function(name: str, *parameters: str, **options: Any) -> Any:
    """Create a function tool whose parameters are all strings, and all required, as in strict schemas."""
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(parameters),
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "parameters": schema, "strict": True, **options}
