"""The hosts' own clients: `with_hosts.py CLIENT SCENARIO MODEL [MCP_URL]` prints what came of it as JSON.

The two have the same calls under the same names. Each event and each object has to have the client's class for it, and be
valid: both fall back to something else where it is not.
"""

import importlib
import json
import os
import sys
from typing import Any, get_args

CLIENT, SCENARIO, MODEL, *MORE = sys.argv[1:]
NAMED_OTHERWISE = ("response.mcp_call_arguments.delta", "response.mcp_call_arguments.done")
"""OpenAI's names of two events that these clients expect under other names."""
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def connect() -> Any:
    """The client."""
    url = os.environ["BASE_URL"].removesuffix("/v1")
    class_name = {"ogx_client": "OgxClient", "llama_stack_client": "LlamaStackClient"}[CLIENT]
    return getattr(importlib.import_module(CLIENT), class_name)(base_url=url, api_key=os.environ["OPENAI_API_KEY"])


def event_classes() -> dict[str, str]:
    """The client's class for each type of event, by name."""
    if CLIENT == "ogx_client":
        from ogx_client.models.open_ai_response_object_stream import OpenAIResponseObjectStream

        return dict(OpenAIResponseObjectStream.discriminator_value_class_map)
    from llama_stack_client.types import ResponseObjectStream

    members = get_args(get_args(ResponseObjectStream)[0])
    return {name: each.__name__ for each in members for name in literals(each.model_fields["type"].annotation)}


def literals(annotation: Any) -> list[str]:
    """The strings of a Literal, which may be optional."""
    found = [literals(each) if get_args(each) else [each] for each in get_args(annotation)]
    return [name for names in found for name in names if isinstance(name, str)]


client = connect()


def inner(value: Any) -> Any:
    """An object within another, which one of the clients leaves as it is, or wraps."""
    wrapped = getattr(value, "actual_instance", None)
    return wrapped if wrapped is not None else value.to_dict()


def plain(value: Any) -> Any:
    """An object of a client, as JSON again."""
    return json.loads(json.dumps(value.to_dict(), default=inner))


def valid(value: Any) -> Any:
    """The same; it has to be what its class says, which one of the clients does not look at itself."""
    if CLIENT == "llama_stack_client":
        type(value).model_validate(value.to_dict())
    return plain(value)


def checked(response: Any) -> Any:
    """A response, of the client's class for it."""
    assert type(response).__name__ in ("OpenAIResponseObject", "ResponseObject"), type(response)
    assert response.store is True or CLIENT == "llama_stack_client"
    return valid(response)


def create(**fields: Any) -> Any:
    """A response."""
    return checked(client.responses.create(model=MODEL, **fields))


def text(response: Any) -> str:
    """What a response says."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


def kinds(items: Any) -> list[str]:
    """The types of items."""
    return [item["type"] for item in items]


def streamed(**fields: Any) -> list[Any]:
    """The events of a response, each of the client's class for its type."""
    classes = event_classes()
    events = []
    for event in client.responses.create(model=MODEL, stream=True, **fields):
        if (event["type"] if isinstance(event, dict) else event.type) in NAMED_OTHERWISE:
            continue
        assert not isinstance(event, dict), f"not typed: {event}"
        assert type(event).__name__ == classes[event.type], (type(event).__name__, event.type)
        events.append(valid(event))
    return events


def make() -> Any:
    """A response, and what it repeats of the request."""
    response = create(input="Hi", metadata={"a": "b"}, temperature=0.5, max_output_tokens=64)
    return [text(response), response["status"], response["metadata"], response["temperature"]]


def stream() -> Any:
    """The types of a stream's events, and what they say."""
    events = streamed(input="Hi", tools=[WEATHER])
    return [[event["type"].removeprefix("response.") for event in events], kinds(events[-1]["response"]["output"])]


