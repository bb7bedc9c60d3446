"""The first difference of two prompts, as a model server's prompt cache sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.chat.prompt_comparison import REASONS, Difference, Prompt, first_difference
from llama_stack_responses.requests.input_items import parse_input
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.response import new_response

type Json = dict[str, Any]

TOOL: Final = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
WORDS: Final = "word " * 100


def message(role: str, text: str) -> Json:
    return {"role": role, "content": text}


def prompt(*items: Json, **fields: Any) -> Prompt:
    parsed = parse_input(list(items) or "Hi")
    request = parse_create({"model": "m", "input": "Hi", **fields})
    return Prompt(new_response(request, id="resp_1", created_at=1), parsed)


def difference(current: Prompt, compared: Prompt, *, compacted: bool = False, **profile: Any) -> Difference | None:
    return first_difference(current, compared, Profile(**profile), compacted=compacted)


def reason(*prompts: Prompt, **options: Any) -> str | None:
    found = difference(*prompts, **options)
    return found.reason if found else None


CHANGES: Final[dict[str, Json]] = {
    "model_changed": {"model": "other"},
    "service_tier_changed": {"service_tier": "flex"},
    "prompt_cache_key_changed": {"prompt_cache_key": "k"},
    "tools_changed": {"tools": [TOOL]},
    "text_format_changed": {"text": {"format": {"type": "json_object"}}},
    "reasoning_effort_changed": {"reasoning": {"effort": "high"}},
    "verbosity_changed": {"text": {"verbosity": "low"}},
    "input_changed": {"instructions": "Be brief."},
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_setting_is_the_reason_and_nothing_is_shared(name: str) -> None:
    found = difference(prompt(**CHANGES[name]), prompt())
    assert found is not None
    assert (found.reason, found.shared) == (name, 0.0)
    assert difference(prompt(**CHANGES[name]), prompt(**CHANGES[name])) is None


def test_first_of_several_changes_is_the_reason() -> None:
    everything: Json = {}
    for name, change in CHANGES.items():
        everything = {**change, **everything}
        assert reason(prompt(**everything), prompt()) == next(iter(CHANGES)), name
    assert {*CHANGES, "context_compacted"} == set(REASONS)


TEXTS: Final = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=20)), min_size=1, max_size=6)


@pytest.mark.extended
@given(TEXTS, TEXTS)
def test_longer_conversation_begins_as_its_own_beginning(
    turns: Sequence[tuple[str, str]], more: Sequence[tuple[str, str]]
) -> None:
    items = [message(*turn) for turn in turns]
    assert difference(prompt(*items, *(message(*turn) for turn in more)), prompt(*items)) is None


@given(TEXTS, st.data())
def test_changed_message_divides_the_prompt_at_its_place(turns: Sequence[tuple[str, str]], data: st.DataObject) -> None:
    items = [message(*turn) for turn in turns]
    place = data.draw(st.integers(0, len(items) - 1))
    changed = [*items[:place], message(items[place]["role"], items[place]["content"] + "!"), *items[place + 1 :]]
    found = difference(prompt(*changed), prompt(*items))
    assert found is not None
    assert found.reason == "input_changed"
    later = difference(prompt(*items, message("user", "a")), prompt(*items, message("user", "b")))
    assert later is not None
    assert found.shared <= later.shared < 1


def test_estimate_of_tokens_and_of_the_shared_part() -> None:
    first, second = message("user", WORDS), message("user", "x" + WORDS)
    found = difference(prompt(first, second), prompt(first, first))
    assert found is not None
    assert found.tokens == pytest.approx(2 * len(WORDS) / 4, rel=0.2)
    assert found.shared == pytest.approx(0.5, abs=0.05)


def test_shorter_conversation_differs_at_its_end() -> None:
    items = [message("user", "a"), message("assistant", "b")]
    found = difference(prompt(items[0]), prompt(*items))
    assert found is not None
    assert (found.reason, found.shared) == ("input_changed", 1.0)


def test_output_that_a_client_sends_back_is_the_same() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    part = {"type": "output_text", "text": "b", "annotations": [], "logprobs": []}
    kept = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "commentary"}
    kept_call = call | {"id": "fc_1", "status": "completed"}
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
    whole = sealed | {"content": [{"type": "reasoning_text", "text": "a"}], "status": "completed"}
    answer = {"type": "function_call_output", "call_id": "c", "output": "1"}
    question = message("user", "a")
    ours = prompt(question, whole, kept | {"content": [part]}, kept_call, answer)
    theirs = prompt(question, {k: v for k, v in sealed.items() if k != "id"}, message("assistant", "b"), call, answer)
    assert difference(theirs, ours) is None
    assert difference(ours, theirs) is None


REASONING: Final[Json] = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]}
CALL: Final[Json] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT: Final[Json] = {"type": "function_call_output", "call_id": "c", "output": "1"}


def test_reasoning_that_a_new_turn_drops_is_a_change() -> None:
    turn = [message("user", "a"), REASONING, CALL, OUTPUT]
    new = [*turn, message("user", "b")]
    assert reason(prompt(*new), prompt(*turn)) == "input_changed"
    assert reason(prompt(*new), prompt(*turn), reasoning_replay="none") is None
    everything = {"reasoning": {"context": "all_turns"}}
    shown = [
        Prompt(each.response | {"reasoning": each.response["reasoning"] | everything["reasoning"]}, each.items)
        for each in (prompt(*new), prompt(*turn))
    ]
    assert reason(*shown) is None


COMPACTION: Final[Json] = {"type": "compaction", "encrypted_content": "sealed"}


def test_compaction_is_the_reason_if_the_prompt_begins_with_it() -> None:
    turn = [message("user", "a"), message("assistant", "b")]
    compacted = [*turn, COMPACTION, message("user", "c")]
    assert reason(prompt(*compacted), prompt(*turn)) == "context_compacted"
    # Both begin with the same summary.
    assert reason(prompt(*compacted, message("assistant", "d")), prompt(*compacted)) is None
    newest = [*compacted, COMPACTION | {"encrypted_content": "newest"}]
    assert reason(prompt(*newest), prompt(*compacted)) == "context_compacted"
    assert reason(prompt(newest[-1], message("user", "e")), prompt(*newest)) is None
    assert reason(prompt(*compacted, message("assistant", "d")), prompt(*compacted, message("user", "e"))) == (
        "input_changed"
    )


def test_compaction_before_the_first_answer_is_the_reason_although_the_input_is_the_same() -> None:
    assert reason(prompt(), prompt(), compacted=True) == "context_compacted"
    assert reason(prompt(tools=[TOOL]), prompt(), compacted=True) == "tools_changed"
