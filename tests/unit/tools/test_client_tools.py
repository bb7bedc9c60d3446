"""The tools that the client runs: what the model receives of them, and what the client receives of its calls."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from openai.types.chat import ChatCompletionChunk

from llama_stack_responses.chat.messages import chat_messages
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.transcript import Transcript
from tests.support.generation_harness import GenerationHarness
from tests.support.inference import Round, call, chunk, finish, text
from tests.support.one_pixel import ONE_PIXEL
from tests.support.strict import check_stream

Json = dict[str, Any]

GRAMMAR: Final[Json] = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
CUSTOM: Final[Json] = {"type": "custom", "name": "patch", "description": "Patches.", "format": GRAMMAR}
FUNCTION: Final[Json] = {"type": "function", "name": "f"}
SAID: Final[Round] = [text("Done."), finish()]


class GeneratedResponse:
    """The response to a request, its events, and the requests to the model."""

    def __init__(self, events: list[Json], harness: GenerationHarness) -> None:
        self.events = events
        self.output = check_stream(events)["output"]
        self.requests = harness.inference.requests

    @property
    def offered(self) -> list[list[str]]:
        """The names of the tools in each request."""
        return [[tool[tool["type"]]["name"] for tool in request.get("tools", ())] for request in self.requests]


async def make(*rounds: Round, **options: Any) -> GeneratedResponse:
    """Run a response, and check that its events are replayed exactly."""
    harness = GenerationHarness(*rounds, makers={}, **options)
    events = await harness.end()
    transcript = Transcript()
    transcript.note(events)
    assert list(replay(events[-1]["response"], transcript.marks())) == events
    check_stream(list(replay(events[-1]["response"])))
    return GeneratedResponse(events, harness)


def arguments(index: int, *fragments: str) -> list[ChatCompletionChunk]:
    """Return further fragments of a call's arguments."""
    return [chunk({"tool_calls": [{"index": index, "function": {"arguments": each}}]}) for each in fragments]


def item(generated: GeneratedResponse) -> Json:
    """Return the only item, without its id."""
    [only] = generated.output
    return {key: value for key, value in only.items() if key != "id"}


# Custom tools


async def test_custom_tool_becomes_function_with_string_argument() -> None:
    generated = await make(SAID, tools=[CUSTOM])
    [tool] = generated.requests[0]["tools"]
    assert tool["function"]["parameters"]["required"] == ["input"]
    assert tool["function"]["description"] == "Patches.\n\n'input' must match this Lark grammar:\nstart: \"a\""


async def test_custom_call_streams_its_text() -> None:
    pieces = ['{"inp', 'ut": "*** Be', "gin\\", 'n\\u00e9"}']
    generated = await make([call("patch", "c1", ""), *arguments(0, *pieces), finish("tool_calls")], tools=[CUSTOM])
    assert item(generated) == {
        "type": "custom_tool_call",
        "call_id": "c1",
        "name": "patch",
        "input": "*** Begin\né",
        "status": "completed",
    }
    deltas = [event["delta"] for event in generated.events if event["type"] == "response.custom_tool_call_input.delta"]
    assert deltas == ["*** Be", "gin", "\né"]


async def test_custom_call_with_plain_text_is_accepted() -> None:
    generated = await make([call("patch", "c1", "*** Begin"), finish("tool_calls")], tools=[CUSTOM])
    assert item(generated)["input"] == "*** Begin"


async def test_server_with_custom_tools_gets_grammar() -> None:
    profile = Profile(custom_tools="custom")
    begun = {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "patch", "input": ""}}
    more = [{"index": 0, "custom": {"input": each}} for each in ('{"a', '": 1}\n')]
    chunks = [chunk({"tool_calls": [each]}) for each in (begun, *more)]
    generated = await make([*chunks, finish("tool_calls")], tools=[CUSTOM], profile=profile)
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}}
    custom = {"name": "patch", "description": "Patches.", "format": grammar}
    assert generated.requests[0]["tools"] == [{"type": "custom", "custom": custom}]
    assert item(generated)["input"] == '{"a": 1}\n'
    [_, output, _] = chat_messages([*history(), *answered(generated, "ok")], profile)
    called = {"name": "patch", "input": '{"a": 1}\n'}
    assert output["tool_calls"] == [{"id": "c1", "type": "custom", "custom": called}]


def history() -> list[Json]:
    """Return the user's message."""
    return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]


def answered(generated: GeneratedResponse, output: Any) -> list[Json]:
    """Return a custom call and its output."""
    [only] = generated.output
    return [only, {"type": "custom_tool_call_output", "call_id": only["call_id"], "output": output}]


