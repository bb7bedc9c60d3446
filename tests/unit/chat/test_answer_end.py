"""How answers end: reasons, errors and usage in all forms of servers."""

from __future__ import annotations

from typing import Any, Final

import pytest
from openai.types.chat import ChatCompletion

from llama_stack_openai_chat.chunks import chat_chunk, whole
from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.errors import ApiError, MalformedCallError, Upstream
from llama_stack_responses.model_server.whole_answer import in_one
from llama_stack_responses.stream.deltas import (
    Finish,
    FinishReason,
    Reasoning,
    Text,
)
from llama_stack_responses.stream.usage import UNKNOWN, Usage
from tests.support.chunk_reading import (
    CALL,
    MOST,
    USAGE,
    Json,
    Maker,
    any_maker,
    as_client,
    chunk,
    ended,
    envelope,
    openai_maker,
    read,
)

COUNTED: Final = Usage(10, 5, cached_tokens=4, reasoning_tokens=2)


@any_maker
def test_usage_in_separate_chunk_is_read(make: Maker) -> None:
    assert ended([chunk({"content": "a"}, finish="stop"), envelope([], usage=USAGE)], make).usage == COUNTED


@any_maker
def test_last_of_cumulative_usages_counts(make: Maker) -> None:
    sofar = USAGE | {"completion_tokens": 1}
    assert ended([chunk({"content": "a"}, usage=sofar), chunk(finish="stop", usage=USAGE)], make).usage == COUNTED


@any_maker
def test_usage_before_last_chunk_is_read(make: Maker) -> None:
    assert ended([chunk({"content": "a"}, usage=USAGE), chunk(finish="stop")], make).usage == COUNTED


@any_maker
def test_missing_usage_is_unknown(make: Maker) -> None:
    assert ended([chunk(finish="stop")], make).usage == UNKNOWN


def test_missing_usage_details_are_zero() -> None:
    bare = {"prompt_tokens": 10, "completion_tokens": 0, "prompt_tokens_details": None}
    assert ended([chunk(finish="stop", usage=bare)]).usage == Usage(10)
    null = USAGE | {"prompt_tokens_details": {"cached_tokens": None}, "completion_tokens_details": {}}
    assert ended([chunk(finish="stop", usage=null)]).usage == Usage(10, 5)


def test_cache_write_tokens_are_read() -> None:
    written = USAGE | {"prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}}
    usage = ended([chunk(finish="stop", usage=written)]).usage
    assert (usage.cached_tokens, usage.cache_write_tokens) == (4, 3)


FINISH_REASONS: Final[dict[str, FinishReason]] = {
    "repetition_truncation": "length",
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "COMPLETE": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "MAX_TOKENS": "length",
    "FinishReason.MAX_TOKENS": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
    "max-tokens": "length",
    "token_limit": "length",
    "context_length_exceeded": "length",
    "tool-calls": "tool_calls",
    "content-filter": "content_filter",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "refusal": "content_filter",
    "repetition": "length",
    "maxPredictedTokensReached": "length",
    "REASON_MAX_CONTEXT": "length",
    "output_budget_exhausted": "length",
    "kv_cache_full": "length",
    "successfully_done": "stop",
    "MODEL_ARMOR": "content_filter",
    "policy_violation": "content_filter",
    "eosFound": "stop",
    "normal": "stop",
}


@pytest.mark.parametrize(("reason", "meant"), FINISH_REASONS.items())
def test_finish_reasons_are_mapped(reason: str, meant: FinishReason) -> None:
    assert ended([chunk({"content": "a"}), chunk(finish=reason)]).reason == meant


@any_maker
@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "function_call"])
def test_finish_reasons_are_read_from_every_chunk_type(make: Maker, reason: str) -> None:
    assert ended([chunk(CALL), chunk(finish=reason)], make).reason == FINISH_REASONS[reason]


def test_unknown_finish_reason_is_logged_and_counts_as_stop(caplog: pytest.LogCaptureFixture) -> None:
    assert ended([chunk(finish="bored")]).reason == "stop"
    assert "bored" in caplog.text


HALF: Final = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":'}}]}


@pytest.mark.parametrize("place", ["choice", "delta", "chunk", "chunk alone"])
@pytest.mark.parametrize("name", ["finishReason", "done_reason", "finish_details", "stop_reason", "finish_reason"])
@pytest.mark.parametrize(("reason", "meant"), [("MAX_TOKENS", "length"), ("length", "length"), ("stop", "stop")])
def test_finish_reason_with_another_name_or_at_another_place_is_read(
    place: str, name: str, reason: str, meant: FinishReason
) -> None:
    value = {"type": reason} if name == "finish_details" else reason
    last = envelope([]) if place == "chunk alone" else chunk({"content": "b"})
    if place in ("choice", "delta"):
        [choice] = last["choices"]
        (choice if place == "choice" else choice["delta"])[name] = value
    else:
        last[name] = value
    reader = ChunkReader(Profile(), MOST)
    reader.read(as_client(chunk({"content": "a"})))
    if place != "delta":
        assert reader.extension(last) is None
    reader.read(as_client(last))
    assert reader.end()[-1] == Finish(meant, UNKNOWN)


