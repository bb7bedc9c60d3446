"""The OpenAI Agents SDK: `with_agents.py SCENARIO MODEL` prints what came of it as JSON."""

import asyncio
import json
import os
import sys
from typing import Any

from agents import (
    Agent,
    AgentOutputSchema,
    ApplyPatchTool,
    CustomTool,
    HostedMCPTool,
    LocalShellTool,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    ProgrammaticToolCallingTool,
    Runner,
    ShellTool,
    SQLiteSession,
    ToolSearchTool,
    function_tool,
    tool_namespace,
)
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel

CLIENT = AsyncOpenAI(base_url=os.environ["BASE_URL"], max_retries=0)
MODEL = OpenAIResponsesModel(sys.argv[2], CLIENT)


@function_tool
def weather(city: str) -> str:
    """Tells the weather in a city."""
    return f"Snow in {city}."


@function_tool(defer_loading=True)
def clock(zone: str) -> str:
    """Tells the time in a zone."""
    return f"Noon in {zone}."


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class Stock(BaseModel):
    """How many units there are."""

    units: int


@function_tool(allowed_callers=["programmatic"])
def stock(sku: str) -> Stock:
    """Tells how many units there are."""
    return Stock(units={"a": 7, "b": 11}[sku])


class Editor:
    """Notes what it is to do."""

    def __init__(self) -> None:
        self.done: list[list[Any]] = []

    def create_file(self, operation: Any) -> str:
        """Creates a file."""
        self.done.append([operation.type, operation.path, operation.diff])
        return "Created."

    update_file = create_file
    delete_file = create_file


def agent(**more: Any) -> Agent:
    """An agent."""
    return Agent("Helper", model=MODEL, **more)


async def answered(helper: Agent, question: str = "Hi", **more: Any) -> str:
    """What the agent says in the end."""
    return (await Runner.run(helper, question, **more)).final_output


async def tools() -> Any:
    """A function."""
    return await answered(agent(tools=[weather]), "Weather in Oslo?")


async def stateless() -> Any:
    """A function, with nothing stored and all reasoning kept by the client."""
    settings = ModelSettings(
        store=False, response_include=["reasoning.encrypted_content"], reasoning=Reasoning(effort="low")
    )
    return await answered(agent(tools=[weather], model_settings=settings), "Weather in Oslo?")


async def chained() -> Any:
    """A function, each request chained to the response before it."""
    return await answered(agent(tools=[weather]), "Weather in Oslo?", auto_previous_response_id=True)


async def sessions() -> Any:
    """Two turns of a session that the SDK keeps, and two of one that the server keeps, which loses its last item."""
    kept = SQLiteSession("s")
    mine = [await answered(agent(), question, session=kept) for question in ("One?", "Two?")]
    remote = OpenAIConversationsSession(openai_client=CLIENT)
    helper = agent(tools=[weather])
    theirs = [await answered(helper, question, session=remote) for question in ("Weather in Oslo?", "Sure?")]
    await remote.pop_item()
    left = [item["type"] for item in await remote.get_items()]
    await remote.clear_session()
    return [mine, theirs, left]


async def handoff() -> Any:
    """A handoff to another agent."""
    billing = Agent("Billing", instructions="You do bills.", model=MODEL)
    ended = await Runner.run(agent(handoffs=[billing]), "My bill?")
    return [ended.last_agent.name, ended.final_output]


async def structured() -> Any:
    """Output with a schema."""
    person = (await Runner.run(agent(output_type=AgentOutputSchema(Person)), "Who?")).final_output
    return [type(person).__name__, person.name, person.age]


async def streamed() -> Any:
    """A function, streamed."""
    run = Runner.run_streamed(agent(tools=[weather]), "Weather in Oslo?")
    deltas, kinds = [], []
    async for event in run.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            deltas.append(event.data.delta)
        elif event.type == "run_item_stream_event":
            kinds.append(event.name)
    return [deltas, kinds, run.final_output]


async def custom() -> Any:
    """A custom tool."""

    async def count(context: Any, text: str) -> str:
        return f"{len(text)} characters."

    counter = CustomTool("count", "Counts characters.", count)
    return await answered(agent(tools=[counter]))


async def shell() -> Any:
    """Commands on this machine."""
    ran: list[list[str]] = []

    def execute(request: Any) -> str:
        ran.append(request.data.action.commands)
        return "a.txt"

    return [await answered(agent(tools=[ShellTool(executor=execute)])), ran]


async def local_shell() -> Any:
    """A program on this machine."""
    ran: list[list[str]] = []

    def execute(request: Any) -> str:
        ran.append(request.data.action.command)
        return "a.txt"

    return [await answered(agent(tools=[LocalShellTool(executor=execute)])), ran]


async def apply_patch() -> Any:
    """A patch."""
    editor = Editor()
    return [await answered(agent(tools=[ApplyPatchTool(editor=editor)])), editor.done]


async def hosted_mcp() -> Any:
    """An MCP server that the stack calls."""
    config = {
        "type": "mcp",
        "server_label": "mcp",
        "server_url": os.environ["MCP_URL"],
        "require_approval": "never",
    }
    ended = await Runner.run(agent(tools=[HostedMCPTool(tool_config=config)]), "Echo.")
    return [ended.final_output, [item.raw_item.type for item in ended.new_items]]


async def tool_search() -> Any:
    """Tools of a namespace that the model has to search for."""
    time = tool_namespace(name="time", description="Clocks.", tools=[clock])
    return await answered(agent(tools=[*time, ToolSearchTool()]), "What time is it?")


async def programs() -> Any:
    """A program that calls a function, in each way of keeping the history."""
    ways: dict[str, tuple[ModelSettings, dict[str, Any]]] = {
        "plain": (ModelSettings(tool_choice="programmatic_tool_calling"), {}),
        "stateless": (ModelSettings(store=False, response_include=["reasoning.encrypted_content"]), {}),
        "chained": (ModelSettings(), {"auto_previous_response_id": True}),
        "conversation": (ModelSettings(), {"session": OpenAIConversationsSession(openai_client=CLIENT)}),
    }
    settings, more = ways[os.environ["WAY"]]
    helper = agent(tools=[ProgrammaticToolCallingTool(), stock], model_settings=settings)
    if os.environ["STREAMED"]:
        ended = Runner.run_streamed(helper, "How many?", **more)
        _ = [event async for event in ended.stream_events()]
    else:
        ended = await Runner.run(helper, "How many?", **more)
    return [ended.final_output, [item.to_input_item()["type"] for item in ended.new_items]]


print(json.dumps(asyncio.run(globals()[sys.argv[1]]())))
