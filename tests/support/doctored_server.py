"""A model server over HTTP that does all it is asked, except for what a test lets it refuse or ignore.

    async with serving(DoctoredServer(refuses=[unknown("user")], ignores={"limit"})) as running:
        ...  # running.url

A refusal gets a chat request and returns the words with which the server refuses it, or None.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any, Final

import orjson

from tests.support.chat_templates import CHECKS
from tests.support.http_server import DONE, END, OPENING, HttpServer, Peer, event, serving, whole

type Json = dict[str, Any]
type Refuses = Callable[[Json], str | None]

CONTEXT: Final = 4096
"""Words that a prompt has at most."""
WORDS: Final = "one two three four five six seven eight nine ten"


def unknown(*names: str) -> Refuses:
    """Refuse requests with one of these parameters, the first that is there."""

    def refuses(chat: Json) -> str | None:
        return next((f"Unsupported parameter: '{name}'." for name in names if name in chat), None)

    return refuses


def template(dialect: str) -> Refuses:
    """Refuse messages as the chat template does that this dialect answers."""
    return lambda chat: CHECKS[dialect](chat["messages"])


def required_call(chat: Json) -> str | None:
    """Refuse a required call."""
    return "tool_choice 'required' is not supported." if chat.get("tool_choice") not in (None, "auto", "none") else None


def formats(*kinds: str) -> Refuses:
    """Refuse these formats of the answer."""

    def refuses(chat: Json) -> str | None:
        kind = (chat.get("response_format") or {}).get("type")
        return f"response_format '{kind}' is not supported." if kind in kinds else None

    return refuses


def efforts(*known: str) -> Refuses:
    """Refuse all efforts except these."""

    def refuses(chat: Json) -> str | None:
        effort = chat.get("reasoning_effort")
        listed = ", ".join(f"'{each}'" for each in known)
        return (
            None if effort in (None, *known) else f"Invalid reasoning_effort '{effort}': supported values are {listed}."
        )

    return refuses


def schemas(chat: Json) -> str | None:
    """Refuse schemas of functions with references."""
    return "failed to parse grammar: $ref is not supported" if "$ref" in json.dumps(chat.get("tools")) else None


def strict(chat: Json) -> str | None:
    """Refuse strict functions."""
    if any("strict" in tool["function"] for tool in chat.get("tools") or ()):
        return "tools[0].function.strict: Extra inputs are not permitted"
    return None


@dataclass
class DoctoredServer:
    """The handler of its connections.

    Attributes:
        refuses: what it refuses.
        ignores: what it ignores: `call`, `format`, `limit`, `usage`, `finish`, `done`, `cache`, `logprobs`, `context`;
            with `positions`, a longer context is read to its end.
        key: the key that it demands; empty for none.
        models: the names of its models.
        thinks: the member of messages with its reasoning; `tags` for tags in the text; empty for none.
        chats: the chat requests, each with the words of the refusal.
    """

    refuses: Sequence[Refuses] = ()
    ignores: frozenset[str] | set[str] = frozenset()
    key: str = ""
    models: Sequence[str] = ("m",)
    thinks: str = ""
    chats: list[tuple[Json, str | None]] = field(default_factory=list)

    async def __call__(self, peer: Peer) -> None:
        """Answer one request, and close the connection."""
        request = await peer.request()
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            said = f"Incorrect API key provided: {request.headers.get('authorization')}"
            await peer.send(whole(401, {"error": {"message": said}}))
        elif request.line.startswith("GET"):
            listed = [{"id": name, "object": "model"} for name in self.models]
            await peer.send(whole(200, {"object": "list", "data": listed}))
        else:
            await self._chat(peer, orjson.loads(request.body))

    async def _chat(self, peer: Peer, chat: Json) -> None:
        words = next(filter(None, (refuses(chat) for refuses in self.refuses)), None)
        tokens = sum(len(str(message.get("content")).split()) for message in chat["messages"])
        if words is None and tokens > CONTEXT and not self.ignores & {"context", "positions"}:
            words = f"This model's maximum context length is {CONTEXT} tokens, and the request has {tokens}."
        self.chats.append((chat, words))
        if words:
            await peer.send(whole(400, {"error": {"message": words, "type": "invalid_request_error"}}))
            return
        delta, reason = self._answer(chat)
        usage = None if "usage" in self.ignores else self._usage(chat, tokens, delta)
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": chat["model"]}
        finish = None if "finish" in self.ignores else reason
        choice: Json = {"index": 0, "delta": delta, "finish_reason": None}
        if chat.get("logprobs") and "logprobs" not in self.ignores:
            choice["logprobs"] = {"content": [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]}
        if not chat.get("stream"):
            message = {"role": "assistant", "content": None, **delta}
            await peer.send(
                whole(
                    200, {**head, "choices": [{**choice, "message": message, "finish_reason": reason}], "usage": usage}
                )
            )
            return
        with_usage = event({**head, "choices": [], "usage": usage}) if chat.get("stream_options") and usage else b""
        ended = event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        done = b"" if "done" in self.ignores else DONE
        await peer.send(OPENING + event({**head, "choices": [choice]}) + ended + with_usage + done + END)

    def _answer(self, chat: Json) -> tuple[Json, str]:
        choice, tools = chat.get("tool_choice"), chat.get("tools") or []
        asked = str(chat["messages"][0].get("content"))
        wants = choice not in (None, "auto", "none") or "with the tool" in str(chat["messages"][-1].get("content"))
        if tools and ((wants and "call" not in self.ignores) or "You must call" in asked):
            names = [tool["function"]["name"] for tool in tools]
            if isinstance(choice, dict):
                names = [choice["function"]["name"]]
            both = chat.get("parallel_tool_calls", True) and "both tools" in str(chat["messages"])
            named = [name for name in ("paint", "measure") if name in names][: 2 if both else 1]
            return {"tool_calls": [self._call(number, name) for number, name in enumerate(named)]}, "tool_calls"
        if self._in_json(chat, asked):
            return {"content": '{"color": "red"}'}, "stop"
        return self._words(chat)

    def _in_json(self, chat: Json, asked: str) -> bool:
        return bool((chat.get("response_format") and "format" not in self.ignores) or "Answer with one JSON" in asked)

    def _words(self, chat: Json) -> tuple[Json, str]:
        words = WORDS.split() * 20
        if "image_url" in str(chat["messages"]):
            words = ["Red."]
        limit = (
            chat.get("max_tokens")
            if "limit" in self.ignores
            else chat.get("max_completion_tokens", chat.get("max_tokens"))
        )
        cut = len(words) > (limit or 40)
        text = " ".join(words[: limit or 200])
        thought: Json = {self.thinks: "Let me think."} if self.thinks not in ("", "tags") else {}
        said = f"<think>Let me think.</think>{text}" if self.thinks == "tags" else text
        return {**thought, "content": said}, "length" if cut else "stop"

    @staticmethod
    def _call(number: int, name: str) -> Json:
        arguments = '{"color": "red"}' if name == "paint" else '{"unit": "m"}'
        return {
            "index": number,
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _usage(self, chat: Json, tokens: int, delta: Json) -> Json:
        before = [each for each, words in self.chats[:-1] if words is None and each["messages"] == chat["messages"]]
        cached = tokens - 1 if before and tokens > 1000 and "cache" not in self.ignores else 0
        read = min(tokens, 100) if "context" in self.ignores and tokens > CONTEXT else tokens
        written = len(str(delta.get("content") or "{}").split())
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


@contextmanager
def in_thread(handler: Callable[[Peer], Any], **options: Any) -> Iterator[HttpServer]:
    """Run a server in an event loop of a thread."""
    ready = Event()
    running: list[tuple[HttpServer, asyncio.AbstractEventLoop, asyncio.Event]] = []

    writers: list[asyncio.StreamWriter] = []

    async def handle(peer: Peer) -> None:
        writers.append(peer.writer)
        await handler(peer)

    async def serve() -> None:
        async with serving(handle, **options) as server:
            ended = asyncio.Event()
            running.append((server, asyncio.get_running_loop(), ended))
            ready.set()
            await ended.wait()
        for writer in writers:
            writer.transport.abort()
        # The event loop closes aborted connections in its next turns.
        for _ in range(3):
            await asyncio.sleep(0)

    thread = Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    ready.wait()
    [(server, loop, ended)] = running
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