def test_stop_sequence_beside_a_finish_reason_is_none() -> None:
    last = chunk(finish="stop")
    last["choices"][0]["stop_reason"] = "length"
    assert ended([chunk({"content": "a"}), last]).reason == "stop"


@pytest.mark.parametrize("place", ["choice", "delta", "chunk", "chunk alone"])
@pytest.mark.parametrize(
    ("more", "meant"),
    [
        ({"stop": True, "stop_type": "limit"}, "length"),
        ({"stop": True, "stop_type": "eos", "truncated": False}, "stop"),
        ({"stop": True, "stop_type": "word", "stopping_word": "Z"}, "stop"),
        ({"stopped_eos": False, "stopped_word": False, "stopped_limit": True}, "length"),
        ({"stopped_eos": True, "stopped_word": False, "stopped_limit": False}, "stop"),
        ({"stopped_limit": 1, "context_full": True}, "length"),
    ],
)
def test_reasons_of_llama_cpps_own_api_are_read(
    place: str, more: Json, meant: FinishReason, caplog: pytest.LogCaptureFixture
) -> None:
    last = envelope([]) if place == "chunk alone" else chunk({"content": "b"})
    (last if "chunk" in place else last["choices"][0] if place == "choice" else last["choices"][0]["delta"]).update(
        more
    )
    assert ended([chunk({"content": "a", "stop_type": "none", "stopped_limit": False}), last]).reason == meant
    assert not caplog.text


@pytest.mark.parametrize("where", ["native_finish_reason", "provider_specific_fields"])
@pytest.mark.parametrize(("native", "meant"), [("MAX_TOKENS", "length"), ("SAFETY", "content_filter"), ("x", "stop")])
def test_reason_of_the_server_behind_a_gateway_counts_if_it_cut_the_answer(
    where: str, native: str, meant: FinishReason
) -> None:
    last = chunk(finish="stop")
    last["choices"][0][where] = native if where == "native_finish_reason" else {"native_finish_reason": native}
    assert ended([chunk({"content": "a"}), last]).reason == meant


@pytest.mark.parametrize("before", [[], [chunk({"reasoning_content": "a"})]])
def test_answer_that_ends_with_calls_without_having_one_is_asked_for_again(before: list[Json]) -> None:
    with pytest.raises(MalformedCallError, match="sent no call"):
        ended([*before, chunk(finish="tool_calls")])
    reader = ChunkReader(Profile(), MOST, only_words=True)
    assert not reader.read(as_client(chunk(finish="tool_calls")))
    assert reader.end() == [Finish("tool_calls", UNKNOWN)]


def test_object_as_finish_reason_is_read() -> None:
    assert ended([chunk(finish={"type": "length", "length": 9})]).reason == "length"  # type: ignore[arg-type]
    aborted = {"type": "abort", "message": "The request has no room.", "status_code": 400}
    with pytest.raises(ApiError, match="no room"):
        ended([chunk(finish=aborted)])  # type: ignore[arg-type]


@pytest.mark.parametrize("later", ["stop", "tool_calls", "eos", "bored"])
@pytest.mark.parametrize(("first", "meant"), [("length", "length"), ("content_filter", "content_filter")])
def test_reason_of_a_cut_answer_stays_whatever_follows(first: str, meant: FinishReason, later: str) -> None:
    assert ended([chunk({"content": "a"}), chunk(finish=first), chunk(finish=later)]).reason == meant
    assert ended([chunk({"content": "a"}), chunk(finish=later), chunk(finish=first)]).reason == meant


@pytest.mark.parametrize("later", ["stop", "length", "content_filter"])
@pytest.mark.parametrize("first", ["error", "network_error", "MALFORMED_FUNCTION_CALL"])
def test_reason_of_a_failed_answer_stays_whatever_follows(first: str, later: str) -> None:
    for reasons in ((first, later), (later, first)):
        with pytest.raises(ApiError, match=first):
            ended([chunk({"content": "a"}), *(chunk(finish=each) for each in reasons)])


def test_filtered_answer_that_reaches_its_length_is_filtered() -> None:
    assert ended([chunk(finish="content_filter"), chunk(finish="length")]).reason == "content_filter"


def test_error_of_a_choice_without_a_reason_ends_the_answer_with_its_words() -> None:
    failed = chunk({"content": ""})
    failed["choices"][0]["error"] = {"code": 502, "message": "Provider hiccup"}
    for rest in ([], [chunk(finish="stop")]):
        with pytest.raises(ApiError, match="Provider hiccup"):
            ended([chunk({"content": "a"}), failed, *rest])


