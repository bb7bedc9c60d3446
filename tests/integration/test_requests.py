"""The chat messages for each form of `input`, and for each way to continue a conversation."""

from collections.abc import Callable
from itertools import product
from typing import Any, Final

import openai
import pytest
from openai import BaseModel

from tests.support.openai_client import MODEL, NAME, Json, create, function, messages, sent, stored, stream
from tests.support.upstream import Upstream, finish, interleaved_calls, reasoning, refusal, reply, text, tool_call
from tests.support.wire import Wire, error_of

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("calm")]

SAID: Final = reply(text("Hello"))
TOOLS: Final = [function("weather", "city")]
CALL: Final[Json] = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}
OTHER_CALL: Final[Json] = {**CALL, "call_id": "c2", "arguments": '{"city": "Rome"}'}
OUTPUT: Final[Json] = {"type": "function_call_output", "call_id": "c1", "output": "Snow."}
OTHER_OUTPUT: Final[Json] = {**OUTPUT, "call_id": "c2", "output": "Sun."}


def user(content: Any) -> Json:
    """Return a chat message, or an input message, of the user."""
    return {"role": "user", "content": content}


def assistant(content: Any, *calls: Json, **more: Any) -> Json:
    """Return a chat message of the assistant."""
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}


def system(content: str) -> Json:
    """Return a system message."""
    return {"role": "system", "content": content}