async def test_output_of_custom_tool_is_sent_to_model() -> None:
    before = await make([call("patch", "c1", '{"input": "a\\"b"}'), finish("tool_calls")], tools=[CUSTOM])
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    generated = await make(SAID, tools=[CUSTOM], input=[*history(), *answered(before, parts)])
    called, output = generated.requests[0]["messages"][1:]
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"input": 'a"b'}
    assert output == {"role": "tool", "tool_call_id": "c1", "content": "one\ntwo"}


# Namespaces


def namespace(name: str, *tools: str, **more: Any) -> Json:
    return {
        "type": "namespace",
        "name": name,
        "description": "d",
        "tools": [{"type": "function", "name": each, **more} for each in tools],
    }


async def test_call_in_namespace_carries_both_names() -> None:
    tools = [namespace("mcp__files", "read__all"), {**namespace("x"), "tools": [CUSTOM]}]
    calls = [call("mcp__files__read__all", "c1"), call("x__patch", "c2", '{"input": "a"}', index=1)]
    generated = await make([*calls, finish("tool_calls")], tools=tools)
    found = [(each["type"], each["namespace"], each["name"]) for each in generated.output]
    assert found == [("function_call", "mcp__files", "read__all"), ("custom_tool_call", "x", "patch")]
    outputs = [
        {"type": f"{each['type']}_output", "call_id": each["call_id"], "output": ""} for each in generated.output
    ]
    again = await make(SAID, tools=tools, input=[*history(), *generated.output, *outputs])
    replayed = again.requests[0]["messages"][1]["tool_calls"]
    assert [each["function"]["name"] for each in replayed] == ["mcp__files__read__all", "x__patch"]


async def test_colliding_qualified_names_are_distinguished() -> None:
    tools = [namespace("a", "b__c"), namespace("a__b", "c"), {"type": "function", "name": "a__b__c"}]
    calls = [call(name, name, index=index) for index, name in enumerate(["a__b__c", "a__b__c_2", "a__b__c_3"])]
    generated = await make([*calls, finish("tool_calls")], tools=tools)
    assert generated.offered[0] == ["a__b__c_2", "a__b__c_3", "a__b__c"]
    found = [(each.get("namespace"), each["name"]) for each in generated.output]
    assert found == [(None, "a__b__c"), ("a", "b__c"), ("a__b", "c")]


async def test_invalid_names_are_replaced_by_valid_ones() -> None:
    long = "x" * 100
    generated = await make(SAID, tools=[namespace("my.server", "do.it"), namespace(long, "one", "two")])
    [plain, one, two] = generated.offered[0]
    assert plain == "my_server__do_it"
    assert len(one) <= 64 >= len(two)
    assert one != two
    assert (one[-3:], two[-3:]) == ("one", "two")


@pytest.mark.parametrize("number", [0, 1])
async def test_tool_choice_applies_within_namespace(number: int) -> None:
    choice = {"type": "function", "name": "b"}
    generated = await make(
        [call("n__b", "c1"), finish("tool_calls")], tools=[namespace("n", "a", "b")], tool_choice=choice
    )
    assert generated.offered == [["n__b"]]
    entries = [{"type": "namespace", "name": "n"}, {"type": "function", "namespace": "n", "name": "a"}]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": entries[number:]}
    generated = await make(
        [call("f", "c1"), finish("tool_calls")], SAID, tools=[namespace("n", "a"), FUNCTION], tool_choice=allowed
    )
    assert generated.offered[0] == ["n__a", "f"]
    assert "cannot be called" in generated.requests[1]["messages"][-1]["content"]


# Deferred tools

DEFERRED: Final[Json] = {**FUNCTION, "defer_loading": True, "description": "Does f."}


async def test_deferred_tool_is_offered_without_tool_search() -> None:
    generated = await make(SAID, tools=[DEFERRED, namespace("n", "a", defer_loading=True)])
    assert generated.offered == [["f", "n__a"]]


async def test_server_tool_search_loads_deferred_tools() -> None:
    tools = [DEFERRED, namespace("n", "a", "b", defer_loading=True), {"type": "tool_search"}]
    generated = await make(
        [call("tool_search", "c1", '{"paths": ["f", "n.b", "zz"]}'), finish("tool_calls")],
        [call("n__b", "c2"), finish("tool_calls")],
        tools=tools,
    )
    assert generated.offered == [["tool_search"], ["f", "n__b", "tool_search"]]
    listed = generated.requests[0]["tools"][0]["function"]["description"]
    assert "- f: Does f." in listed
    assert "  - n.b: " in listed
    searched, found, called = generated.output
    assert (searched["type"], searched["execution"], searched["call_id"]) == ("tool_search_call", "server", None)
    assert searched["arguments"] == {"paths": ["f", "n.b", "zz"]}
    assert [each["name"] for each in found["tools"]] == ["f", "n"]
    assert [each["name"] for each in found["tools"][1]["tools"]] == ["b"]
    assert (called["namespace"], called["name"]) == ("n", "b")
    output = {"type": "function_call_output", "call_id": "c2", "output": "ok"}
    again = await make(SAID, tools=tools, input=[*history(), *generated.output, output])
    assert again.offered == [["f", "n__b", "tool_search"]]
    roles = [message["role"] for message in again.requests[0]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]


