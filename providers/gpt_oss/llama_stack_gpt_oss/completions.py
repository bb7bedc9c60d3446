"""Conversion of the engine's tokens to the chunks of a chat completion, as plain JSON with one choice per sequence."""

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from .channel_parser import CallArguments, CallOpened, ChannelParser, Content, Delta, Reasoning
from .engine.engine import Update
from .engine.sequence import Sampled
from .process.client import EngineClient
from .requests import ParsedRequest
from .stops import StopWatch
from .vocabulary import Vocabulary

Json = dict[str, Any]


def chat_chunks(
    client: EngineClient, parsed: ParsedRequest, vocabulary: Vocabulary, model: str
) -> AsyncGenerator[Json]:
    """Yield the chunks of a streamed chat completion. Closing the iterator cancels the request in the engine."""
    choices = {name: _Choice(n, parsed, vocabulary) for n, name in enumerate(parsed.request.ids)}
    return _chunks(client, parsed, choices, _head("chatcmpl", "chat.completion.chunk", parsed, model))


def text_chunks(
    client: EngineClient, parsed: ParsedRequest, vocabulary: Vocabulary, model: str
) -> AsyncGenerator[Json]:
    """Yield the chunks of a text completion. Its text is all output except special tokens."""
    texts = {name: _Bare(n, parsed, vocabulary) for n, name in enumerate(parsed.request.ids)}
    return _chunks(client, parsed, texts, _head("cmpl", "text_completion", parsed, model))


async def _chunks(
    client: EngineClient, parsed: ParsedRequest, answers: "Mapping[str, _Choice | _Bare]", head: Json
) -> AsyncGenerator[Json]:
    cached = 0
    async with aclosing(client.generate(parsed.request)) as updates:
        async for update in updates:
            answer = answers[update.id]
            cached = max(cached, update.cached)
            for choice in answer.feed(update):
                yield {**head, "choices": [choice]}
            if answer.finish is not None and update.finish is None:
                client.cancel(update.id)
    if parsed.include_usage:
        yield {**head, "choices": [], "usage": _usage(parsed, list(answers.values()), cached)}


def _head(prefix: str, kind: str, parsed: ParsedRequest, model: str) -> Json:
    return {"id": f"{prefix}-{parsed.request.ids[0]}", "object": kind, "created": int(time.time()), "model": model}


class _Choice:
    """One choice of a chat completion."""

    def __init__(self, index: int, parsed: ParsedRequest, vocabulary: Vocabulary) -> None:
        self.finish: str | None = None
        self._index = index
        self._parser = ChannelParser(vocabulary, parsed.tools)
        self._watch = StopWatch(parsed.stops)
        self._logprobs = _Logprobs(vocabulary) if parsed.logprobs else None

    @property
    def tokens(self) -> int:
        return self._parser.tokens

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    def feed(self, update: Update) -> Iterator[Json]:
        """Yield the choices that an update adds; `finish` is set with the last one.

        The first update always adds one: until a stream has begun, the host does not notice that its client has left.
        """
        if self.finish is not None:
            return
        if not self.tokens:
            yield self._made({"role": "assistant", "content": ""})
        deltas = list(self._parser.feed(update.sampled.token))
        if self._logprobs is not None and self._parser.visible:
            self._logprobs.add(update.sampled)
        ended = update.finish is not None
        if ended:
            deltas += self._parser.finish()
        for delta in deltas:
            yield from self._choice(delta)
        if ended and not self._watch.hit:
            if rest := self._watch.finish():
                yield self._content(rest)
            called = "tool_calls" if self._parser.calls else "stop"
            yield self._end(called if update.finish == "stop" else "length")

    def _choice(self, delta: Delta) -> Iterator[Json]:
        if self.finish is not None:
            return
        if not isinstance(delta, Content):
            yield self._made(_fields(delta))
            return
        if text := self._watch.feed(delta.text):
            yield self._content(text)
        if self._watch.hit:
            yield self._end("stop")

    def _content(self, text: str) -> Json:
        made = self._made({"content": text})
        if self._logprobs is not None:
            made["logprobs"] = {"content": self._logprobs.drain(), "refusal": None}
        return made

    def _end(self, finish: str) -> Json:
        self.finish = finish
        return self._made({}, finish)

    def _made(self, delta: Json, finish: str | None = None) -> Json:
        return {"index": self._index, "delta": delta, "finish_reason": finish, "logprobs": None}


