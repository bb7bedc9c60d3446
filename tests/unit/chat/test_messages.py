"""Items become messages that chat templates accept, in whatever order the items come."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any, Final, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_stack_responses.chat.messages import chat_messages
from llama_stack_responses.chat.profile import InlineThinking, Profile
from llama_stack_responses.items.call_pairs import check_call_pairs
from llama_stack_responses.requests.input_items import parse_input

Json = dict[str, Any]
Role = Literal["user", "system", "developer"]

PLAIN: Final = Profile()


def says(role: Role, *parts: str | Json) -> Json:
    content = [{"type": "input_text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"type": "message", "role": role, "content": content}


def user(*parts: str | Json) -> Json:
    return says("user", *parts)


def answer(*texts: str, phase: str = "final_answer") -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "role": "assistant", "content": content, "phase": phase}


def thought(content: str | None, summary: str | None = None) -> Json:
    item: Json = {"type": "reasoning", "summary": [{"type": "summary_text", "text": summary}] if summary else []}
    return item | ({"content": [{"type": "reasoning_text", "text": content}]} if content else {})


def call(call_id: str, name: str = "f") -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": f'{{"of": "{call_id}"}}'}


def output(call_id: str, value: str | list[Json] = "done") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def chat_call(call_id: str, name: str = "f") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": f'{{"of": "{call_id}"}}'}}


def tool(call_id: str, content: Any = "done") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def called(content: str | None, *call_ids: str, **more: Any) -> Json:
    return {"role": "assistant", "content": content, "tool_calls": [chat_call(each) for each in call_ids], **more}


def chat(*items: Json, profile: Profile = PLAIN, **options: Any) -> list[Json]:
    return chat_messages(items, profile, **options)


# Messages


def test_conversation_becomes_messages() -> None:
    assert chat(user("a"), answer("b"), user("c"), instructions="Be kind.") == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_texts_of_message_become_one_text_with_blank_lines(role: Role) -> None:
    assert chat(says(role, "alpha", "beta", "gamma"))[0]["content"] == "alpha\n\nbeta\n\ngamma"


def test_texts_beside_media_stay_parts() -> None:
    image = {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"}
    types = [part["type"] for part in chat(user("a", image, "b"))[0]["content"]]
    assert types == ["text", "image_url", "text"]


@pytest.mark.parametrize(
    ("detail", "sent"), [("auto", {}), ("low", {"detail": "low"}), ("original", {"detail": "high"})]
)
def test_detail_of_image_is_one_of_the_chat_api(detail: str, sent: Json) -> None:
    image = {"type": "input_image", "image_url": "https://x/y.png", "detail": detail}
    assert chat(user(image))[0]["content"] == [{"type": "image_url", "image_url": {"url": "https://x/y.png"} | sent}]


def test_prompt_cache_breakpoints_stay_on_their_parts() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    [message] = chat(user({"type": "input_text", "text": "a", **mark}))
    assert message["content"] == [{"type": "text", "text": "a", **mark}]
    image = {"type": "input_image", "image_url": "https://x/y.png", **mark}
    [message] = chat(user("a", image))
    assert message["content"][1] == {"type": "image_url", "image_url": {"url": "https://x/y.png"}, **mark}


def test_refusal_becomes_assistant_message() -> None:
    refused = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert chat(user("a"), refused)[1] == {"role": "assistant", "content": "No."}


def test_consecutive_assistant_messages_are_joined() -> None:
    items = [user("a"), answer("Let me see.", phase="commentary"), answer("b", "c")]
    assert chat(*items)[1:] == [{"role": "assistant", "content": "Let me see.\n\nbc"}]


def test_empty_assistant_messages_are_left_out() -> None:
    assert chat(user("a"), answer(""), answer(), user("b")) == chat(user("a"), user("b"))


def test_items_are_not_modified() -> None:
    items = [user("a"), thought("hm"), call("1"), output("1", [{"type": "input_text", "text": "x"}]), answer("b")]
    before = deepcopy(items)
    chat(*items, profile=Profile(reasoning_replay="think_tags"))
    assert items == before


# Calls


def test_consecutive_calls_join_one_message_with_text() -> None:
    items = [user("a"), answer("Look."), call("1"), call("2"), output("1"), output("2"), answer("b")]
    assert chat(*items)[1:] == [
        called("Look.", "1", "2"),
        tool("1"),
        tool("2"),
        {"role": "assistant", "content": "b"},
    ]


def test_calls_of_several_rounds_stay_separate() -> None:
    items = [user("a"), call("1"), output("1"), call("2"), output("2")]
    assert chat(*items)[1:] == [called(None, "1"), tool("1"), called(None, "2"), tool("2")]


@pytest.mark.parametrize(
    "order",
    [
        [call("1"), call("2"), output("2", "second"), output("1", "first")],
        [call("1"), call("2"), user("wait"), output("1", "first"), output("2", "second")],
        [call("1"), call("2"), says("system", "wait"), output("2", "second"), output("1", "first")],
        [call("1"), call("2"), answer(""), output("2", "second"), output("1", "first")],
    ],
)
def test_outputs_follow_their_calls_directly(order: list[Json]) -> None:
    assert chat(user("a"), *order)[1:4] == [called(None, "1", "2"), tool("1", "first"), tool("2", "second")]


def test_late_output_does_not_split_later_messages() -> None:
    items = [call("1"), user("wait"), answer("a"), output("1"), answer("b")]
    assert chat(*items) == [
        called(None, "1"),
        tool("1"),
        {"role": "user", "content": "wait"},
        {"role": "assistant", "content": "a\n\nb"},
    ]


NOTE: Final = "(The call was interrupted: it has no output, and may have run in part.)"


@pytest.mark.parametrize(
    "items",
    [
        [call("a"), call("b"), output("b"), user("no")],
        [call("a"), call("b"), user("no"), output("b")],
        [call("a"), call("b"), says("system", "interrupted"), user("no"), output("b")],
    ],
)
def test_call_without_output_gets_a_note_after_the_calls_of_its_round(items: list[Json]) -> None:
    sent = [each for each in chat(user("hi"), *items) if each["role"] != "system"]
    assert sent[1:] == [called(None, "a", "b"), tool("a", NOTE), tool("b"), {"role": "user", "content": "no"}]


def test_repeated_call_ids_of_interrupted_calls_are_matched() -> None:
    sent = chat(call("a"), user("no"), call("a"), output("a", "1"), call("a"), user("stop"))
    assert [each["content"] for each in sent if each["role"] == "tool"] == [NOTE, "1", NOTE]


def test_repeated_call_ids_across_turns_are_matched() -> None:
    items = [call("1"), output("1", "first"), answer("a"), user("b"), call("1"), output("1", "second")]
    assert [message["content"] for message in chat(*items) if message["role"] == "tool"] == ["first", "second"]


def test_second_output_of_call_is_not_used_for_later_call() -> None:
    items = [call("1"), output("1", "first"), output("1", "again"), answer("a"), call("1"), output("1", "second")]
    assert [message["content"] for message in chat(*items) if message["role"] == "tool"] == ["first", "second"]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"a": [1]}', '{"a": [1]}'),
        ("", "{}"),
        (" \n", "{}"),
        ('{"city": "Os', '{"invalid_arguments": "{\\"city\\": \\"Os"}'),
        ("[1]", '{"invalid_arguments": "[1]"}'),
        ('{"a": NaN}', '{"invalid_arguments": "{\\"a\\": NaN}"}'),
        ("[" * 100_000, '{"invalid_arguments": "' + "[" * 100_000 + '"}'),
    ],
    ids=["an object", "nothing", "blanks", "cut off", "a list", "no number", "too deep"],
)
def test_invalid_arguments_are_wrapped_in_object(arguments: str, sent: str) -> None:
    messages = chat(user("q"), call("1") | {"arguments": arguments}, output("1"))
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == sent


# Reasoning

THINKING: Final = [user("a"), thought("old"), answer("b"), user("c"), thought("new"), call("1"), output("1")]


def replayed(profile: Profile, *, all_reasoning: bool = False, field: str = "reasoning_content") -> list[str | None]:
    """Return the reasoning of each assistant message."""
    messages = chat(*THINKING, profile=profile, all_reasoning=all_reasoning)
    return [message.get(field) for message in messages if message["role"] == "assistant"]


def test_reasoning_since_last_user_message_is_sent() -> None:
    assert replayed(PLAIN) == [None, "new"]


def test_all_reasoning_is_sent_if_requested() -> None:
    assert replayed(PLAIN, all_reasoning=True) == ["old", "new"]


def test_reasoning_is_sent_in_field_of_profile() -> None:
    assert replayed(Profile(reasoning_replay="reasoning"), field="reasoning") == [None, "new"]
    assert replayed(Profile(reasoning_replay="reasoning")) == [None, None]


def test_reasoning_is_not_sent_if_profile_excludes_it() -> None:
    profile = Profile(reasoning_replay="none")
    assert (
        replayed(profile, all_reasoning=True)
        == replayed(profile, all_reasoning=True, field="reasoning")
        == [None, None]
    )


@pytest.mark.parametrize(
    ("tags", "start", "end"),
    [(None, "<think>", "</think>"), (InlineThinking(open="[T]", close="[/T]"), "[T]", "[/T]")],
)
def test_reasoning_is_sent_between_think_tags(tags: InlineThinking | None, start: str, end: str) -> None:
    profile = Profile(reasoning_replay="think_tags", inline_thinking=tags)
    [_, first, _, second, _] = chat(*THINKING, profile=profile, all_reasoning=True)
    assert first["content"] == f"{start}\nold\n{end}\n\nb"
    assert second["content"] == f"{start}\nnew\n{end}\n\n"


def test_summary_replaces_missing_reasoning() -> None:
    items = [thought("long", "short"), call("1"), output("1"), thought(None, "short"), call("2"), output("2")]
    assert [message.get("reasoning_content") for message in chat(*items)[::2]] == ["long", "short"]


def test_reasoning_without_text_adds_no_field() -> None:
    assert chat(user("a"), thought(None), answer("b"))[1] == {"role": "assistant", "content": "b"}


def test_reasoning_alone_adds_no_message() -> None:
    assert [message["role"] for message in chat(user("a"), thought("hm"), user("b"), thought("hm"))] == ["user", "user"]


# System messages

SYSTEMS: Final = [says("developer", "D1"), says("system", "S1"), user("a"), says("developer", "D2"), user("b")]


def systems(profile: Profile) -> list[tuple[str, str]]:
    messages = chat(*SYSTEMS, profile=profile, instructions="I")
    assert [message["content"] for message in messages if message["role"] == "user"] == ["a", "b"]
    return [(message["role"], message["content"]) for message in messages]


def test_leading_system_messages_are_merged() -> None:
    assert systems(Profile(system_messages="merge_leading")) == [
        ("system", "I\n\nD1\n\nS1"),
        ("user", "a"),
        ("system", "D2"),
        ("user", "b"),
    ]


def test_all_system_messages_are_merged() -> None:
    expected = [("system", "I\n\nD1\n\nS1\n\nD2"), ("user", "a"), ("user", "b")]
    assert systems(Profile(system_messages="merge_all")) == expected


def test_system_messages_are_kept() -> None:
    assert systems(Profile(system_messages="keep", developer_role="developer")) == [
        ("system", "I"),
        ("developer", "D1"),
        ("system", "S1"),
        ("user", "a"),
        ("developer", "D2"),
        ("user", "b"),
    ]


def test_single_later_system_message_is_moved_to_front() -> None:
    messages = chat(user("a"), says("system", "S"), profile=Profile(system_messages="merge_all"))
    assert [message["role"] for message in messages] == ["system", "user"]


# Images, files, audio

IMAGE: Final[Json] = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
CHAT_IMAGE: Final[Json] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
FILE: Final[Json] = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}
AUDIO: Final[Json] = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}


def content(part: Json, profile: Profile = PLAIN) -> Json:
    [message] = chat(user("see", part), profile=profile)
    text, media = message["content"]
    assert text == {"type": "text", "text": "see"}
    return dict(media)


def test_image_is_mapped_with_detail() -> None:
    assert content(IMAGE) == CHAT_IMAGE
    assert content(IMAGE | {"detail": "low"})["image_url"]["detail"] == "low"


def test_image_alone_is_list_of_parts() -> None:
    assert chat(user(IMAGE))[0]["content"] == [CHAT_IMAGE]


def test_file_is_mapped() -> None:
    expected = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}
    assert content(FILE) == {"type": "file", "file": expected}


def test_audio_is_mapped() -> None:
    assert content(AUDIO) == {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}


def test_media_of_developer_follow_in_user_message() -> None:
    assert chat(says("developer", "Like this:", IMAGE), user("a")) == [
        {"role": "system", "content": "Like this:\n\n(see the attachment in the next message)"},
        {"role": "user", "content": [CHAT_IMAGE]},
        {"role": "user", "content": "a"},
    ]


def test_text_parts_of_tool_output_are_joined() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert chat(call("1"), output("1", parts))[1] == tool("1", "a\nb")
    assert chat(call("1"), output("1", []))[1] == tool("1", "")


def test_media_of_tool_outputs_follow_in_user_message() -> None:
    seen: list[Json] = [{"type": "input_text", "text": "a"}, IMAGE]
    items = [call("1"), call("2"), output("1", seen), output("2", [IMAGE])]
    _, first, second, after = chat(*items)
    assert first["content"] == "a\n(see the attachment in the next message)"
    assert second["content"] == "(see the attachment in the next message)"
    assert after == {"role": "user", "content": [CHAT_IMAGE, CHAT_IMAGE]}


def test_media_stay_in_tool_message_if_profile_allows() -> None:
    seen: list[Json] = [{"type": "input_text", "text": "a"}, IMAGE]
    messages = chat(call("1"), output("1", seen), profile=Profile(tool_media="tool_message"))
    assert messages[1:] == [tool("1", [{"type": "text", "text": "a"}, CHAT_IMAGE])]


# Arbitrary conversations

STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(["user", "system", "answer", "thought", "call", "call", "output", "output", "output again"]),
        st.integers(0, 3),
    ),
    max_size=16,
)
PROFILES: Final = st.builds(
    Profile,
    system_messages=st.sampled_from(["keep", "merge_leading", "merge_all"]),
    reasoning_replay=st.sampled_from(["reasoning_content", "reasoning", "think_tags", "none"]),
    tool_media=st.sampled_from(["tool_message", "user_message"]),
)


def conversation(steps: Sequence[tuple[str, int]]) -> list[Json]:
    """Return a valid list of items: every call id is unique among open calls, and every call is answered in the end."""
    items: list[Json] = []
    opened: list[str] = []
    answered: set[str] = set()
    for number, (step, which) in enumerate(steps):
        call_id = str(which)
        if step == "call" and call_id not in opened:
            opened.append(call_id)
            items.append(call(call_id))
        elif step == "output" and opened:
            call_id = opened.pop(which % len(opened))
            answered.add(call_id)
            items.append(output(call_id, f"output of {call_id}"))
        elif step == "output again" and call_id in answered - set(opened):
            items.append(output(call_id, "again"))
        elif step == "answer":
            items.append(answer(["", f"text {number}"][which % 2]))
        elif step == "thought":
            items.append(thought([None, f"thought {number}"][which % 2], [None, "summary"][which // 2]))
        elif step in ("user", "system"):
            items.append(says("user" if step == "user" else "system", f"words {number}"))
    return items + [output(each, f"output of {each}") for each in opened]


@settings(max_examples=200)
@given(steps=STEPS, profile=PROFILES, all_reasoning=st.booleans())
def test_arbitrary_conversations_fit_chat_templates(
    steps: list[tuple[str, int]], profile: Profile, all_reasoning: bool
) -> None:
    items = conversation(steps)
    assert parse_input(items) == items
    check_call_pairs(items)
    messages = chat_messages(items, profile, all_reasoning=all_reasoning)
    assert_calls_are_answered_at_once(messages)
    for before, after in pairwise(messages):
        assert (before["role"], after["role"]) != ("assistant", "assistant")
    assert all(message["content"] or message.get("tool_calls") for message in messages)
    users = [item["content"][0]["text"] for item in items if item.get("role") == "user"]
    assert [message["content"] for message in messages if message["role"] == "user"] == users
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    assert [each["id"] for message in messages for each in message.get("tool_calls", ())] == calls
    joined = "".join(message["content"] or "" for message in messages if message["role"] == "assistant")
    texts = [item["content"][0]["text"] for item in items if item.get("role") == "assistant"]
    assert [text for text in texts if text not in joined] == []


@given(steps=STEPS, profile=PROFILES)
def test_arbitrary_conversations_with_interrupted_calls_fit_chat_templates(
    steps: list[tuple[str, int]], profile: Profile
) -> None:
    items = [item for item in conversation(steps) if item["type"] != "function_call_output" or item["call_id"] != "1"]
    assert_calls_are_answered_at_once(chat_messages(items, profile), interrupted="1")


def assert_calls_are_answered_at_once(messages: Sequence[Json], interrupted: str = "") -> None:
    """Assert that the outputs of each assistant message's calls follow it directly, in order, and are nowhere else.

    The call `interrupted` has the note as its output.
    """
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        assert message["role"] != "tool"
        for each in message.get("tool_calls", ()):
            following = messages[position]
            assert following == tool(each["id"], NOTE if each["id"] == interrupted else f"output of {each['id']}")
            position += 1
