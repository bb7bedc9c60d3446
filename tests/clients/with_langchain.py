"""LangChain's ChatOpenAI on the Responses API: `with_langchain.py SCENARIO MODEL` prints what came of it as JSON."""

import json
import os
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, custom_tool
from pydantic import BaseModel


def chat(**more: Any) -> ChatOpenAI:
    """The model."""
    return ChatOpenAI(model=sys.argv[2], base_url=os.environ["BASE_URL"], use_responses_api=True, max_retries=0, **more)


@tool
def weather(city: str) -> str:
    """Tells the weather in a city."""
    return f"Snow in {city}."


@custom_tool
def count(text: str) -> str:
    """Counts characters."""
    return f"{len(text)} characters."


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def answer() -> Any:
    """An answer and what it cost."""
    message = chat().invoke("Hi")
    return [message.text, message.usage_metadata["output_tokens"], message.response_metadata["id"][:5]]


def streamed() -> Any:
    """An answer in pieces."""
    chunks = list(chat().stream("Hi"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return [[chunk.text for chunk in chunks if chunk.text], whole.text]


def called(model: Any, function: Any) -> str:
    """The answer after a call."""
    messages: list[Any] = [HumanMessage("Hi")]
    bound = model.bind_tools([function])
    messages.append(bound.invoke(messages))
    messages.extend([function.invoke(call) for call in messages[-1].tool_calls])
    assert isinstance(messages[-1], ToolMessage)
    return bound.invoke(messages).text


def tools() -> Any:
    """A function, the history sent again."""
    return called(chat(), weather)


def stateless() -> Any:
    """A function, with nothing stored and the reasoning sealed."""
    model = chat(store=False, include=["reasoning.encrypted_content"], output_version="responses/v1")
    return called(model, weather)


def chained() -> Any:
    """A function, each request chained to the response before it."""
    return called(chat(use_previous_response_id=True), weather)


def custom() -> Any:
    """A custom tool."""
    return called(chat(), count)


def summarized() -> Any:
    """What the model thought, and its answer, in pieces."""
    blocks = [block for chunk in chat(reasoning={"summary": "auto"}).stream("Hi") for block in chunk.content_blocks]
    return ["".join(block.get(kind, "") for block in blocks) for kind in ("reasoning", "text")]


def structured() -> Any:
    """Output with a schema."""
    person = chat().with_structured_output(Person).invoke("Who?")
    return [type(person).__name__, person.name, person.age]


print(json.dumps(globals()[sys.argv[1]]()))