class _Bare:
    """One choice of a text completion."""

    reasoning_tokens = 0

    def __init__(self, index: int, parsed: ParsedRequest, vocabulary: Vocabulary) -> None:
        self.finish: str | None = None
        self.tokens = 0
        self._index = index
        self._vocabulary = vocabulary
        self._decoder = vocabulary.decoder()
        self._watch = StopWatch(parsed.stops)

    def feed(self, update: Update) -> Iterator[Json]:
        """Yield the choice that an update adds. The first update adds one without text, as for a chat completion."""
        if self.finish is not None:
            return
        first, self.tokens = not self.tokens, self.tokens + 1
        ended = update.finish is not None
        word = self._vocabulary.bytes_of(update.sampled.token) or b""
        text = self._watch.feed(self._decoder.decode(word, final=ended))
        if self._watch.hit:
            self.finish = "stop"
        elif ended:
            text += self._watch.finish()
            self.finish = update.finish
        if first or text or self.finish:
            yield {"index": self._index, "text": text, "finish_reason": self.finish, "logprobs": None}


class _Logprobs:
    """The log probabilities of visible tokens, buffered until their text is sent."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._waiting: list[Json] = []

    def add(self, sampled: Sampled) -> None:
        top = [self._entry(token, logprob) for token, logprob in sampled.top]
        self._waiting.append({**self._entry(sampled.token, sampled.logprob or 0.0), "top_logprobs": top})

    def drain(self) -> list[Json]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _entry(self, token: int, logprob: float) -> Json:
        word = self._vocabulary.bytes_of(token)
        shown = self._vocabulary.name_of(token).encode() if word is None else word
        return {"token": shown.decode(errors="replace"), "logprob": max(logprob, -9999.0), "bytes": list(shown)}


def _fields(delta: Reasoning | CallOpened | CallArguments) -> Json:
    match delta:
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallOpened(index, name, function):
            call: Json = {"index": index, "id": name, "type": "function"}
            return {"tool_calls": [{**call, "function": {"name": function, "arguments": ""}}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _usage(parsed: ParsedRequest, answers: "list[_Choice | _Bare]", cached: int) -> Json:
    prompt, made = len(parsed.request.prompt), sum(answer.tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(answer.reasoning_tokens for answer in answers)},
    }


class ChatFold:
    """Merges the chunks of a stream into a whole chat completion."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._usage: Json | None = None
        self._choices: dict[int, Json] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._calls: dict[tuple[int, int], Json] = {}

    def add(self, chunk: Json) -> None:
        self._head = {key: chunk[key] for key in ("id", "created", "model")}
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            self._add(choice)

    def whole(self) -> Json:
        choices = [self._whole(index, choice) for index, choice in sorted(self._choices.items())]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage}

    def _add(self, choice: Json) -> None:
        index, delta = choice["index"], choice["delta"]
        kept = self._choices.setdefault(index, {"finish_reason": None, "logprobs": None})
        kept["finish_reason"] = choice["finish_reason"] or kept["finish_reason"]
        if choice["logprobs"] is not None:
            kept["logprobs"] = kept["logprobs"] or {"content": [], "refusal": None}
            kept["logprobs"]["content"] += choice["logprobs"]["content"]
        for field in ("content", "reasoning_content"):
            if delta.get(field):
                self._texts.setdefault((index, field), []).append(delta[field])
        for call in delta.get("tool_calls", ()):
            made = self._calls.setdefault((index, call["index"]), {"arguments": []})
            made["arguments"].append(call["function"]["arguments"])
            if "id" in call:
                made |= {"id": call["id"], "name": call["function"]["name"]}

    def _whole(self, index: int, choice: Json) -> Json:
        texts = {field: "".join(parts) for (owner, field), parts in self._texts.items() if owner == index}
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": "".join(call["arguments"])},
            }
            for (owner, _), call in sorted(self._calls.items())
            if owner == index
        ]
        message = {"role": "assistant", "content": None, "refusal": None, **texts, "tool_calls": calls or None}
        return {"index": index, "message": message, **choice}


def fold_text(chunks: list[Json]) -> Json:
    """Merge the chunks of a text completion."""
    choices: dict[int, Json] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            before = choices.get(choice["index"], {"text": ""})
            choices[choice["index"]] = {**choice, "text": before["text"] + choice["text"]}
    usage = next((chunk["usage"] for chunk in reversed(chunks) if "usage" in chunk), None)
    return {**chunks[-1], "choices": [choice for _, choice in sorted(choices.items())], "usage": usage}