async def test_tool_search_with_client_call_ends_turn_with_both_done() -> None:
    tools = [DEFERRED, CUSTOM, {"type": "tool_search"}]
    calls = [call("tool_search", "c1", '{"paths": ["f"]}'), call("patch", "c2", '{"input": "a"}', index=1)]
    generated = await make([*calls, finish("tool_calls")], tools=tools)
    assert len(generated.requests) == 1
    kinds = {each["type"]: each["status"] for each in generated.output}
    assert kinds == dict.fromkeys(["tool_search_call", "tool_search_output", "custom_tool_call"], "completed")
    output = {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"}
    again = await make(SAID, tools=tools, input=[*history(), *generated.output, output])
    assert again.offered == [["f", "patch", "tool_search"]]
    result = [message["content"] for message in again.requests[0]["messages"] if message["role"] == "tool"]
    assert sorted(result) == ["The tools can be called now.", "ok"]


async def test_tool_search_without_match_is_reported_to_model() -> None:
    generated = await make(
        [call("tool_search", "c1", '{"paths": ["zz"]}'), finish("tool_calls")],
        SAID,
        tools=[DEFERRED, {"type": "tool_search"}],
    )
    assert generated.offered[1] == ["tool_search"]
    assert "There are no such tools" in generated.requests[1]["messages"][-1]["content"]


async def test_tool_search_without_paths_is_refused_to_model() -> None:
    generated = await make(
        [call("tool_search", "c1", '{"query": "zz"}'), finish("tool_calls")],
        SAID,
        tools=[DEFERRED, {"type": "tool_search"}],
    )
    assert "not valid for 'tool_search'" in generated.requests[1]["messages"][-1]["content"]


async def test_tool_search_is_not_offered_without_deferred_tools() -> None:
    generated = await make(SAID, tools=[FUNCTION, {"type": "tool_search"}])
    assert generated.offered == [["f"]]


async def test_client_tool_search_loads_tools() -> None:
    tools = [DEFERRED, {"type": "tool_search", "execution": "client", "description": "Finds."}]
    generated = await make([call("tool_search", "c1", '{"query": "q"}'), finish("tool_calls")], tools=tools)
    assert item(generated) == {
        "type": "tool_search_call",
        "call_id": "c1",
        "execution": "client",
        "arguments": {"query": "q"},
        "status": "completed",
    }
    found = [DEFERRED, {"type": "function", "name": "g"}, namespace("n", "a", defer_loading=True)]
    output = {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": found}
    again = await make(
        [call("n__a", "c2"), finish("tool_calls")], tools=tools, input=[*history(), *generated.output, output]
    )
    assert again.offered == [["f", "tool_search", "g", "n__a"]]
    assert again.requests[0]["messages"][-1]["content"] == "Tools that can be called now: f, g, n__a."
    assert again.output[0]["namespace"] == "n"


async def test_additional_tools_in_input_are_offered() -> None:
    more = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION, {"type": "function", "name": "g"}]}
    generated = await make([call("g", "c1"), finish("tool_calls")], tools=[FUNCTION], input=[more, *history()])
    assert generated.offered == [["f", "g"]]
    assert [message["role"] for message in generated.requests[0]["messages"]] == ["user"]
    assert item(generated)["name"] == "g"


async def test_additional_tools_in_input_are_limited() -> None:
    more = {"type": "additional_tools", "role": "developer"}
    several = [{**more, "tools": [{"type": "function", "name": f"f{number}"}]} for number in range(1025)]
    with pytest.raises(ApiError, match="'input' and 'tools' have too many tools together") as caught:
        await make(SAID, input=[*several, *history()])
    assert (caught.value.status, caught.value.param) == (400, "input")
    newest = [f"f{number}" for number in range(1, 1025)]
    assert (await make(SAID, history=several, input=history())).offered == [newest]
    same = [{**more, "tools": [FUNCTION]}] * 2000
    assert (await make(SAID, input=[*same, *history()])).offered == [["f"]]


# Built-in tools

SCREEN: Final[Json] = {
    "type": "computer_use_preview",
    "display_width": 800,
    "display_height": 600,
    "environment": "browser",
}
CLICK: Final[Json] = {"type": "click", "button": "left", "x": 1, "y": 2}
DOUBLE: Final[Json] = {"type": "double_click", "x": 1, "y": 2}

