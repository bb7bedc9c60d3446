"""Responses of every kind, made by a scripted model server, for tests and pictures of the built-in page."""

import base64
from dataclasses import dataclass
from typing import Final

from tests.support.mcp_server import PIXEL, McpServers
from tests.support.script import Chunk, finish, reasoning, refusal, reply, text, tool_call
from tests.support.upstream import Upstream
from tests.support.wire import Json, Wire, final

ADVICE: Final = """Two of the three stations answered, and the cities differ mostly in **rain**:

| City | Temperature | Rain |
|---|--:|---|
| Lisbon | 21.5 °C | none |
| Oslo | 4.0 °C | light |

1. Pack a light jacket for Lisbon.
2. Bring waterproof shoes to Oslo.

```python
def pack(city: str) -> list[str]:
    return ["jacket"] if city == "Lisbon" else ["coat", "boots"]
```

> Forecasts change: look again the day before, at [the service](https://example.org/weather).
"""
PERSON: Final[Json] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "city": {"type": "string"}},
    "required": ["name", "city"],
    "additionalProperties": False,
}
WEATHER: Final[Json] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_PICTURE: Final = "data:image/png;base64," + base64.b64encode(PIXEL).decode()


@dataclass(frozen=True, slots=True)
class Showcase:
    """Ids of the responses that were made.

    Attributes:
        trip: reasoning, a call that succeeds and one that fails, Markdown, instructions.
        root, harbour, gulls, darker: a chain with a branch: root > harbour, root > gulls > darker.
        person: structured output.
        refusal: a refusal.
        broken: failed in the middle of its answer.
        question, answered: a call of the client's function, and the response to its output.
        picture: an image and a file in the input.
        cut: incomplete.
        conversation: a conversation object with two responses.
    """

    trip: str
    root: str
    harbour: str
    gulls: str
    darker: str
    person: str
    refusal: str
    broken: str
    question: str
    answered: str
    picture: str
    cut: str
    conversation: str


def make_showcase(wire: Wire, upstream: Upstream, mcp: McpServers) -> Showcase:
    """Script the models and make the responses, oldest first."""
    root, harbour, gulls, darker = _chain(wire, upstream)
    question, answered = _function(wire, upstream)
    conversation = _conversation(wire, upstream)
    return Showcase(
        root=root,
        harbour=harbour,
        gulls=gulls,
        darker=darker,
        person=_person(wire, upstream),
        refusal=_refusal(wire, upstream),
        broken=_broken(wire, upstream),
        question=question,
        answered=answered,
        picture=_picture(wire, upstream),
        cut=_cut(wire, upstream),
        conversation=conversation,
        trip=_trip(wire, upstream, mcp),
    )


def pieces(words: str, size: int = 18) -> list[str]:
    """Return a text in fragments, as a model sends it."""
    return [words[start : start + size] for start in range(0, len(words), size)]


def _chain(wire: Wire, upstream: Upstream) -> tuple[str, str, str, str]:
    haikus = [
        "Salt wind on grey stone,\nthe gulls write and wipe again\none white sentence each.",
        "Harbour lamps in rain,\neach mast a slow metronome\nfor the sleeping tide.",
        "Salt wind on grey stone,\nthe tide writes and wipes again\none long sentence each.",
        "Black salt on cold stone,\nthe tide writes and wipes again\nwhat nobody reads.",
    ]
    upstream.script("writer", [reply(text(*pieces(haiku)), interval=0.02) for haiku in haikus])

    def asked(words: str, previous: str | None = None) -> str:
        body = {"previous_response_id": previous} if previous else {}
        return str(final(wire.stream(model="local/writer", input=words, metadata={"team": "poems"}, **body))["id"])

    root = asked("Write a haiku about the sea.")
    harbour = asked("And one about a harbour at night.", root)
    gulls = asked("Now without the gulls.", root)
    return root, harbour, gulls, asked("Make it darker.", gulls)


