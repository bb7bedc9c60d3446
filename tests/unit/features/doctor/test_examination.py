"""What the checks find out about model servers over HTTP that refuse or ignore things."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_stack_responses.chat.adaptation.registry import adapted, in_order
from llama_stack_responses.chat.profile import Profile, steps_of
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.types import Json
from llama_stack_responses.features.doctor.answer import Bounds
from llama_stack_responses.features.doctor.checks import CHECKS
from llama_stack_responses.features.doctor.examination import Clock, Examination, Subject
from llama_stack_responses.features.doctor.report import Finding, Report, escaped
from llama_stack_responses.model_server.client import Access, ModelServerClient
from tests.support.doctored_server import (
    DoctoredServer,
    Refuses,
    efforts,
    formats,
    required_call,
    schemas,
    strict,
    template,
    unknown,
)
from tests.support.http_server import OPENING, Peer, event, serving, whole

NAMES: Final = {check.name for check in CHECKS}
CHUNK: Final[Json] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


@asynccontextmanager
async def client_of(handler: Callable[[Peer], Any]) -> AsyncIterator[ModelServerClient]:
    """A client of a server with this handler."""
    async with serving(handler) as running:
        client = ModelServerClient(Access(base_url=running.url), "set the right one")
        try:
            yield client
        finally:
            await client.close()


async def examined(
    handler: Callable[[Peer], Any], seconds: float = 60.0, chunks: int = 4_000, context_length: int | None = None
) -> Report:
    """Return the report about a server with this handler."""
    slept: list[float] = []

    async def sleep(some: float) -> None:
        slept.append(some)

    async with client_of(handler) as client:
        clock = Clock(time.monotonic, time.time, sleep)
        subject = Subject("here", "m", "*/m", context_length)
        return await Examination(client, subject, Bounds(seconds, chunks=chunks), clock).run()


def found(report: Report) -> dict[str, Finding]:
    """Return the findings by the names of their checks."""
    return {each.name: each for each in report.findings}


def others(report: Report, names: Collection[str]) -> set[str]:
    """Return the outcomes of all other checks."""
    return {each.outcome for each in report.findings if each.name not in {*names, "reasoning"}}


async def test_server_that_takes_all_needs_no_profile() -> None:
    server = DoctoredServer(thinks="reasoning_content")
    report = await examined(server)
    assert {each.name: each.outcome for each in report.findings} == dict.fromkeys(NAMES, "works")
    assert report.profile == {"match": "*/m", "context_length": 4096}
    assert all(words is None for _, words in server.chats[:-1])
    assert report.requests == len(server.chats)
    assert report.tokens_per_second is None or report.tokens_per_second > 0
    assert report.first_token_seconds is not None


REFUSALS: Final[dict[str, tuple[Refuses, dict[str, str], Json]]] = {
    "hints": (unknown("prompt_cache_key", "safety_identifier", "service_tier", "verbosity"), {"hints": "adapted"}, {}),
    "sampling": (unknown("frequency_penalty"), {"sampling": "lost"}, {}),
    "logprobs": (unknown("logprobs"), {"logprobs": "lost"}, {}),
    "stream_options": (
        unknown("stream_options"),
        {"answer": "adapted", "usage": "lost", "cached_tokens": "unclear"},
        {},
    ),
    "limit": (
        unknown("max_completion_tokens"),
        {"answer": "adapted"},
        {"parameters": {"rename": {"max_completion_tokens": "max_tokens"}}},
    ),
    "parallel": (unknown("parallel_tool_calls"), {"one_call": "lost", "parallel_calls": "adapted"}, {}),
    "required": (
        required_call,
        dict.fromkeys(("required_call", "named_call", "one_call", "strict_tools", "tool_schemas"), "adapted")
        | {"parallel_calls": "adapted"},
        {"dialect": ["tool_choice_in_words"]},
    ),
    "json_schema": (formats("json_schema"), {"json_schema": "adapted"}, {"dialect": ["schema_in_words"]}),
    "json_object": (formats("json_object"), {"json_object": "adapted"}, {"dialect": ["format_in_words"]}),
    "formats": (
        formats("json_schema", "json_object"),
        {"json_schema": "adapted", "json_object": "adapted"},
        {"dialect": ["schema_in_words", "format_in_words"]},
    ),
    "efforts": (
        efforts("low", "high"),
        {"effort": "adapted"},
        {"parameters": {"map": {"reasoning_effort": {"minimal": "low", "xhigh": "high"}}}},
    ),
    "effort": (unknown("reasoning_effort"), {"effort": "lost"}, {"parameters": {"drop": ["reasoning_effort"]}}),
    "schemas": (schemas, {"tool_schemas": "adapted"}, {"dialect": ["plain_schemas"]}),
    "strict": (strict, {"strict_tools": "adapted"}, {"parameters": {"drop": ["tools.function.strict"]}}),
    "images": (template("no_images"), {"images": "lost"}, {"dialect": ["no_images"]}),
    "developer": (template("no_developer"), {"developer": "adapted"}, {"dialect": ["no_developer"]}),
    "system_first": (template("system_first"), {"system_later": "adapted"}, {"dialect": ["system_first"]}),
    "alternate": (
        template("alternate"),
        {"system_later": "adapted", "order": "adapted", "after_tool": "adapted", "developer": "adapted"},
        {"dialect": ["no_developer", "alternate"]},
    ),
    "after_tool": (template("assistant_after_tool"), {"after_tool": "adapted"}, {"dialect": ["assistant_after_tool"]}),
    "ids": (
        template("nine_character_ids"),
        {"tool_results": "adapted", "after_tool": "adapted"},
        {"dialect": ["nine_character_ids"]},
    ),
    "nulls": (
        template("empty_content"),
        {"tool_results": "adapted", "after_tool": "adapted"},
        {"dialect": ["empty_content"]},
    ),
    "parts": (template("text_content"), {"parts": "adapted", "images": "unclear"}, {"dialect": ["text_content"]}),
    "reasoning": (
        template("no_reasoning"),
        {"reasoning_back": "lost"},
        {"parameters": {"drop": ["messages.reasoning_content"]}},
    ),
    "all_reasoning": (
        template("all_reasoning"),
        dict.fromkeys(("system_later", "order", "tool_results", "after_tool"), "adapted"),
        {"dialect": ["all_reasoning"]},
    ),
}


@pytest.mark.relatives
@pytest.mark.parametrize("name", REFUSALS)
async def test_refusal_is_found_and_answered_by_the_profile(name: str) -> None:
    refuses, outcomes, entry = REFUSALS[name]
    report = await examined(DoctoredServer([refuses]))
    assert {each: found(report)[each].outcome for each in outcomes} == outcomes
    assert report.profile is not None
    if entry:
        assert report.profile == {"match": "*/m", **entry, "context_length": 4096}
    await check_profile(report.profile, [refuses])


async def check_profile(entry: Json, refusals: Collection[Refuses]) -> None:
    """Check that the configuration takes an entry, and that the server takes each request of the checks with it."""
    [profile] = ResponsesConfig(profiles=[entry]).profiles
    steps = in_order(steps_of(profile.parameters, profile.dialect))
    strict_server = DoctoredServer(list(refusals))

    class Prepared(ModelServerClient):
        async def open_stream(self, request: Json) -> Any:
            return await super().open_stream(adapted(request, steps)[0])

    async with serving(strict_server) as running:
        client = Prepared(Access(base_url=running.url), "")
        await Examination(client, Subject("here", "m", "*/m"), Bounds(60.0), Clock(time.monotonic, time.time)).run()
        await client.close()
    refused = [
        (words, chat["messages"]) for chat, words in strict_server.chats if words and "context length" not in words
    ]
    assert refused == []


KNOWN: Final = sorted(set(REFUSALS) - {"limit"})


@pytest.mark.extended
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(chosen=st.sets(st.sampled_from(KNOWN), min_size=1, max_size=4))
def test_entry_of_any_server_makes_the_same_requests_succeed(chosen: set[str]) -> None:
    refusals = [REFUSALS[name][0] for name in sorted(chosen)]

    async def check() -> None:
        report = await examined(DoctoredServer(refusals))
        assert report.profile is not None
        await check_profile(report.profile, refusals)

    asyncio.run(check())


# What is ignored


@pytest.mark.parametrize(
    ("ignored", "outcomes", "entry"),
    [
        ("limit", {"limit": "adapted"}, {"parameters": {"rename": {"max_completion_tokens": "max_tokens"}}}),
        (
            "call",
            dict.fromkeys(("required_call", "named_call", "one_call"), "adapted"),
            {"dialect": ["tool_choice_in_words"]},
        ),
        (
            "format",
            {"json_schema": "adapted", "json_object": "adapted"},
            {"dialect": ["schema_in_words", "format_in_words"]},
        ),
        ("usage", {"usage": "lost", "cached_tokens": "unclear"}, {}),
        ("finish", {"stream_end": "adapted"}, {}),
        ("done", {"stream_end": "works"}, {}),
        ("cache", {"cached_tokens": "unclear"}, {}),
        ("logprobs", {"logprobs": "lost"}, {}),
    ],
)
async def test_what_server_ignores_is_found(ignored: str, outcomes: dict[str, str], entry: Json) -> None:
    report = await examined(DoctoredServer(ignores={ignored}))
    assert {each: found(report)[each].outcome for each in outcomes} == outcomes
    assert report.profile == {"match": "*/m", **entry, "context_length": 4096}
    assert others(
        report, [*outcomes, "tools", "limit", "one_call", "strict_tools", "tool_schemas", "parallel_calls"]
    ) == {"works"}


async def test_long_request_that_is_cut_silently_is_lost() -> None:
    report = await examined(DoctoredServer(ignores={"context"}))
    assert found(report)["too_long"].outcome == "lost"
    assert report.profile is None


@pytest.mark.parametrize(("context", "outcome"), [(None, "unclear"), (4096, "lost")])
async def test_request_that_is_answered_beyond_the_context_is_lost_if_that_is_known(
    context: int | None, outcome: str
) -> None:
    report = await examined(DoctoredServer(ignores={"positions"}), context_length=context)
    assert found(report)["too_long"].outcome == outcome


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_member_with_reasoning_is_named_and_sent_back(field: str) -> None:
    server = DoctoredServer(thinks=field)
    report = await examined(server)
    assert found(report)["reasoning"].note == f"it comes in '{field}'"
    assert any(field in message for chat, _ in server.chats for message in chat["messages"])


async def test_reasoning_between_tags_becomes_setting_of_the_profile() -> None:
    report = await examined(DoctoredServer(thinks="tags"))
    assert found(report)["reasoning"].outcome == "adapted"
    [profile] = ResponsesConfig(profiles=[report.profile]).profiles
    assert profile.inline_thinking is not None
    assert profile.inline_thinking.starts_open is False


async def test_change_for_one_schema_alone_is_not_in_the_profile() -> None:
    def one_schema(chat: Json) -> str | None:
        return "Invalid JSON schema: recursion" if (chat.get("response_format") or {}).get("json_schema") else None

    report = await examined(DoctoredServer([one_schema]))
    [change] = found(report)["json_schema"].changes
    assert change.startswith("schema_in_words ")
    assert report.profile == {"match": "*/m", "context_length": 4096}


# Servers that are hostile, or in trouble


async def test_unknown_refusal_is_quoted_within_bounds() -> None:
    def refuses(chat: Json) -> str | None:
        return "\x1b[31mNo " + "n" * 10_000 if "logprobs" in chat else None

    finding = found(await examined(DoctoredServer([refuses])))["logprobs"]
    assert finding.outcome == "lost"
    assert len(finding.note) == 300


async def endless(peer: Peer) -> None:
    """Stream text for ever."""
    await peer.request()
    await peer.send(OPENING)
    while True:
        await peer.send(event({**CHUNK, "choices": [{"index": 0, "delta": {"content": "wall " * 100}}]}))


@pytest.mark.extended
async def test_endless_answer_is_cut_and_the_limit_counts_as_ignored() -> None:
    finding = found(await examined(endless))["limit"]
    assert (finding.outcome, finding.note) == ("lost", "it is ignored")


async def empty(peer: Peer) -> None:
    """Stream chunks without content for ever."""
    await peer.request()
    await peer.send(OPENING)
    while True:
        await peer.send(event({**CHUNK, "choices": [{"index": 0, "delta": {}}]}) * 100)


async def silent(peer: Peer) -> None:
    """Never end an answer."""
    await peer.request()
    await peer.send(OPENING)
    await peer.left()


async def page(peer: Peer) -> None:
    """Answer with a page."""
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 14\r\n\r\n<h1>Hello</h1>")


async def broken(peer: Peer) -> None:
    """Close the connection within an answer."""
    await peer.request()
    await peer.send(OPENING + event({**CHUNK, "choices": [{"index": 0, "delta": {"content": "a"}}]}))


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (
            silent,
            "does not end its answer within 0.5 seconds: if it loads a model or is slow, wait, or raise the time limit.",
        ),
        (page, "content type 'text/html' instead of an event stream: check the URL, which usually ends in /v1."),
        (broken, "The connection to 127.0.0.1"),
    ],
)
async def test_server_without_first_answer_ends_the_examination(handler: Callable[[Peer], Any], words: str) -> None:
    with pytest.raises(ApiError, match=re.escape(words)):
        await examined(handler, seconds=0.5)


async def test_endless_chunks_without_content_are_cut() -> None:
    report = await examined(empty, chunks=300)
    assert found(report)["answer"].outcome == "unclear"


async def test_server_that_dies_ends_the_examination_after_three_checks() -> None:
    server = DoctoredServer()

    async def dying(peer: Peer) -> None:
        if len(server.chats) < 2:
            await server(peer)
        else:
            await peer.request()
            server.chats.append(({}, None))

    with pytest.raises(ApiError, match="check the URL, and that the server runs"):
        await examined(dying)
    assert len(server.chats) == 2 + 3


async def test_check_without_answer_is_unclear_and_the_others_are_made() -> None:
    server = DoctoredServer()

    class Deaf(Peer):
        async def send(self, data: bytes) -> None:
            if "image_url" not in str(server.chats[-1:]):
                await super().send(data)

    report = await examined(lambda peer: server(Deaf(peer.reader, peer.writer, peer.server, peer.number)))
    assert found(report)["images"].outcome == "unclear"
    assert others(report, ["images"]) == {"works"}


async def test_rate_limit_is_waited_for() -> None:
    server, limited = DoctoredServer(), iter([True, False] * 200)

    async def limiting(peer: Peer) -> None:
        if next(limited):
            await peer.request()
            await peer.send(whole(429, {"error": {"message": "slow down"}}, "retry-after: 7"))
        else:
            await server(peer)

    report = await examined(limiting)
    assert others(report, []) == {"works"}


def test_pattern_of_a_name_matches_the_name_alone() -> None:
    assert escaped("a[b]*?") == "a[[]b][*][?]"
    assert Profile(match="x").match == "x"


def test_report_survives_its_form_in_the_store() -> None:
    report = Report("here", "m", (Finding("answer", "a streamed answer", "works", "", ("drop user",)),), at=1.0)
    assert Report.of_json(report.as_json() | {"later": 1}) == report