def test_error_of_a_choice_that_says_nothing_is_none() -> None:
    good = chunk({"content": "a"}, finish="stop")
    good["choices"][0]["error"] = {"code": 0, "message": ""}
    assert ended([good]).reason == "stop"


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("incomplete", "length"),
        (["length"], "length"),
        ({"reason": "length"}, "length"),
        (["stop"], "stop"),
        (True, "stop"),
    ],
)
def test_finish_reason_in_any_form_is_read_by_its_words(reason: Any, meant: FinishReason) -> None:
    assert ended([chunk({"content": "a"}), chunk(finish=reason)]).reason == meant


def test_word_for_no_finish_reason_does_not_end_the_answer() -> None:
    reader = ChunkReader(Profile(), MOST)
    assert reader.read(as_client(chunk({"content": "a"}, finish="null")))
    assert not reader.is_finished


@pytest.mark.parametrize("delta", [{"content": "a"}, {"refusal": "a"}, CALL])
def test_answer_without_finish_reason_is_complete(delta: Json) -> None:
    reader = ChunkReader(Profile(), MOST)
    assert reader.read(as_client(chunk(delta)))
    assert reader.end() == [Finish("stop", UNKNOWN)]


@pytest.mark.parametrize("finish", [None, "stop", "tool_calls", "bored"])
def test_half_call_is_never_complete(finish: str | None) -> None:
    with pytest.raises(ApiError, match="within the arguments"):
        ended([chunk({"content": "a"}), chunk(HALF), *([chunk(finish=finish)] if finish else [])])


@pytest.mark.parametrize("finish", ["length", "model_length", "SAFETY", "repetition"])
def test_half_call_of_cut_answer_stays_half(finish: str) -> None:
    assert ended([chunk(HALF), chunk(finish=finish)]).reason not in ("stop", "tool_calls")


@pytest.mark.parametrize(
    "reason",
    [
        *("error", "timeout", "network_error", "insufficient_system_resource", "OTHER", "worker_failure"),
        *("abort", "cancelled", "modelUnloaded", "MALFORMED_RESPONSE", "malformed_tool_use"),
        *("MALFORMED_FUNCTION_CALL", "function_call_filter: MALFORMED_FUNCTION_CALL"),
        *("client_disconnect", "disconnected", "out_of_memory", "preempted", "killed", "shutdown"),
        *("oom", "engine_dead", "expired", "load"),
    ],
)
def test_finish_reason_error_is_502(reason: str) -> None:
    with pytest.raises(ApiError, match=reason) as caught:
        ended([chunk({"content": "a"}), chunk(finish=reason)])
    assert caught.value.status == 502


@pytest.mark.parametrize("chunks", [[], [chunk({"reasoning": "a"})], [envelope([], usage=USAGE)]])
def test_stream_without_finish_reason_is_502(chunks: list[Json]) -> None:
    with pytest.raises(ApiError, match="ended before") as caught:
        ended(chunks)
    assert caught.value.status == 502


def test_text_in_finishing_chunk_is_kept() -> None:
    reader = ChunkReader(Profile(), MOST)
    assert reader.read(as_client(chunk({"content": "a"}, finish="stop"))) == [Text("a")]
    assert reader.end() == [Finish("stop", UNKNOWN)]


@any_maker
def test_last_service_tier_counts(make: Maker) -> None:
    reader = ChunkReader(Profile(), MOST)
    reader.read(make(chunk({"content": "a"}, service_tier="default")))
    reader.read(make(chunk(finish="stop", service_tier="flex")))
    assert reader.service_tier == "flex"


NONE_WRITTEN: Final = {"prompt_tokens": 9, "completion_tokens": 0}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9.0, "completion_tokens": "4"}, Usage(9, 4)),
        ({"input_tokens": 9, "output_tokens": 4}, Usage(9, 4)),
        ({"prompt_tokens": -1, "completion_tokens": 4, "total_tokens": 3}, UNKNOWN),
        (NONE_WRITTEN | {"cached_tokens": 5}, Usage(9, cached_tokens=5)),
        (NONE_WRITTEN | {"prompt_cache_hit_tokens": 5}, Usage(9, cached_tokens=5)),
        (NONE_WRITTEN | {"cache_read_input_tokens": 5}, Usage(9, cached_tokens=5)),
        (NONE_WRITTEN | {"prompt_tokens_details": {"cached_tokens": 50}}, Usage(9, cached_tokens=9)),
        ({"completion_tokens": 4, "total_tokens": 13}, Usage(9, 4)),
        ({"prompt_tokens": 9, "completion_tokens": None, "total_tokens": 13}, Usage(9, 4)),
        ({"completion_tokens": 3}, UNKNOWN),
        ({"prompt_tokens": 9}, UNKNOWN),
        ({"prompt_tokens": 9, "completion_tokens": "n/a"}, UNKNOWN),
        ({"prompt_tokens": 9, "total_tokens": 9}, Usage(9)),
        ({"prompt_tokens": 0, "completion_tokens": 3, "total_tokens": 0}, UNKNOWN),
        ({"completion_tokens": 3, "prompt_tokens": None}, UNKNOWN),
        ({"completion_tokens": 3, "prompt_tokens": "n/a"}, UNKNOWN),
        ({"completion_tokens": -1, "prompt_tokens": 9}, UNKNOWN),
    ],
)
@pytest.mark.parametrize("make", [as_client, chat_chunk])
def test_usage_is_read_in_the_forms_of_vendors(make: Maker, usage: Json, expected: Usage) -> None:
    assert ended([chunk({"content": "a"}, finish="stop", usage=usage)], make).usage == expected