def _person(wire: Wire, upstream: Upstream) -> str:
    upstream.script("json", reply(text(*pieces('{"name": "Ada", "city": "Lisbon"}', 8))))
    asked = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    return str(wire.create(model="local/json", input="Who wrote: I am Ada, from Lisbon?", text=asked)["id"])


def _refusal(wire: Wire, upstream: Upstream) -> str:
    upstream.script("refuser", reply(refusal("I cannot help ", "to open a lock that is not yours.")))
    return str(wire.create(model="local/refuser", input="How do I open my neighbour's lock?")["id"])


def _broken(wire: Wire, upstream: Upstream) -> str:
    upstream.script("broken", reply(text("The first half of ", "an answer"), end="drop"))
    return str(final(wire.stream(model="local/broken", input="Answer, and break off."))["id"])


def _function(wire: Wire, upstream: Upstream) -> tuple[str, str]:
    upstream.script(
        "caller", [reply(tool_call(0, "call_9", "get_weather", '{"city": "Oslo"}')), reply(text("It is 4 °C in Oslo."))]
    )
    question = wire.create(model="local/caller", input="How warm is it in Oslo?", tools=[WEATHER])
    told = [{"type": "function_call_output", "call_id": "call_9", "output": '{"celsius": 4}'}]
    answered = wire.create(model="local/caller", input=told, previous_response_id=question["id"], tools=[WEATHER])
    return question["id"], answered["id"]


def _picture(wire: Wire, upstream: Upstream) -> str:
    upstream.script("seer", reply(text("A red square, and a report of one word.")))
    content = [
        {"type": "input_text", "text": "What is in this picture, and in the report?"},
        {"type": "input_image", "image_url": _PICTURE},
        {"type": "input_file", "filename": "report.txt", "file_data": "data:text/plain;base64,SGVsbG8="},
    ]
    return str(wire.create(model="local/seer", input=[{"role": "user", "content": content}])["id"])


def _cut(wire: Wire, upstream: Upstream) -> str:
    upstream.script("cut", reply(text("Once upon a time there "), finish("length")))
    return str(wire.create(model="local/cut", input="Tell me a long story.", max_output_tokens=16)["id"])


def _conversation(wire: Wire, upstream: Upstream) -> str:
    upstream.script("small", [reply(text("Hello, Ada.")), reply(text("Your name is Ada."))])
    answer = wire.http.post("/conversations", json={"metadata": {"topic": "names"}})
    answer.raise_for_status()
    made = str(answer.json()["id"])
    for words in ("I am Ada.", "What is my name?"):
        wire.create(model="local/small", input=words, conversation=made)
    return made


def _trip(wire: Wire, upstream: Upstream, mcp: McpServers) -> str:
    calls: list[Chunk] = [
        *tool_call(0, "call_1", "stations__weather", '{"city": "Lisbon"}'),
        *tool_call(1, "call_2", "stations__fail", '{"reason": "The station in Reykjavík does not answer."}'),
    ]
    thoughts = reasoning("The user compares cities. ", "I need the weather of each before I answer.")
    second = reply(reasoning("One station failed; ", "I say so."), text(*pieces(ADVICE)), delay=0.15, interval=0.03)
    upstream.script("planner", [reply(thoughts, calls, delay=0.1, interval=0.05), second])
    stations = {
        "type": "mcp",
        "server_label": "stations",
        "server_url": mcp.url("mcp"),
        "require_approval": "never",
        "allowed_tools": ["weather", "fail"],
    }
    events = wire.stream(
        model="local/planner",
        instructions="You are a travel assistant. Answer in short, concrete sentences and name your sources.",
        input="Compare the weather in Lisbon, Oslo and Reykjavík for next week, and say what to pack.",
        tools=[stations],
        reasoning={"effort": "medium", "summary": "auto"},
        metadata={"team": "travel", "trip": "spring"},
    )
    return str(final(events)["id"])