BUILT_IN: Final[dict[str, tuple[Json, Json, Json, Json, Any]]] = {
    "local_shell": (
        {"type": "local_shell"},
        {"command": ["ls"], "timeout_ms": 5},
        {"action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5}},
        {"type": "local_shell_call_output", "output": "a.txt"},
        "a.txt",
    ),
    "shell": (
        {"type": "shell", "environment": {"type": "local"}},
        {"commands": ["ls", "pwd"]},
        {
            "action": {"commands": ["ls", "pwd"], "timeout_ms": None, "max_output_length": None},
            "environment": {"type": "local"},
        },
        {
            "type": "shell_call_output",
            "output": [
                {"stdout": "a", "stderr": "b", "outcome": {"type": "exit", "exit_code": 1}},
                {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        },
        "Exit code: 1\na\nstderr:\nb\nThe time limit was reached.",
    ),
    "apply_patch": (
        {"type": "apply_patch"},
        {"type": "delete_file", "path": "a.txt"},
        {"operation": {"type": "delete_file", "path": "a.txt"}},
        {"type": "apply_patch_call_output", "status": "failed", "output": "It is not there."},
        "Status: failed\nIt is not there.",
    ),
    "computer": (
        {"type": "computer"},
        {"actions": [CLICK, DOUBLE]},
        {"actions": [CLICK, {**DOUBLE, "keys": None}], "pending_safety_checks": []},
        {
            "type": "computer_call_output",
            "output": {
                "type": "computer_screenshot",
                "image_url": ONE_PIXEL,
            },
        },
        [
            {
                "type": "image_url",
                "image_url": {"url": ONE_PIXEL},
            }
        ],
    ),
    "computer_use_preview": (
        SCREEN,
        {"actions": [CLICK]},
        {"action": CLICK, "pending_safety_checks": []},
        {
            "type": "computer_call_output",
            "output": {
                "type": "computer_screenshot",
                "image_url": ONE_PIXEL,
            },
        },
        [
            {
                "type": "image_url",
                "image_url": {"url": ONE_PIXEL},
            }
        ],
    ),
}


@pytest.mark.parametrize("kind", BUILT_IN)
async def test_built_in_client_tool_is_called_and_answered(kind: str) -> None:
    tool, arguments, fields, output, expected = BUILT_IN[kind]
    name = kind.removesuffix("_use_preview")
    profile = Profile(tool_media="tool_message")
    generated = await make([call(name, "c1", json.dumps(arguments)), finish("tool_calls")], tools=[tool])
    assert item(generated) == {"type": f"{name}_call", "call_id": "c1", "status": "completed", **fields}
    items = [*history(), *generated.output, {**output, "call_id": "c1"}]
    again = await make(SAID, tools=[tool], input=items, profile=profile)
    called, received = again.requests[0]["messages"][1:]
    assert called["tool_calls"][0]["function"]["name"] == name
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == arguments
    assert received == {"role": "tool", "tool_call_id": "c1", "content": expected}


@pytest.mark.parametrize("kind", BUILT_IN)
@pytest.mark.parametrize("wrong", ["{}", "[]", "ls", '{"command": "ls"}', '{"actions": []}', '{"type": "move_file"}'])
async def test_invalid_arguments_of_built_in_tool_go_back_to_model(kind: str, wrong: str) -> None:
    tool = BUILT_IN[kind][0]
    name = kind.removesuffix("_use_preview")
    generated = await make([call(name, "c1", wrong), finish("tool_calls")], SAID, tools=[tool])
    assert [each["type"] for each in generated.output] == ["message"]
    assert f"not valid for '{name}'" in generated.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("kind", [kind for kind in BUILT_IN if kind != "local_shell"])
async def test_built_in_tool_can_be_chosen(kind: str) -> None:
    tool, arguments, *_ = BUILT_IN[kind]
    name = kind.removesuffix("_use_preview")
    rounds = [call(name, "c1", json.dumps(arguments)), finish("tool_calls")]
    generated = await make(rounds, tools=[tool, FUNCTION], tool_choice={"type": tool["type"]})
    assert generated.offered == [[name]]
    assert generated.requests[0]["tool_choice"] == "required"


async def test_function_keeps_its_name_next_to_built_in_tool() -> None:
    generated = await make(
        [call("shell_2", "c1", '{"commands": ["ls"]}'), call("shell", "c2", index=1), finish("tool_calls")],
        tools=[{"type": "shell"}, {"type": "function", "name": "shell"}],
    )
    assert generated.offered == [["shell_2", "shell"]]
    assert [each["type"] for each in generated.output] == ["shell_call", "function_call"]


async def test_skills_are_listed_in_description_of_shell() -> None:
    skill = {"name": "s", "description": "Does s.", "path": "/skills/s"}
    generated = await make(SAID, tools=[{"type": "shell", "environment": {"type": "local", "skills": [skill]}}])
    assert "Skill 's', described in /skills/s: Does s." in generated.requests[0]["tools"][0]["function"]["description"]
