"""The JSON of an answer that was asked for in words, whatever is around it."""

from __future__ import annotations

import json
from itertools import product
from typing import Final

import pytest

from llama_stack_responses.chat.adaptation.enforced import Expectation
from llama_stack_responses.chat.adaptation.json_answers import json_texts
from llama_stack_responses.chat.adaptation.schema_task import invalid
from llama_stack_responses.generation.held_answer import HeldAnswer, UnfitAnswer
from llama_stack_responses.stream.deltas import Finish, Text
from llama_stack_responses.stream.usage import Usage

OBJECT: Final = '{"a": "x"}'
SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


async def check(text: str, schema: dict[str, object]) -> str:
    return invalid(text, schema)


async def taken(text: str) -> str:
    """Return the text that a client gets of an answer."""
    held = HeldAnswer(Expectation(schema=SCHEMA), check, Usage())
    deltas = (Text(text), Finish("stop"))
    passed = [each for delta in deltas async for each in held.feed(delta)]
    return "".join(each.text for each in passed if isinstance(each, Text))


BEFORE: Final = {
    "nothing": "",
    "a byte order mark": "\ufeff",
    "words": "Here it is: ",
    "reasoning": '<think>\n{"a": 1}</think>\n',
    "reasoning without its opening tag": 'hm, {"a": 1}?</think>\n\n',
    "reasoning in other tags": "<thinking>{}</thinking>",
    "reasoning of Mistral": "[THINK]hm[/THINK]",
    "reasoning of Kimi": "\u25c1think\u25b7hm\u25c1/think\u25b7",
    "reasoning of Gemma": "<|channel>thought\nhm<channel|>",
    "a channel": "<|channel|>final<|message|>",
    "channels": "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>",
    "channels without marks": 'analysis{"a": 1}assistantfinal',
}
AROUND: Final = {
    "nothing": "{}",
    "a fence": "```json\n{}\n```",
    "a fence in one line": "```{}```",
    "a fence with words": "Here:\n```json\n{}\n```\nDone.",
    "two fences": "First ```json\n[1]\n``` and then\n```JSON\r\n{}\r\n```",
    "half a fence": "```json\n{}",
    "words behind": "{} That is it.",
    "marks behind": "{}<|return|>",
    "an end behind": "{}\n<|im_end|></s>\n",
}


@pytest.mark.parametrize(("before", "around"), [*product(BEFORE, AROUND)])
async def test_json_is_found_in_an_answer(before: str, around: str) -> None:
    assert await taken(BEFORE[before] + AROUND[around].replace("{}", OBJECT)) == OBJECT


@pytest.mark.parametrize("value", ["</think>", "```", "```json\n{}\n```", "<|message|>", "[1]", "}{", "\ufeff"])
async def test_marks_within_the_json_stay(value: str) -> None:
    text = json.dumps({"a": value}, ensure_ascii=False)
    for around in ("{}", "```json\n{}\n```"):
        assert json.loads(await taken(around.replace("{}", text))) == {"a": value}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1}', "1 is not of type 'string'"),
        ('[{"a": "x"}]', "is not of type 'object'"),
        ('hm</think>{"b": 1}', "'a' is a required property"),
        (f"{OBJECT} or {OBJECT}", "it is not JSON"),
        ("I do not know.", "it is not JSON"),
        ("", "it is not JSON"),
        ("</think>", "it is not JSON"),
        ("``` ```", "it is not JSON"),
    ],
)
async def test_answer_without_one_valid_json_is_unfit(text: str, problem: str) -> None:
    with pytest.raises(UnfitAnswer, match=problem) as caught:
        await taken(text)
    assert caught.value.text == text


def test_parts_of_a_long_answer_are_few() -> None:
    text = "```{[</think><|message|>" * 10_000
    assert len(json_texts(text)) <= 10