@openai_maker
def test_usage_in_choice_or_of_groq_is_read(make: Maker) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    in_choice = chunk(finish="stop")
    in_choice["choices"][0]["usage"] = usage
    for each in (in_choice, chunk(finish="stop", x_groq={"id": "r", "usage": usage})):
        assert ended([each], make).usage == Usage(9, 4)


def test_zeros_after_the_usage_do_not_count() -> None:
    zeros = {"prompt_tokens": 0, "completion_tokens": 0}
    chunks = [chunk({"content": "a"}, finish="stop", usage=USAGE), envelope([], usage=zeros)]
    assert ended(chunks) == ended(chunks[:1])


@pytest.mark.parametrize(
    "reasoning", [{"text": "hm"}, {"content": "hm"}, [{"type": "text", "text": "h"}, {"text": "m"}], ["h", "m"]]
)
def test_reasoning_as_object_or_parts_is_read(reasoning: Any) -> None:
    assert read(as_client, [chunk({"reasoning": reasoning})]) == [Reasoning("hm")]


@pytest.mark.parametrize("contents", [["Hello", "Hello wor", "Hello world"], ["Hello", " world", "Hello world"]])
def test_text_repeated_in_lists_is_passed_on_once(contents: list[str]) -> None:
    chunks = [chunk({"content": [{"type": "text", "text": each}]}) for each in contents]
    deltas = read(as_client, chunks)
    assert "".join(delta.text for delta in deltas if isinstance(delta, Text)) == "Hello world"


@openai_maker
@pytest.mark.parametrize(
    ("timings", "cached"),
    [({"cache_n": 7, "prompt_n": 3}, 7), ({"cache_n": 11}, 10), ({"cache_n": None}, 0), ("odd", 0), (None, 0)],
)
def test_cached_tokens_of_llama_cpp_are_read(make: Maker, timings: Any, cached: int) -> None:
    counted = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    last = envelope([], usage=counted, timings=timings)
    assert ended([chunk(finish="stop"), last], make).usage == Usage(10, 5, cached_tokens=cached)


def test_cached_tokens_of_the_usage_count_before_those_of_timings() -> None:
    assert ended([chunk(finish="stop", usage=USAGE, timings={"cache_n": 7})]).usage == COUNTED


@pytest.mark.parametrize(("code", "status"), [(502, 502), (429, 429), ("429", 429), (None, 502)])
def test_error_of_a_choice_keeps_its_words_and_its_status(code: Any, status: int) -> None:
    failed = chunk({"content": ""}, finish="error")
    failed["choices"][0]["error"] = {"code": code, "message": "Provider hiccup"}
    with pytest.raises(ApiError, match="Provider hiccup") as caught:
        ended([chunk({"content": "a"}), failed])
    assert caught.value.status == status


async def test_error_of_a_choice_of_a_whole_answer_keeps_its_words_and_its_status() -> None:
    error = {"code": 429, "message": "Provider hiccup"}
    choice = {"index": 0, "message": {"content": ""}, "finish_reason": "error", "logprobs": None, "error": error}
    reader = ChunkReader(Profile(), MOST)
    async for each in in_one(whole(ChatCompletion, envelope([choice], usage=None))):
        reader.read(each)
    with pytest.raises(ApiError, match="Provider hiccup") as caught:
        reader.end()
    assert caught.value.status == 429


def test_error_of_a_choice_that_refuses_the_key_does_not_quote_it() -> None:
    failed = chunk({"content": ""}, finish="error")
    failed["choices"][0]["error"] = {"code": 401, "message": "Incorrect API key provided: sk-secret"}
    with pytest.raises(ApiError) as caught:
        ended([chunk({"content": "a"}), failed])
    assert (caught.value.status, caught.value.upstream) == (502, Upstream("credentials", 401))
    assert "sk-secret" not in caught.value.message
