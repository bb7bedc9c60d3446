"""pydantic-ai's OpenAIResponsesModel: `with_pydantic_ai.py SCENARIO MODEL` prints what came of it as JSON."""

import asyncio
import json
import os
import sys
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = OpenAIResponsesModel(
    sys.argv[2], provider=OpenAIProvider(base_url=os.environ["BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
)


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def agent(**more: Any) -> Agent[None, Any]:
    """An agent that can tell the weather."""
    created: Agent[None, Any] = Agent(MODEL, **more)

    @created.tool_plain
    def weather(city: str) -> str:
        """Tells the weather in a city."""
        return f"Snow in {city}."

    return created


async def tools() -> Any:
    """A function, and what the model thought."""
    run = await agent().run("Weather in Oslo?")
    thoughts = [part for message in run.all_messages() for part in message.parts if isinstance(part, ThinkingPart)]
    return [run.output, [bool(thought.signature) for thought in thoughts]]


async def chained() -> Any:
    """A function, each request chained to the response before it."""
    settings = OpenAIResponsesModelSettings(openai_previous_response_id="auto")
    return (await agent().run("Weather in Oslo?", model_settings=settings)).output


async def history() -> Any:
    """Two turns."""
    helper = agent()
    first = await helper.run("One?")
    return (await helper.run("Two?", message_history=first.all_messages())).output


async def structured() -> Any:
    """Output with a schema."""
    person = (await agent(output_type=NativeOutput(Person)).run("Who?")).output
    return [type(person).__name__, person.name, person.age]


async def by_tool() -> Any:
    """Output as a tool's arguments."""
    person = (await agent(output_type=Person).run("Who?")).output
    return [type(person).__name__, person.name, person.age]


async def streamed() -> Any:
    """A function and an answer in pieces."""
    async with agent().run_stream("Weather in Oslo?") as run:
        return [piece async for piece in run.stream_text(delta=True, debounce_by=None)]


print(json.dumps(asyncio.run(globals()[sys.argv[1]]())))