def chain() -> Any:
    """A second response that continues the first."""
    first = create(input="One?")
    second = create(input="Two?", previous_response_id=first["id"])
    return [text(first), text(second), second["previous_response_id"] == first["id"]]


def tools() -> Any:
    """A function."""
    first = create(input="Weather in Oslo?", tools=[WEATHER])
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "-3"}
    second = create(input=[output], tools=[WEATHER], previous_response_id=first["id"])
    return [call["name"], call["arguments"], text(second)]


def mcp_tool(**more: Any) -> Any:
    """An MCP server."""
    return {"type": "mcp", "server_label": "mcp", "server_url": MORE[0], **more}


def mcp() -> Any:
    """An MCP server whose tools need no approval, streamed."""
    events = streamed(input="Echo.", tools=[mcp_tool(require_approval="never")])
    return [kinds(events[-1]["response"]["output"]), [event["type"] for event in events if "mcp" in event["type"]]]


def approval() -> Any:
    """An MCP server whose tools need approval."""
    tool = mcp_tool(require_approval="always")
    first = create(input="Echo.", tools=[tool])
    [request] = [item for item in first["output"] if item["type"] == "mcp_approval_request"]
    given = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    second = create(input=[given], tools=[tool], previous_response_id=first["id"])
    return [kinds(first["output"]), kinds(second["output"]), text(second)]


def search() -> Any:
    """A web search with a citation, streamed."""
    events = streamed(input="Search.", tools=[{"type": "web_search"}])
    response = events[-1]["response"]
    return [kinds(response["output"]), [event["type"] for event in events if "web_search" in event["type"]]]


def stored() -> Any:
    """List, retrieve, input items, delete."""
    responses = [create(input=word) for word in ("One?", "Two?")]
    newest = [valid(each)["id"] for each in client.responses.list(limit=2).data]
    assert newest == [responses[1]["id"], responses[0]["id"]]
    first = client.responses.retrieve(responses[0]["id"])
    items = client.responses.input_items.list(responses[0]["id"])
    deleted = client.responses.delete(responses[0]["id"])
    left = [each.id for each in client.responses.list(limit=1).data]
    same = checked(first) == responses[0]
    return [same, kinds(valid(items)["data"]), deleted.id == responses[0]["id"], left == [responses[1]["id"]]]


def missing() -> Any:
    """What the client raises for a response that is not there."""
    try:
        client.responses.retrieve("resp_fake_nonexistent_id")
    except Exception as error:  # noqa: BLE001 - its name is the result
        return [type(error).__name__, "resp_fake_nonexistent_id" in str(error)]
    return None


def conversation() -> Any:
    """A conversation, its items, and a response in it."""
    created = client.conversations.create(
        metadata={"a": "b"}, items=[{"type": "message", "role": "user", "content": "I am Ada."}]
    )
    known = client.conversations.retrieve(created.id)
    changed = client.conversations.update(created.id, metadata={"a": "c"})
    response = create(input="Who am I?", conversation=created.id)
    added = client.conversations.items.create(
        created.id, items=[{"type": "message", "role": "user", "content": "Bye."}]
    )
    listed = [plain(item) for item in client.conversations.items.list(created.id, order="asc").data]
    one = client.conversations.items.get(item_id=listed[0]["id"], conversation_id=created.id)
    client.conversations.items.delete(item_id=listed[0]["id"], conversation_id=created.id)
    rest = client.conversations.items.list(created.id, order="asc").data
    gone = client.conversations.delete(created.id)
    return {
        "metadata": [valid(known)["metadata"], valid(changed)["metadata"]],
        "says": text(response),
        "added": kinds(valid(added)["data"]),
        "listed": [item["role"] for item in listed],
        "one": one.id == listed[0]["id"],
        "left": [item.id for item in rest] == [item["id"] for item in listed[1:]],
        "deleted": gone.deleted,
    }


print(json.dumps(globals()[SCENARIO]()))
