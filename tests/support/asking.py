"""Asks a live stack through the openai package and judges every byte of its answers.

streamed = stream(client, model=MODEL, input="Hi")     # WireError unless a strict client would be content
assert streamed.response["output"][0]["content"][0]["text"] == "Hello"
response = create(client, model=MODEL, input="Hi")     # the same, not streamed
assert sent(upstream) == {...}                         # the one chat request that this made
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import openai

from tests.support.sse import Event, Frames, read_sse
from tests.support.strict import check_finished, check_stream, validate_response
from tests.support.upstream import Upstream

type Json = dict[str, Any]

NAME: Final = "m"
"""The scripted model of the tests that need only one."""
MODEL: Final = f"local/{NAME}"
"""The stack's name for it."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A stream that passed the judges."""

    frames: Frames
    headers: Mapping[str, str]
    response: Json

    @property
    def events(self) -> list[Event]:
        """The data of each frame."""
        return self.frames.events

    @property
    def types(self) -> list[str]:
        """The events' types, without what they all begin with."""
        return [name.removeprefix("response.") for name, _ in self.frames]

    def texts(self, kind: str) -> list[str]:
        """The deltas of the `response.<kind>.delta` events."""
        return [data["delta"] for name, data in self.frames if name == f"response.{kind}.delta"]


def stream(client: openai.OpenAI, **params: Any) -> Streamed:
    """The stream that the openai package gets for `responses.create(stream=True, **params)`."""
    with client.responses.with_streaming_response.create(stream=True, **params) as answer:
        headers = dict(answer.headers)
        frames = read_sse(answer.iter_bytes())
    return Streamed(frames, headers, check_stream(frames.events))


def create(client: openai.OpenAI, **params: Any) -> Json:
    """The response that the openai package gets for `responses.create(**params)`, as JSON."""
    return judged(client.responses.with_raw_response.create(**params).http_response.json())


def stored(client: openai.OpenAI, response_id: str) -> Json:
    """A stored response, as JSON."""
    return judged(client.responses.with_raw_response.retrieve(response_id).http_response.json())


def judged(response: Json) -> Json:
    """The response itself; WireError unless it is a finished one and what the types say."""
    validate_response(response)
    check_finished(response)
    return response


def sent(upstream: Upstream, model: str = NAME) -> Json:
    """The body of the one chat request that the model got."""
    [request] = upstream.requests(model)
    return request.body


def messages(upstream: Upstream, model: str = NAME) -> list[Json]:
    """The messages of the last chat request that the model got."""
    found: list[Json] = upstream.requests(model)[-1].body["messages"]
    return found


def function(name: str, *parameters: str, **options: Any) -> Any:
    """A function tool whose parameters are strings; strict schemas want all of them."""
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(parameters),
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "parameters": schema, "strict": True, **options}
