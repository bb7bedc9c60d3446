"""Prompts are tokenised in pieces, and what holds Python's lock gets little text at a time."""

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai_harmony import (
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    Message,
    Role,
    SystemContent,
    ToolDescription,
)

from llama_stack_gpt_oss import prompt, tool_descriptions
from llama_stack_gpt_oss.errors import InvalidRequest
from llama_stack_gpt_oss.harmony import Chat, render
from llama_stack_gpt_oss.prompt import Prompt
from llama_stack_gpt_oss.tool_descriptions import MAX_TOOL_CHARACTERS
from llama_stack_gpt_oss.tools import read_tools
from llama_stack_gpt_oss.vocabulary import Vocabulary

TODAY = date(2026, 3, 4)
CONTEXT = 131_072
SENTENCE = "The quick brown fox jumps over the lazy dog, and then it sleeps for 12 hours.\n"
SYLLABLES = [
    "a", "b", "Z", "Ab", "\u00e9", "\u0301", "'s", "'RE", "1", "22", " ", "  ", "\n", "\r\n", "\t", "-", "/", "//", "_",
    "\u3042", "\u3002", "\U0001f600", "\x1c", "\u2028", "\u00bd", "\u01c5", "\u02b0",
]  # fmt: skip


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the messages that Harmony's renderer gets, in characters of JSON."""
    lengths: list[int] = []
    real = HarmonyEncoding.render

    def recorded(self: HarmonyEncoding, message: Message, *options: Any) -> list[int]:
        lengths.append(len(message.to_json()))
        return real(self, message, *options)

    monkeypatch.setattr(HarmonyEncoding, "render", recorded)
    return lengths


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the texts that are tokenised at once."""
    lengths: list[int] = []
    real = Vocabulary.encode

    def recorded(self: Vocabulary, text: str) -> list[int]:
        lengths.append(len(text))
        return real(self, text)

    monkeypatch.setattr(Vocabulary, "encode", recorded)
    return lengths


@pytest.fixture(scope="module")
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt, "_PIECE", 1)
        patch.setattr(prompt, "_SEARCHED", 3)
        yield


def tool(name: str, description: str = "", **parameters: Any) -> Mapping[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def described(name: str, text: str) -> Mapping[str, Any]:
    return tool(name, text, type="object", properties={"a": {"type": "string", "description": text}})


@pytest.mark.usefixtures("small_pieces")
@given(st.lists(st.sampled_from(SYLLABLES), max_size=60))
@example(["It's"])  # one token
def test_tokens_of_pieces_are_those_of_the_whole(vocabulary: Vocabulary, syllables: list[str]) -> None:
    text = "".join(syllables)
    made = Prompt(vocabulary, CONTEXT, "messages")
    made.add_text(text)
    assert made.tokens == vocabulary.harmony.encode(text, disallowed_special=())


@pytest.mark.parametrize(
    "text",
    ["a" * 60_000, "aBcD" * 6000, "\u3042" * 20_000, " " * 25_000, "-" * 25_000, "_\x1c" * 13_000, "e\u0301" * 9000],
)
def test_long_word_is_tokenised(vocabulary: Vocabulary, text: str) -> None:
    made = Prompt(vocabulary, CONTEXT, "messages")
    made.add_text(text)
    assert b"".join(vocabulary.bytes_of(token) or b"" for token in made.tokens).decode() == text


def test_prompt_is_that_of_harmony(vocabulary: Vocabulary) -> None:
    """Tools are rendered in groups, and messages in parts."""
    tools = [described(f"tool_{number}", SENTENCE.strip() * (number % 7)) for number in range(100)]
    given = [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": SENTENCE}]
    functions = [
        ToolDescription.new(each["function"]["name"], each["function"]["description"], each["function"]["parameters"])
        for each in tools
    ]
    whole = Conversation.from_messages(
        [
            Message.from_role_and_content(
                Role.SYSTEM, SystemContent.new().with_conversation_start_date(TODAY.isoformat())
            ),
            Message.from_role_and_content(
                Role.DEVELOPER, DeveloperContent.new().with_instructions("Be brief.\n").with_function_tools(functions)
            ),
            Message.from_role_and_content(Role.USER, SENTENCE),
        ]
    )
    expected = vocabulary.harmony.render_conversation_for_completion(whole, Role.ASSISTANT)
    assert render(vocabulary, Chat(given, TODAY, tools=read_tools(tools)), CONTEXT) == expected


@pytest.mark.parametrize("count", [1, 10_000])
def test_huge_prompt_is_refused_after_a_bounded_part_of_it(
    vocabulary: Vocabulary, rendered: list[int], tokenised: list[int], count: int
) -> None:
    """20 MB in one message, or in many."""
    messages = [{"role": "user", "content": SENTENCE * (250_000 // count)}] * count
    with pytest.raises(InvalidRequest, match=r"has at least 1\d\d,\d\d\d tokens") as refused:
        render(vocabulary, Chat(messages, TODAY), CONTEXT)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
    assert max(rendered) < 1000
    assert len(rendered) == 2  # the system message, and the header of all others
    assert max(tokenised) < 70_000
    assert sum(tokenised) < 1_000_000


def test_many_tools_are_rendered_in_groups(vocabulary: Vocabulary, rendered: list[int]) -> None:
    tools = read_tools([described(f"tool_{number}", SENTENCE) for number in range(1000)])
    render(vocabulary, Chat([], TODAY, tools=tools), CONTEXT)
    assert max(rendered) < 10_000


@pytest.mark.parametrize(
    ("tools", "sentence"),
    [
        ([described("f", SENTENCE * 500)], r"The tool 'f' has more than 65,536 characters: shorten"),
        ([tool("f", properties={"a": {"default": "x " * MAX_TOOL_CHARACTERS}})], "The tool 'f' has more than"),
        ([tool("f", properties={"a": {"default": [1.5] * MAX_TOOL_CHARACTERS}})], "The tool 'f' has more than"),
        ([described(f"f{n}", SENTENCE * 300) for n in range(30)], r"The tools have more than 1,048,576 characters"),
        ([described("f", "x" * 4000)], "too many characters without a break"),
        ([tool("f", properties={"a": {"enum": ["-" * 4000]}})], "too many characters without a break"),
        ([described("f", "\ud83d")], "cannot be written as a gpt-oss prompt"),
    ],
)
def test_tools_that_hold_the_lock_for_long_are_refused(
    vocabulary: Vocabulary, rendered: list[int], tools: list[Mapping[str, Any]], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence) as refused:
        render(vocabulary, Chat([], TODAY, tools=read_tools(tools)), CONTEXT)
    assert refused.value.param == "tools"
    assert max(rendered) < 2 * MAX_TOOL_CHARACTERS


def test_small_group_limit_is_used(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text does not depend on the groups."""
    chat = Chat([], TODAY, tools=read_tools([described(f"tool_{number}", SENTENCE) for number in range(9)]))
    expected = render(vocabulary, chat, CONTEXT)
    for together in (1, 1 << 20):
        monkeypatch.setattr(tool_descriptions, "_TOGETHER", together)
        assert render(vocabulary, chat, CONTEXT) == expected
