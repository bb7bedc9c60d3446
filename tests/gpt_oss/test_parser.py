"""The model's output, token by token: compared with openai-harmony for valid Harmony, and no exception otherwise."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai_harmony import HarmonyError, Message, Role, StreamableParser

from llama_stack_gpt_oss.parser import Closed, Event, Header, Parser, Text
from llama_stack_gpt_oss.vocabulary import Vocabulary

from .support.lessons import answer, call
from .support.vocabulary import SPECIAL

AT_ANY_PACE = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
TURNS = (
    answer("Think. 東京 \U0001f600", "It is\n\n*so*: é\U0001f468‍\U0001f469‍\U0001f467."),
    call("Paris"),
    "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant to=functions.f<|channel|>commentary"
    ' <|constrain|>json<|message|>{"a": [1, 2]}<|call|>',
    "<|channel|>analysis to=browser.search code<|message|>{}<|call|>",
    "<|channel|>analysis to=python code<|message|>print('x')\n<|call|>",
    "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|><|return|>",
)


def encoded(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.harmony.encode(text, allowed_special="all")


def parsed(vocabulary: Vocabulary, tokens: Sequence[int]) -> list[Event]:
    parser = Parser(vocabulary)
    events = [event for token in tokens for event in parser.feed(token)]
    return events + list(parser.finish())


def messages(events: Sequence[Event]) -> list[tuple[str, str | None, str]]:
    """Return (channel, recipient, text) of each message."""
    created: list[tuple[str, str | None, str]] = []
    for event in events:
        if isinstance(event, Header):
            created.append((event.channel, event.recipient, ""))
        elif isinstance(event, Text):
            created[-1] = (*created[-1][:2], created[-1][2] + event.text)
    return created


def judged(message: Message) -> tuple[str | None, str | None, str]:
    return message.channel, message.recipient, "".join(getattr(part, "text", "") for part in message.content)


@pytest.mark.parametrize("text", TURNS)
def test_parser_matches_openai_harmony_at_every_token(vocabulary: Vocabulary, text: str) -> None:
    tokens = encoded(vocabulary, text)
    ours, theirs = Parser(vocabulary), StreamableParser(vocabulary.harmony, Role.ASSISTANT)
    events: list[Event] = []
    for token in tokens:
        events += ours.feed(token)
        theirs.process(token)
        whole = [judged(message) for message in theirs.messages]
        if theirs.current_channel is not None and isinstance(events[-1], Header | Text):
            whole.append((theirs.current_channel, theirs.current_recipient, theirs.current_content))
        assert messages(events) == whole
    assert events + list(ours.finish()) == events


@pytest.mark.parametrize("text", TURNS)
def test_turn_cut_anywhere_keeps_earlier_text(vocabulary: Vocabulary, text: str) -> None:
    tokens = encoded(vocabulary, text)
    whole = messages(parsed(vocabulary, tokens))
    for cut in range(len(tokens)):
        for number, (channel, recipient, output) in enumerate(messages(parsed(vocabulary, tokens[:cut]))):
            assert (channel, recipient) == whole[number][:2]
            # A character cut in the middle is shown as a replacement character.
            assert whole[number][2].startswith(output.rstrip("�"))


words = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
channels = st.sampled_from(["analysis", "commentary", "final"])


@settings(max_examples=60, suppress_health_check=AT_ANY_PACE)
@given(st.lists(st.tuples(channels, words), min_size=1, max_size=4))
def test_arbitrary_text_matches_openai_harmony(vocabulary: Vocabulary, turn: list[tuple[str, str]]) -> None:
    tokens: list[int] = []
    for number, (channel, text) in enumerate(turn):
        opening = "<|start|>assistant" if number else ""
        tokens += encoded(vocabulary, f"{opening}<|channel|>{channel}<|message|>")
        tokens += [*vocabulary.encode(text), SPECIAL["<|end|>"]]
    theirs = vocabulary.harmony.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
    assert messages(parsed(vocabulary, tokens)) == [judged(message) for message in theirs]


@settings(max_examples=200, suppress_health_check=AT_ANY_PACE)
@given(st.lists(st.sampled_from(sorted(SPECIAL.values())) | st.integers(0, 201_200), max_size=30))
def test_arbitrary_tokens_give_messages_that_open_and_close(vocabulary: Vocabulary, tokens: list[int]) -> None:
    open_ = False
    for event in parsed(vocabulary, tokens):
        if isinstance(event, Header):
            assert not open_
            open_ = True
        else:
            assert open_
            open_ = not isinstance(event, Closed)
    assert not open_


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Hello there.", [("final", None, " Hello there.")]),
        ("<|message|>Hi<|return|>", [("final", None, "Hi")]),
        (
            "<|channel|>final<|message|>a<|start|>assistant<|channel|>final<|message|>b",
            [("final", None, c) for c in "ab"],
        ),
        ("<|channel|>final<|message|>a<|channel|>final<|message|>b", [("final", None, "a"), ("final", None, "b")]),
        (
            "<|channel|>analysis<|message|>a<|end|>assistant<|channel|>final<|message|>b",
            [("analysis", None, "a"), ("final", None, "b")],
        ),
        ("<|channel|>commentary to=<|message|>x<|call|>", [("commentary", None, "x")]),
        (
            "<|channel|>commentary to=functions.f}{ to=g json<|message|>x<|call|>",
            [("commentary", "functions.f}{", "x")],
        ),
        ("<|channel|>analysis", []),
        (" to=functions.f", []),
        ("<|end|><|end|><|return|>", []),
    ],
)
def test_invalid_harmony_is_read_as_far_as_possible(
    vocabulary: Vocabulary, text: str, expected: list[tuple[str, str | None, str]]
) -> None:
    assert messages(parsed(vocabulary, encoded(vocabulary, text))) == expected


def test_openai_harmony_fails_on_some_invalid_harmony(vocabulary: Vocabulary) -> None:
    """openai-harmony takes a constraint for a recipient and fails on a header cut short, hence this parser."""
    parser = StreamableParser(vocabulary.harmony, Role.ASSISTANT)
    constrained = "<|channel|>final <|constrain|>json<|message|>{}<|return|>"
    for token in encoded(vocabulary, constrained):
        parser.process(token)
    assert parser.messages[0].recipient == "<|constrain|>json"
    assert messages(parsed(vocabulary, encoded(vocabulary, constrained))) == [("final", None, "{}")]
    parser = StreamableParser(vocabulary.harmony, Role.ASSISTANT)
    *fine, strange = encoded(vocabulary, "<|channel|>analysis<|message|>a<|end|>assistant")
    for token in fine:
        parser.process(token)
    with pytest.raises(HarmonyError):
        parser.process(strange)