def tool(call_id: str, content: str) -> Json:
    """Return a chat message of a tool."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def chat_call(item: Json) -> Json:
    """Return a function call in its chat form."""
    return {
        "id": item["call_id"],
        "type": "function",
        "function": {"name": item["name"], "arguments": item["arguments"]},
    }


def part(content: str, kind: str = "input_text") -> Json:
    """Return a text part."""
    return {"type": kind, "text": content}


CALLED: Final = chat_call(CALL)
OTHER_CALLED: Final = chat_call(OTHER_CALL)

# The input, and its chat messages.
INPUTS: Final[dict[str, tuple[Any, list[Json]]]] = {
    "a string": ("Hi", [user("Hi")]),
    "an empty string": ("", [user("")]),
    "a message": ([user("Hi")], [user("Hi")]),
    "a typed message with everything": (
        [{"type": "message", "id": "msg_1", "role": "user", "status": "completed", "content": [part("Hi")]}],
        [user("Hi")],
    ),
    "a message with nulls": ([{**user("Hi"), "id": None, "status": None, "phase": None}], [user("Hi")]),
    "a message with keys of tomorrow": ([{**user([{**part("Hi"), "mood": "calm"}]), "colour": "red"}], [user("Hi")]),
    "two parts": ([user([part("Hi"), part("there")])], [user("Hi\n\nthere")]),
    "two user messages": ([user("a"), user("b")], [user("a"), user("b")]),
    "a system message": ([system("Be brief."), user("Hi")], [system("Be brief."), user("Hi")]),
    "a developer message": (
        [{"role": "developer", "content": [part("Be brief.")]}, user("Hi")],
        [system("Be brief."), user("Hi")],
    ),
    "several at the beginning": (
        [system("One."), {"role": "developer", "content": [part("Two"), part("2")]}, system("Three."), user("Hi")],
        [system("One.\n\nTwo\n\n2\n\nThree."), user("Hi")],
    ),
    "one in the middle": (
        [system("One."), user("Hi"), {"role": "developer", "content": "Now be brief."}, user("Well?")],
        [system("One."), user("Hi"), system("Now be brief."), user("Well?")],
    ),
    "an assistant's string": ([user("a"), assistant("b"), user("c")], [user("a"), assistant("b"), user("c")]),
    "an assistant's output_text": (
        [user("a"), assistant([{**part("b", "output_text"), "annotations": [], "logprobs": []}]), user("c")],
        [user("a"), assistant("b"), user("c")],
    ),
    "an assistant's input_text": (
        [user("a"), assistant([part("b")]), user("c")],
        [user("a"), assistant("b"), user("c")],
    ),
    "an assistant's refusal": (
        [user("a"), assistant([{"type": "refusal", "refusal": "No."}]), user("c")],
        [user("a"), assistant("No."), user("c")],
    ),
    "an assistant first": ([assistant("Welcome."), user("Hi")], [assistant("Welcome."), user("Hi")]),
    "an assistant last": ([user("Hi"), assistant("Hello, my")], [user("Hi"), assistant("Hello, my")]),
    "consecutive assistants": (
        [user("a"), assistant("b", phase="commentary"), assistant("c", phase="final_answer"), user("d")],
        [user("a"), assistant("b\n\nc"), user("d")],
    ),
    "a call and its output": (
        [user("a"), CALL, OUTPUT],
        [user("a"), assistant(None, CALLED), tool("c1", "Snow.")],
    ),
    "a call and its output with everything": (
        [
            user("a"),
            {**CALL, "id": "fc_1", "status": "completed", "namespace": None},
            {**OUTPUT, "id": "fco_1", "status": "completed"},
        ],
        [user("a"), assistant(None, CALLED), tool("c1", "Snow.")],
    ),
    "text and a call": (
        [user("a"), assistant("Let me look."), CALL, OUTPUT],
        [user("a"), assistant("Let me look.", CALLED), tool("c1", "Snow.")],
    ),
    "parallel calls": (
        [user("a"), CALL, OTHER_CALL, OUTPUT, OTHER_OUTPUT],
        [user("a"), assistant(None, CALLED, OTHER_CALLED), tool("c1", "Snow."), tool("c2", "Sun.")],
    ),
    "parallel calls, outputs the other way round": (
        [user("a"), CALL, OTHER_CALL, OTHER_OUTPUT, OUTPUT],
        [user("a"), assistant(None, CALLED, OTHER_CALLED), tool("c1", "Snow."), tool("c2", "Sun.")],
    ),
    "calls one after the other": (
        [user("a"), CALL, OUTPUT, OTHER_CALL, OTHER_OUTPUT],
        [
            user("a"),
            assistant(None, CALLED),
            tool("c1", "Snow."),
            assistant(None, OTHER_CALLED),
            tool("c2", "Sun."),
        ],
    ),
    "a message between call and output": (
        [user("a"), CALL, user("Hurry."), OUTPUT],
        [user("a"), assistant(None, CALLED), tool("c1", "Snow."), user("Hurry.")],
    ),
    "the same call_id in two turns": (
        [user("a"), CALL, OUTPUT, assistant("b"), user("c"), CALL, {**OUTPUT, "output": "Rain."}],
        [
            user("a"),
            assistant(None, CALLED),
            tool("c1", "Snow."),
            assistant("b"),
            user("c"),
            assistant(None, CALLED),
            tool("c1", "Rain."),
        ],
    ),
    "an output in parts": (
        [user("a"), CALL, {**OUTPUT, "output": [part("Snow"), part("and ice")]}],
        [user("a"), assistant(None, CALLED), tool("c1", "Snow\nand ice")],
    ),
    "an empty output": (
        [user("a"), CALL, {**OUTPUT, "output": ""}],
        [user("a"), assistant(None, CALLED), tool("c1", "")],
    ),
    "an output without parts": (
        [user("a"), CALL, {**OUTPUT, "output": []}],
        [user("a"), assistant(None, CALLED), tool("c1", "")],
    ),
    "an answer after the tool": (
        [user("a"), CALL, OUTPUT, assistant("Snow in Oslo."), user("Thanks.")],
        [user("a"), assistant(None, CALLED), tool("c1", "Snow."), assistant("Snow in Oslo."), user("Thanks.")],
    ),
}


@pytest.mark.parametrize("case", INPUTS)
def test_input_form_is_converted_to_chat_messages(client: openai.OpenAI, upstream: Upstream, case: str) -> None:
    upstream.script(NAME, SAID)
    given, expected = INPUTS[case]
    create(client, model=MODEL, input=given)
    assert sent(upstream)["messages"] == expected


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_message_forms_of_a_role_are_equivalent(client: openai.OpenAI, upstream: Upstream, role: str) -> None:
    upstream.script(NAME, SAID)
    fields = {"role": "system" if role == "developer" else role, "content": "Well."}
    contents = ["Well.", [part("Well.")], [part("Well.", "output_text")]][: 3 if role == "assistant" else 2]
    types, ids, statuses = [{}, {"type": "message"}], [{}, {"id": "msg_1"}], [{}, {"status": "completed"}]
    forms = list(product(contents, types, ids, statuses))
    for content, *optional in forms:
        message: Json = {"role": role, "content": content}
        for each in optional:
            message |= each
        create(client, model=MODEL, input=[message, user("Hi")])
        assert messages(upstream) == [fields, user("Hi")], message
    assert len(upstream.requests(NAME)) == len(forms)


def test_instructions_precede_system_messages(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    create(client, model=MODEL, instructions="Be brief.", input=[system("Be kind."), user("Hi")])
    assert sent(upstream)["messages"] == [system("Be brief.\n\nBe kind."), user("Hi")]


def test_input_items_are_stored_as_sent(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    question = {**user([part("Hi, for the first time")]), "id": "msg_mine"}
    response = create(client, model=MODEL, input=[system("Be kind."), question])
    [first, second] = client.responses.input_items.list(response["id"], order="asc").data
    assert first.id
    assert first.to_dict()["content"] == [part("Be kind.")]
    assert second.to_dict() == {**question, "type": "message", "status": "completed"}


# -- conversations -------------------------------------------------------------------


def script_weather(upstream: Upstream) -> None:
    """Script a model: reasoning, a comment and two calls, then an answer."""
    calls = interleaved_calls(("c1", "weather", CALL["arguments"]), ("c2", "weather", OTHER_CALL["arguments"]))
    first = reply(reasoning("Two ", "cities."), text("Let me look."), calls)
    upstream.script(NAME, [first, reply(text("Snow in Oslo, sun in Rome."))])


@pytest.mark.parametrize("way", ["by id", "by resending", "by reference"])
def test_function_outputs_in_the_next_response_follow_their_calls(
    client: openai.OpenAI, upstream: Upstream, way: str
) -> None:
    script_weather(upstream)
    question: Any = user("The weather?")
    answers = [OUTPUT, OTHER_OUTPUT]
    first = client.responses.create(model=MODEL, input=[question], tools=TOOLS)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
    if way == "by id":
        params: Json = {"previous_response_id": first.id, "input": answers}
    elif way == "by resending":
        params = {"input": [question, *first.output, *answers]}
    else:
        references = [{"type": "item_reference", "id": item.id} for item in first.output]
        params = {"input": [question, *references, *answers]}
    second = stream(client, model=MODEL, tools=TOOLS, **params).response
    assert second["output"][0]["content"][0]["text"] == "Snow in Oslo, sun in Rome."
    assert messages(upstream) == [
        question,
        assistant("Let me look.", CALLED, OTHER_CALLED, reasoning_content="Two cities."),
        tool("c1", "Snow."),
        tool("c2", "Sun."),
    ]


DUMPS: Final[dict[str, Callable[[BaseModel], Json]]] = {
    "to_dict": lambda item: item.to_dict(),
    "model_dump": lambda item: item.model_dump(),
    "model_dump without nulls": lambda item: item.model_dump(exclude_none=True),
}


@pytest.mark.parametrize("dump", DUMPS)
def test_dumped_output_items_can_be_sent_back(client: openai.OpenAI, upstream: Upstream, dump: str) -> None:
    script_weather(upstream)
    first = client.responses.create(model=MODEL, input="The weather?", tools=TOOLS)
    items = [DUMPS[dump](item) for item in first.output]
    create(client, model=MODEL, tools=TOOLS, input=[user("The weather?"), *items, OUTPUT, OTHER_OUTPUT])
    assert messages(upstream)[1] == assistant("Let me look.", CALLED, OTHER_CALLED, reasoning_content="Two cities.")


def test_output_of_sdk_stream_helper_can_be_sent_back(client: openai.OpenAI, upstream: Upstream) -> None:
    script_weather(upstream)
    with client.responses.stream(model=MODEL, input="The weather?", tools=TOOLS) as events:
        first = events.get_final_response()
    create(client, model=MODEL, tools=TOOLS, input=[user("The weather?"), *first.output, OUTPUT, OTHER_OUTPUT])
    assert messages(upstream)[1]["tool_calls"] == [CALLED, OTHER_CALLED]


def test_instructions_are_not_carried_over(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    first = create(client, model=MODEL, input=[system("Stay."), user("a")], instructions="Go.")
    second = create(client, model=MODEL, input="b", previous_response_id=first["id"])
    assert messages(upstream) == [system("Stay."), user("a"), assistant("Hello"), user("b")]
    assert second["instructions"] is None
    create(client, model=MODEL, input="c", previous_response_id=second["id"], instructions="New.")
    assert messages(upstream)[0] == system("New.\n\nStay.")


def test_continuation_without_input_is_accepted(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    first = create(client, model=MODEL, input="a")
    create(client, model=MODEL, previous_response_id=first["id"])
    assert messages(upstream) == [user("a"), assistant("Hello")]


def test_refusal_is_part_of_the_history(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(refusal("I will", " not.")), SAID])
    first = create(client, model=MODEL, input="a")
    create(client, model=MODEL, input="b", previous_response_id=first["id"])
    assert messages(upstream) == [user("a"), assistant("I will not."), user("b")]


def test_item_reference_without_type_is_resolved(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(text("one")), reply(text("two"))])
    first = create(client, model=MODEL, input=[{**user("a question of its own"), "id": "msg_the_question"}])
    answer = first["output"][0]["id"]
    create(client, model=MODEL, input=[{"id": "msg_the_question"}, {"id": answer, "type": None}, user("b")])
    assert messages(upstream) == [user("a question of its own"), assistant("one"), user("b")]


# -- invalid input -------------------------------------------------------


# The input, the parameter and the code of its error, and words of the message.
WRONG: Final[dict[str, tuple[Any, str, str | None, str]]] = {
    "nothing": ([], "input", "missing_required_parameter", "'input'"),
    "a number": (3, "input", "invalid_type", "an integer"),
    "an item that is a string": ([user("a"), "b"], "input[1]", "invalid_type", "'input[1]'"),
    "an unknown type": ([user("a"), {"type": "telepathy"}], "input[1].type", "invalid_value", "'telepathy'"),
    "no type and no role": ([{"content": "Hi"}], "input[0].type", "missing_required_parameter", "'input[0].type'"),
    "an unknown role": ([{"role": "tool", "content": "Hi"}], "input[0].role", "invalid_value", "'tool'"),
    "no content": ([{"role": "user"}], "input[0].content", "missing_required_parameter", "'input[0].content'"),
    "content that is a number": ([user(3)], "input[0].content", "invalid_type", "an integer"),
    "a part of an unknown type": (
        [user([part("Hi"), {"type": "smell"}])],
        "input[0].content[1].type",
        "invalid_value",
        "'smell'",
    ),
    "a user who says output_text": (
        [user([part("Hi", "output_text")])],
        "input[0].content[0].type",
        "invalid_value",
        "'output_text'",
    ),
    "text that is none": (
        [user([{"type": "input_text", "text": 3}])],
        "input[0].content[0].text",
        "invalid_type",
        "a string",
    ),
    "a call without its name": ([user("a"), {**CALL, "name": None}], "input[1].name", "invalid_type", "null"),
    "a call without its output": ([user("a"), CALL], "input", None, "No tool output found for function call c1"),
    "an output without its call": ([user("a"), OUTPUT], "input", None, "with call_id c1"),
    "an output before its call": ([user("a"), OUTPUT, CALL], "input", None, "with call_id c1"),
    "one of two outputs": ([user("a"), CALL, OTHER_CALL, OUTPUT], "input", None, "function call c2"),
    "an output without its program": (
        [{"type": "program_output", "call_id": "c1", "result": "", "status": "completed"}],
        "input",
        None,
        "No tool call found for program output with call_id c1",
    ),
    "an empty reference": ([{"type": "item_reference", "id": ""}], "input[0].id", "empty_string", "'input[0].id'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_input_is_400_with_its_parameter(wire: Wire, upstream: Upstream, case: str) -> None:
    given, param, code, words = WRONG[case]
    for streams in (False, True):
        found = error_of(wire.post({"model": MODEL, "input": given, "stream": streams}), 400)
        assert (found["type"], found["param"], found["code"]) == ("invalid_request_error", param, code)
        assert words in found["message"]
    assert upstream.requests() == []


def test_call_id_of_a_truncated_call_can_be_reused(client: openai.OpenAI, upstream: Upstream) -> None:
    call = tool_call(
        0, "functions.weather:0", "weather", '{"city": "Bonn"}'
    )  # some model servers number calls in this way
    upstream.script(NAME, [reply(call, finish("length")), reply(call), SAID])
    assert create(client, model=MODEL, input="And in Bonn?", tools=TOOLS)["status"] == "incomplete"
    again = create(client, model=MODEL, input="And in Bonn?", tools=TOOLS)
    output = {**OUTPUT, "call_id": "functions.weather:0"}
    create(client, model=MODEL, input=[output], tools=TOOLS, previous_response_id=again["id"])
    assert messages(upstream)[-1] == tool("functions.weather:0", "Snow.")


def test_call_of_a_broken_stream_is_left_out_of_the_history(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(text("one")), reply(tool_call(0, "c9", "weather", '{"ci'), end="drop"), SAID])
    first = create(client, model=MODEL, input="a")
    failed = stream(client, model=MODEL, input="b", tools=TOOLS, previous_response_id=first["id"]).response
    assert stored(client, failed["id"])["status"] == "failed"
    create(client, model=MODEL, input="c", previous_response_id=failed["id"])
    assert messages(upstream) == [user("a"), assistant("one"), user("b"), user("c")]
