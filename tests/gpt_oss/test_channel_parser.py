"""The model's turns as the deltas of a chat answer."""

import json

import pytest

from llama_stack_gpt_oss.channel_parser import CallArguments, CallOpened, ChannelParser, Content, Delta, Reasoning
from llama_stack_gpt_oss.tools import Tool, read_tools
from llama_stack_gpt_oss.vocabulary import Vocabulary

from .support.lessons import WEATHER, answer, call, call_reasoning

TOOLS = read_tools(
    [
        WEATHER,
        {
            "type": "function",
            "function": {
                "name": "python",
                "parameters": {"type": "object", "properties": {"source": {"type": "string"}}},
            },
        },
        {"type": "function", "function": {"name": "browser.search"}},
    ]
)


def reply(vocabulary: Vocabulary, text: str, tools: tuple[Tool, ...] = TOOLS) -> tuple[list[Delta], ChannelParser]:
    created = ChannelParser(vocabulary, tools)
    tokens = vocabulary.harmony.encode(text, allowed_special="all")
    return [delta for token in tokens for delta in created.feed(token)] + list(created.finish()), created


def joined(deltas: list[Delta], kind: type[Reasoning | Content | CallArguments]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, kind))


def test_reasoning_and_answer_are_separated(vocabulary: Vocabulary) -> None:
    deltas, created = reply(vocabulary, answer("I think.", "So it is."))
    assert (joined(deltas, Reasoning), joined(deltas, Content)) == ("I think.", "So it is.")
    # The words of the reasoning and the token that ends it, without the headers.
    assert created.reasoning_tokens == len(vocabulary.encode("I think.")) + 1
    assert created.tokens == len(vocabulary.harmony.encode(answer("I think.", "So it is."), allowed_special="all"))


def test_only_answer_tokens_are_visible(vocabulary: Vocabulary) -> None:
    created = ChannelParser(vocabulary, TOOLS)
    seen = []
    for token in vocabulary.harmony.encode(answer("x", "So \U0001f600"), allowed_special="all"):
        list(created.feed(token))
        if created.visible:
            seen.append(token)
    assert vocabulary.harmony.decode(seen) == "So \U0001f600"


def test_call_is_opened_with_name_and_arguments(vocabulary: Vocabulary) -> None:
    deltas, created = reply(vocabulary, call("Oslo"))
    (opened,) = [delta for delta in deltas if isinstance(delta, CallOpened)]
    assert (opened.index, opened.name) == (0, "get_weather")
    assert opened.id.startswith("call_")
    assert joined(deltas, CallArguments) == '{"city":"Oslo"}'
    assert joined(deltas, Reasoning) == call_reasoning("Oslo")
    assert (created.calls, joined(deltas, Content)) == (1, "")


def test_two_calls_are_separated(vocabulary: Vocabulary) -> None:
    deltas, _ = reply(vocabulary, f"{call('Oslo')}<|start|>assistant{call('Rome')}")
    opened = [delta for delta in deltas if isinstance(delta, CallOpened)]
    assert [one.index for one in opened] == [0, 1]
    assert opened[0].id != opened[1].id
    second = [delta.text for delta in deltas if isinstance(delta, CallArguments) and delta.index == 1]
    assert "".join(second) == '{"city":"Rome"}'


@pytest.mark.parametrize("channel", ["analysis", "commentary"])
def test_python_code_becomes_argument_of_python_tool(vocabulary: Vocabulary, channel: str) -> None:
    code = 'print("a\\n")\n# é\n'
    deltas, _ = reply(vocabulary, f"<|channel|>{channel} to=python code<|message|>{code}<|call|>")
    assert json.loads(joined(deltas, CallArguments)) == {"source": code}


@pytest.mark.parametrize("ending", ["", "<|call|>"])
def test_cut_off_python_code_is_valid_json(vocabulary: Vocabulary, ending: str) -> None:
    deltas, _ = reply(vocabulary, f"<|channel|>analysis to=python code<|message|>x = '{ending}")
    assert json.loads(joined(deltas, CallArguments)) == {"source": "x = '"}


@pytest.mark.parametrize("channel", ["analysis", "commentary"])
def test_browser_calls_are_read_on_either_channel(vocabulary: Vocabulary, channel: str) -> None:
    deltas, _ = reply(vocabulary, f'<|channel|>{channel} to=browser.search code<|message|>{{"query":"x"}}<|call|>')
    assert [delta.name for delta in deltas if isinstance(delta, CallOpened)] == ["browser.search"]
    assert joined(deltas, CallArguments) == '{"query":"x"}'


@pytest.mark.parametrize(
    ("recipient", "name"),
    [
        ("functions.get_weather", "get_weather"),
        ("get_weather", "get_weather"),
        ("functions.made_up", "made_up"),
        ("functions.", None),
        ("}{", None),
        ("browser.close", None),
        ("assistant", None),
    ],
)
def test_recipient_selects_called_tool(vocabulary: Vocabulary, recipient: str, name: str | None) -> None:
    deltas, _ = reply(vocabulary, f"<|channel|>commentary to={recipient} <|constrain|>json<|message|>{{}}<|call|>")
    assert [delta.name for delta in deltas if isinstance(delta, CallOpened)] == ([name] if name else [])


def test_preamble_and_answer_are_separate_paragraphs(vocabulary: Vocabulary) -> None:
    text = "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant<|channel|>final<|message|>Done.<|return|>"
    deltas, _ = reply(vocabulary, text)
    assert joined(deltas, Content) == "Wait.\n\nDone."


def test_text_without_harmony_is_answer(vocabulary: Vocabulary) -> None:
    deltas, _ = reply(vocabulary, " Just text.")
    assert joined(deltas, Content) == " Just text."
