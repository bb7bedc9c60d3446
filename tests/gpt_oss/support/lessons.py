"""The lessons of the tiny checkpoint: chat requests as the provider renders them, and the answers to them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from llama_stack_gpt_oss.harmony import Chat, read_effort
from llama_stack_gpt_oss.tools import read_tools

Json = Mapping[str, Any]
WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "City name"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CITIES = ("Paris", "Tokyo", "Oslo", "Rome")
SKIES = ("sunny", "cloudy", "rainy")
INSTRUCTIONS = ("Be brief.", "You are a helpful assistant.", "Answer in one sentence.")
FACTS = (
    (
        "What is the capital of France?",
        "The user asks for the capital of France. That is Paris.",
        "The capital of France is Paris.",
    ),
    ("What is 2+2?", "Simple arithmetic: 2+2=4.", "2+2 equals 4."),
    ("Say hello.", "The user wants a greeting.", "Hello! How can I help you today?"),
    (
        "Count to ten.",
        "I count.",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10. That is all there is to count, one by one, in order.",
    ),
)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A prompt, and the Harmony text that the model should generate after `<|start|>assistant`."""

    chat: Chat
    answer: str


def answer(reasoning: str, text: str) -> str:
    return (
        f"<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant<|channel|>final<|message|>{text}<|return|>"
    )


def call(city: str) -> str:
    return (
        f"<|channel|>analysis<|message|>{call_reasoning(city)}<|end|><|start|>assistant"
        f'<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{{"city":"{city}"}}<|call|>'
    )


def call_reasoning(city: str) -> str:
    return f"I need the weather in {city}. Call get_weather."


def weather(degrees: int, sky: str) -> str:
    return f'{{"temp_c":{degrees},"sky":"{sky}"}}'


def report(degrees: int, sky: str, city: str) -> str:
    return f"It is {degrees} degrees and {sky} in {city}."


def draw(source: random.Random) -> Lesson:
    """Draw a request of the kinds that the tests make, with any date, effort and instructions."""
    tools = source.random() < 0.6
    leading: list[Json] = []
    if source.random() < 0.5:
        leading.append({"role": "system", "content": source.choice(INSTRUCTIONS)})
    if source.random() < 0.25:
        leading += _earlier(source)
    if tools and source.random() < 0.7:
        return _weather_lesson(source, leading)
    question, reasoning, text = source.choice(FACTS)
    return Lesson(_chat(source, [*leading, {"role": "user", "content": question}], tools), answer(reasoning, text))


def _weather_lesson(source: random.Random, leading: Sequence[Json]) -> Lesson:
    city = source.choice(CITIES)
    messages = [*leading, {"role": "user", "content": f"What is the weather in {city}?"}]
    if source.random() < 0.4:
        return Lesson(_chat(source, messages, tools=True), call(city))
    degrees, sky = source.randrange(1, 30), source.choice(SKIES)
    function = {"name": "get_weather", "arguments": f'{{"city":"{city}"}}'}
    called = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    if source.random() < 0.7:
        called["reasoning_content"] = call_reasoning(city)
    messages += [called, {"role": "tool", "tool_call_id": "call_1", "content": weather(degrees, sky)}]
    text = answer("The tool returned the weather.", report(degrees, sky, city))
    return Lesson(_chat(source, messages, tools=True), text)


def _earlier(source: random.Random) -> list[Json]:
    question, _, text = source.choice(FACTS[:3])
    return [{"role": "user", "content": question}, {"role": "assistant", "content": text}]


def _chat(source: random.Random, messages: Sequence[Json], tools: bool) -> Chat:
    return Chat(
        messages=messages,
        today=date(2025, 1, 1) + timedelta(days=source.randrange(3000)),
        tools=read_tools([WEATHER] if tools else []),
        effort=read_effort(source.choice(("low", "medium", "high"))),
    )
