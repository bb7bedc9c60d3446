"""Every event has exactly the keys of the `openai` model of its type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, get_args

import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel

from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream import events
from llama_stack_responses.stream.response import new_response
from tests.support.conform import ALLOWED_KEYS
from tests.support.own_types import events_of_kinds
from tests.support.strict import validate_event

Json = dict[str, Any]

LEFT_OUT: Final[dict[str, set[str]]] = {
    # Set only for a summary that was cut off, where the item has the status too.
    "response.reasoning_summary_part.done": {"status"},
    "response.shell_call_command.delta": {"obfuscation"},
}
"""Optional fields of the types that this server deliberately does not send."""

NOT_BUILT: Final = {
    "response.audio.delta",
    "response.audio.done",
    "response.audio.transcript.delta",
    "response.audio.transcript.done",
}
"""Events that this server does not emit yet; remove an entry when its constructor is added."""

LOGPROB: Final[Json] = {
    "token": "a",
    "bytes": [97],
    "logprob": -0.5,
    "top_logprobs": [{"token": "b", "bytes": [98], "logprob": -1.0}],
}

OUTPUT_TEXT: Final[Json] = {"type": "output_text", "text": "a", "annotations": [], "logprobs": [LOGPROB]}

PARTS: Final[dict[str, Json]] = {
    "output_text": OUTPUT_TEXT,
    "refusal": {"type": "refusal", "refusal": "no"},
    "reasoning_text": {"type": "reasoning_text", "text": "hm"},
    "reasoning_summary": {"type": "summary_text", "text": "hm"},
    "content_part": OUTPUT_TEXT,
}
"""A part for each constructor that takes one, by the beginning of the constructor's name."""

ARGUMENTS: Final[Json] = {
    "sequence_number": 7,
    "response_id": "resp_1",
    "response": new_response(parse_create({"model": "m", "input": "hi"}), id="resp_1", created_at=1.0),
    "item": {
        "id": "fc_1",
        "type": "function_call",
        "status": "in_progress",
        "call_id": "c",
        "name": "f",
        "arguments": "",
    },
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 1,
    "summary_index": 2,
    "index_in_item": 4,
    "annotation_index": 3,
    "annotation": {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1},
    "delta": "a",
    "arguments": "{}",
    "command": "ls",
    "command_index": 0,
    "printed": {"stdout": "a", "stderr": ""},
    "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    "input": "a",
    "logprobs": events.event_logprobs([LOGPROB]),
    "code": "server_error",
    "message": "It failed.",
    "param": None,
}

CONSTRUCTORS: Final[dict[str, Callable[..., Json]]] = {
    name: function
    for name, function in inspect.getmembers(events, inspect.isfunction)
    if "sequence_number" in inspect.signature(function).parameters and not name.startswith("_")
}


def event_of(name: str) -> Json:
    constructor = CONSTRUCTORS[name]
    arguments = {each: ARGUMENTS.get(each) for each in inspect.signature(constructor).parameters}
    if "part" in arguments:
        arguments["part"] = next(part for start, part in PARTS.items() if name.startswith(start))
    return constructor(**arguments)


def models() -> dict[str, type[BaseModel]]:
    """Return the models of all events, by type."""
    members: tuple[type[BaseModel], ...] = get_args(get_args(ResponseStreamEvent)[0])
    return {get_args(model.model_fields["type"].annotation)[0]: model for model in members}


@pytest.mark.parametrize("constructor", CONSTRUCTORS)
def test_event_has_keys_of_its_model(constructor: str) -> None:
    event = event_of(constructor)
    fields = {field.alias or name for name, field in models()[event["type"]].model_fields.items()}
    more = ALLOWED_KEYS.get(models()[event["type"]], frozenset())
    assert set(event) == fields - LEFT_OUT.get(event["type"], set()) | more


@pytest.mark.parametrize("constructor", CONSTRUCTORS)
def test_event_is_valid_for_its_type(constructor: str) -> None:
    event = event_of(constructor)
    validate_event(event)
    assert event["sequence_number"] == 7


@pytest.mark.parametrize("constructor", CONSTRUCTORS)
def test_event_argument_sets_field_of_same_name(constructor: str) -> None:
    event = event_of(constructor)
    parameters = inspect.signature(CONSTRUCTORS[constructor]).parameters.keys()
    for name in parameters & event.keys() - {"part"}:
        assert event[name] == ARGUMENTS[name]
    if "index_in_item" in parameters:
        index = "summary_index" if "summary" in constructor else "content_index"
        assert event[index] == ARGUMENTS["index_in_item"]


@pytest.mark.parametrize("event", events_of_kinds(), ids=lambda event: event["type"])
def test_event_of_kind_is_valid(event: Json) -> None:
    validate_event(event)
    if model := models().get(event["type"]):
        fields = {field.alias or name for name, field in model.model_fields.items()}
        assert set(event) == fields - LEFT_OUT.get(event["type"], set()) | ALLOWED_KEYS.get(model, frozenset())
    assert (event["sequence_number"], event.get("item_id", "i_1"), event["output_index"]) == (7, "i_1", 0)


def test_every_event_type_is_built_once_or_listed() -> None:
    built = [event_of(name)["type"] for name in CONSTRUCTORS]
    built += [event["type"] for event in events_of_kinds()]
    assert len(built) == len(set(built))
    assert models().keys() - set(built) == NOT_BUILT


def test_omitted_event_fields_are_optional() -> None:
    for event_type, names in LEFT_OUT.items():
        fields = models()[event_type].model_fields
        assert not any(fields[name].is_required() for name in names)


def test_done_event_repeats_text_of_part() -> None:
    done = events.output_text_done(0, "msg_1", 0, 0, OUTPUT_TEXT)
    assert done["text"] == "a"
    assert done["logprobs"] == [{"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1.0}]}]
    assert events.refusal_done(0, "msg_1", 0, 0, PARTS["refusal"])["refusal"] == "no"


def test_event_logprobs_do_not_modify_part() -> None:
    before = {**LOGPROB, "top_logprobs": [dict(top) for top in LOGPROB["top_logprobs"]]}
    events.event_logprobs([LOGPROB])
    assert before == LOGPROB
