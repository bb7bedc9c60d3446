"""The scripts of the upstream model server: one `Reply` per request, made of chat-completion chunks.

    reply(reasoning("Let me ", "see."), text("Hello", " world"), interval=0.01)
    reply(tool_call(0, "call_1", "weather", '{"city":', ' "Oslo"}'))
    reply(text("Hel"), end="drop")
    error(429, "slow down", headers={"retry-after": "3"})

A chunk is a dict in one of these shapes, distinguished by their keys:

- `{"choices": [...]}`, `{"object": ...}`: a whole chat.completion.chunk; missing fields (id, model, ...) are added;
- `{"delta": {...}}` and/or `{"finish_reason": ...}`: one choice, with its logprobs, finish reason, ...;
- `{"raw": "..."}`: these characters unchanged, for malformed frames or comments;
- anything else: the choice's delta.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any, Literal

type Chunk = dict[str, Any]
type End = Literal["done", "no_finish", "drop", "hang", "error_frame"]
type UsageMode = Literal["own_chunk", "every_chunk", "last_chunk", "none"]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one chat request.

    `delay` seconds pass before the status line and `interval` seconds between chunks. With `hold` set, the stream waits
    after that many chunks until it is released; with `withheld`, the status line waits. With `stepped` set, each chunk
    of a stream after that many waits for a step. `end` is how a stream ends:

    - `done`: a finish reason (added if no chunk has one) and `[DONE]`;
    - `no_finish`: `[DONE]` and never a finish reason;
    - `drop`: the TCP connection is closed, mid-body;
    - `hang`: never;
    - `error_frame`: `data: {"error": {...}}` (`body`, if given) and nothing after it.

    `usage` is "counted" (one token per chunk), the usage object itself, or None. `usage_mode` is where it comes: in its
    own chunk (only if the request has `include_usage`, as with OpenAI), in every chunk, in the last one, or nowhere.

    A status other than 2xx is answered with `body` as JSON; so is 200 with a `body` and no error frame.
    """

    chunks: Sequence[Chunk] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    interval: float = 0.0
    hold: int | None = None
    stepped: int | None = None
    withheld: bool = False
    end: End = "done"
    usage: Mapping[str, Any] | Literal["counted"] | None = "counted"
    usage_mode: UsageMode = "own_chunk"
    body: Any = None

    @property
    def plain(self) -> bool:
        """Whether the answer is a single JSON body."""
        return not 200 <= self.status < 300 or (self.body is not None and self.end != "error_frame")

    def as_json(self) -> dict[str, Any]:
        """Return the form sent to the upstream; `Reply(**shape)` is its inverse."""
        return asdict(self)


def reply(*groups: Sequence[Chunk], **options: Any) -> Reply:
    """Return a reply that streams the groups of chunks in order; `options` are `Reply`'s other fields."""
    return Reply(chunks=[chunk for group in groups for chunk in group], **options)


def error(
    status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None, **options: Any
) -> Reply:
    """Return a reply with an error status and OpenAI's error object; `options` are `Reply`'s other fields."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return Reply(status=status, headers=headers or {}, body=body, **options)


def text(*fragments: str) -> list[Chunk]:
    """Return visible text, one chunk per fragment."""
    return [{"content": fragment} for fragment in fragments]


def reasoning(*fragments: str, field: str = "reasoning_content") -> list[Chunk]:
    """Return reasoning, in the field that the server uses: `reasoning_content` or `reasoning`."""
    return [{field: fragment} for fragment in fragments]


def refusal(*fragments: str) -> list[Chunk]:
    """Return a refusal, one chunk per fragment."""
    return [{"refusal": fragment} for fragment in fragments]


def tool_call(index: int, call_id: str | None, name: str | None, *argument_fragments: str) -> list[Chunk]:
    """Return a call: a chunk with its id and name (omitted if None), then one chunk per fragment of its arguments."""
    opening: dict[str, Any] = {"index": index, "type": "function", "function": {"arguments": ""}}
    if call_id is not None:
        opening["id"] = call_id
    if name is not None:
        opening["function"]["name"] = name
    fragments = [{"index": index, "function": {"arguments": fragment}} for fragment in argument_fragments]
    return [{"tool_calls": [call]} for call in [opening, *fragments]]


def interleaved_calls(*calls: Sequence[str]) -> list[Chunk]:
    """Return concurrent calls `(id, name, *argument_fragments)`: their chunks alternate, and their indices differ."""
    streams = [tool_call(index, call_id, name, *fragments) for index, (call_id, name, *fragments) in enumerate(calls)]
    return [chunk for turn in zip_longest(*streams) for chunk in turn if chunk is not None]


def logprobs(*tokens: tuple[str, float], top: Sequence[tuple[str, float]] = ()) -> list[Chunk]:
    """Return visible text, one chunk per `(token, logprob)`; `top` are the alternatives of each token."""
    alternatives = [_logprob(*alternative) for alternative in top]
    return [
        {
            "delta": {"content": token},
            "logprobs": {"content": [{**_logprob(token, value), "top_logprobs": alternatives}], "refusal": None},
        }
        for token, value in tokens
    ]


def finish(reason: str) -> list[Chunk]:
    """Return the chunk with a finish reason."""
    return [{"finish_reason": reason}]


def raw(characters: str) -> list[Chunk]:
    """Return raw characters, which must include the end of the frame."""
    return [{"raw": characters}]


def _logprob(token: str, value: float) -> dict[str, Any]:
    return {"token": token, "logprob": value, "bytes": list(token.encode())}
