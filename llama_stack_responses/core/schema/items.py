"""The items of a request's `input`, normalized to the form in which they are stored.

Clients send the same item in many ways: a bare string, a message without its type, an assistant's text as `input_text`,
a reasoning item with nulls. In the normal form, every item has its `type`, a message's content is a list of parts, and
there are only keys that OpenAI declares. Normalizing is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..errors import bad_request
from ..item_fields import CALLER, FILE_URL, ID, IMAGE_URL, NAME, OWN_ID, STATUS, TEXT
from ..shapes import (
    DEFAULT_LIMITS,
    Check,
    Location,
    RequestLimits,
    Schema,
    an_object,
    any_of,
    array,
    boolean,
    check_json,
    data,
    integer,
    invalid,
    invalid_type,
    missing,
    number,
    object_of,
    one_of,
    schema_of,
    string,
    tagged,
    takes,
)
from .answer_settings import configuration_update
from .client_items import CLIENT_ITEMS
from .hosted_items import HOSTED_ITEMS
from .mcp_shapes import MCP_ITEMS

ANSWERS: Final[Mapping[str, str]] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
}
"""Item types of outputs, by the type of the client-run call that they answer."""
COMPACTION: Final = "compaction"
"""The type of the item that replaces the conversation before it."""
CONFIGURATION: Final = "configuration_update"
"""The type of an item that changes settings of the responses after it."""
TRIGGER: Final = "compaction_trigger"
"""The type of an input's last item that requests a compaction of the conversation."""
ANSWERED: Final[Mapping[str, str]] = {output: call for call, output in ANSWERS.items()}
JOINABLE: Final = frozenset(ANSWERED) - {"local_shell_call_output", "tool_search_output"}
"""Item types of outputs that may lack their `call_id` where the limits of the request do not require it."""

_ROLE: Final = one_of("user", "assistant", "system", "developer")
_INDEX: Final = integer(0)


def parse_input(value: Any, limits: RequestLimits = DEFAULT_LIMITS) -> list[dict[str, Any]]:
    """Return the items of an `input`, in the form in which they are stored.

    Args:
        value: a decoded JSON value: a string, which means one user message, or an array of items.

    Raises:
        ApiError: 400; `param` is the path of the invalid value, such as `input[3].content[0].type`.
    """
    check_json(value)
    return check_input(value, Location("input", limits))


def check_input(value: Any, at: Location) -> list[dict[str, Any]]:
    """Check and normalize an `input` that has passed `check_json`."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": _one_text("input_text", value, at)}]
    if not isinstance(value, list):
        raise invalid_type(value, at, "one of a string or an array of input items")
    items: list[dict[str, Any]] = array(_item)(value, at)
    for position, item in enumerate(items[:-1]):
        if item["type"] == TRIGGER:
            raise invalid(at.index(position), "a 'compaction_trigger' must be the last item of the input.")
    return items


def check_ids(history: Iterable[Mapping[str, Any]], items: Iterable[Mapping[str, Any]], param: str = "input") -> None:
    """Raise a 400 that names `param` if one of `items` has the id of an earlier item of `history` or `items`."""
    known = {item.get("id") for item in history}
    for item in items:
        if (item_id := item.get("id")) is None:
            continue
        if item_id in known:
            message = f"Duplicate item found with id {item_id}. Remove duplicate items from your input and try again."
            raise bad_request(message, param)
        known.add(item_id)


# Parts


def _one_text(kind: str, value: str, at: Location) -> list[dict[str, Any]]:
    part = {"type": kind, "text": TEXT(value, at)}
    return [{**part, "annotations": []} if kind == "output_text" else part]


def _content(text_kind: str, part: Check) -> Check:
    """Return a check for a message's content, a string or an array of parts, normalized to parts."""
    parts = array(part)

    @takes(any_of({"type": "string"}, schema_of(parts)))
    def check(value: Any, at: Location) -> list[dict[str, Any]]:
        if isinstance(value, str):
            return _one_text(text_kind, value, at)
        if not isinstance(value, list):
            raise invalid_type(value, at, "one of a string or an array of objects")
        checked: list[dict[str, Any]] = parts(value, at)
        return checked

    return check


def _needing(check: Check, *names: str) -> Check:
    """Return a check for an object that needs at least one of these members; error messages name the first."""

    @takes({**schema_of(check), "anyOf": [{"required": [name]} for name in names]})
    def check_it(value: Any, at: Location) -> dict[str, Any]:
        checked: dict[str, Any] = check(value, at)
        if not any(checked.get(name) for name in names):
            raise missing(at.key(names[0]))
        return checked

    return check_it


_BREAKPOINT: Final = object_of({"mode": one_of("explicit"), "ttl": one_of("30m", "12h")}, "mode")

_INPUT_TEXT: Final = object_of({"text": TEXT, "prompt_cache_breakpoint": _BREAKPOINT}, "text")

_INPUT_IMAGE: Final = _needing(
    object_of(
        {
            "detail": one_of("low", "high", "auto", "original"),
            "image_url": IMAGE_URL,
            "file_id": ID,
            "prompt_cache_breakpoint": _BREAKPOINT,
        },
        defaults={"detail": "auto"},
    ),
    "image_url",
    "file_id",
)

_INPUT_FILE: Final = _needing(
    object_of(
        {
            "detail": one_of("auto", "low", "high"),
            "file_data": data,
            "file_id": ID,
            "file_url": FILE_URL,
            "filename": string(0, 1024),
            "prompt_cache_breakpoint": _BREAKPOINT,
        }
    ),
    "file_data",
    "file_id",
    "file_url",
)

_INPUT_AUDIO: Final = object_of(
    {"input_audio": object_of({"data": data, "format": one_of("mp3", "wav")}, "data", "format")}, "input_audio"
)

OUTPUT_PARTS: Final[Mapping[str, Check]] = {
    "input_text": _INPUT_TEXT,
    "input_image": _INPUT_IMAGE,
    "input_file": _INPUT_FILE,
}
"""Checks of the parts of a call's output and of a prompt's variables, by type."""

_INPUT_PARTS: Final[Mapping[str, Check]] = {**OUTPUT_PARTS, "input_audio": _INPUT_AUDIO}
"""Checks of the parts of a message to the model, by type."""

_ANNOTATIONS: Final[Mapping[str, Check]] = {
    "file_citation": object_of({"file_id": ID, "filename": TEXT, "index": _INDEX}, "file_id", "filename", "index"),
    "url_citation": object_of(
        {"url": TEXT, "title": TEXT, "start_index": _INDEX, "end_index": _INDEX},
        "url",
        "title",
        "start_index",
        "end_index",
    ),
    "container_file_citation": object_of(
        {"container_id": ID, "file_id": ID, "filename": TEXT, "start_index": _INDEX, "end_index": _INDEX},
        "container_id",
        "file_id",
        "filename",
        "start_index",
        "end_index",
    ),
    "file_path": object_of({"file_id": ID, "index": _INDEX}, "file_id", "index"),
}

_TOKEN: Final[Mapping[str, Check]] = {"token": TEXT, "bytes": array(integer(0, 255)), "logprob": number()}

_LOGPROB: Final = object_of(
    {**_TOKEN, "top_logprobs": array(object_of(_TOKEN, *_TOKEN))},
    *_TOKEN,
    "top_logprobs",
)

_OUTPUT_TEXT: Final = object_of(
    {"text": TEXT, "annotations": array(tagged(_ANNOTATIONS)), "logprobs": array(_LOGPROB)},
    "text",
    defaults={"annotations": []},
)

_SPOKEN_PARTS: Final[Mapping[str, Check]] = {
    "output_text": _OUTPUT_TEXT,
    "refusal": object_of({"refusal": TEXT}, "refusal"),
}
_SPOKEN_PART: Final = tagged(_SPOKEN_PARTS)


@takes(schema_of(tagged({**_SPOKEN_PARTS, "input_text": _OUTPUT_TEXT})))
def _assistant_part(value: Any, at: Location) -> dict[str, Any]:
    """Check a part of an assistant's message. Many clients send back all text as `input_text`."""
    if isinstance(value, dict) and value.get("type") == "input_text":
        value = {**value, "type": "output_text"}
    part: dict[str, Any] = _SPOKEN_PART(value, at)
    return part


# Items

_MESSAGE: Final = object_of(
    {
        "id": OWN_ID,
        "role": _ROLE,
        "content": _content("input_text", tagged(_INPUT_PARTS)),
        "status": STATUS,
    },
    "content",
)

_ASSISTANT_MESSAGE: Final = object_of(
    {
        "id": OWN_ID,
        "role": _ROLE,
        "content": _content("output_text", _assistant_part),
        "phase": one_of("commentary", "final_answer"),
        "status": STATUS,
    },
    "content",
)

_MESSAGES: Final[Mapping[str, Check]] = {
    "user": _MESSAGE,
    "assistant": _ASSISTANT_MESSAGE,
    "system": _MESSAGE,
    "developer": _MESSAGE,
}
"""Checks of messages, by role."""

_WITH_ROLE: Final = object_of({"role": _ROLE}, "role")


def _message_schema(check: Check, *roles: str) -> Schema:
    schema = schema_of(check)
    return {
        **schema,
        "properties": {**schema["properties"], "role": schema_of(one_of(*roles))},
        "required": ["role", "content"],
    }


@takes(
    any_of(_message_schema(_MESSAGE, "user", "system", "developer"), _message_schema(_ASSISTANT_MESSAGE, "assistant"))
)
def _message(value: Any, at: Location) -> dict[str, Any]:
    role = _WITH_ROLE(value, at)["role"]
    message: dict[str, Any] = _MESSAGES[role](value, at)
    return message


def _reasoning_texts(kind: str) -> Check:
    """Return a check for reasoning text or its summary, normalized to parts of this kind.

    It accepts a string, or an array of strings and of parts of this kind or of type `text`, so text that some clients
    flatten is stored in one form.
    """
    part = object_of({"type": one_of(kind, "text"), "text": TEXT}, "text")

    @takes(any_of({"type": "string"}, schema_of(part)))
    def check(value: Any, at: Location) -> dict[str, Any]:
        checked = part({"text": value} if isinstance(value, str) else value, at)
        return {"type": kind, "text": checked["text"]}

    several = array(check)

    @takes(any_of({"type": "string"}, schema_of(several)))
    def check_all(value: Any, at: Location) -> list[dict[str, Any]]:
        checked: list[dict[str, Any]] = several(list(filter(None, [value])) if isinstance(value, str) else value, at)
        return checked

    return check_all


_REASONING: Final = object_of(
    {
        "id": OWN_ID,
        "summary": _reasoning_texts("summary_text"),
        "content": _reasoning_texts("reasoning_text"),
        "encrypted_content": data,
        "status": STATUS,
    },
    defaults={"summary": []},
)

_FUNCTION_CALL: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "name": NAME,
        "namespace": NAME,
        "arguments": TEXT,
        "async": boolean,
        "caller": CALLER,
        "status": STATUS,
    },
    "call_id",
    "name",
    "arguments",
)

_OUTPUT: Final = array(tagged(OUTPUT_PARTS))


@takes(any_of(schema_of(TEXT), schema_of(_OUTPUT)))
def _call_output(value: Any, at: Location) -> str | list[dict[str, Any]]:
    """Check a call's output. A string stays one, since it differs from a list that holds one text."""
    if not isinstance(value, str | list):
        raise invalid_type(value, at, "one of a string or an array of objects")
    output: str | list[dict[str, Any]] = (TEXT if isinstance(value, str) else _OUTPUT)(value, at)
    return output


_FUNCTION_CALL_OUTPUT: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "name": NAME,
        "namespace": NAME,
        "output": _call_output,
        "caller": CALLER,
        "status": STATUS,
    },
    "call_id",
    "output",
)

_CUSTOM_TOOL_CALL: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "name": NAME,
        "namespace": NAME,
        "input": TEXT,
        "async": boolean,
        "caller": CALLER,
        "status": STATUS,
    },
    "call_id",
    "name",
    "input",
)

_CUSTOM_TOOL_CALL_OUTPUT: Final = object_of(
    {"id": OWN_ID, "call_id": ID, "output": _call_output, "caller": CALLER, "status": STATUS}, "call_id", "output"
)

_ITEMS: Final[Mapping[str, Check]] = {
    "message": _message,
    "reasoning": _REASONING,
    "function_call": _FUNCTION_CALL,
    "function_call_output": _FUNCTION_CALL_OUTPUT,
    "custom_tool_call": _CUSTOM_TOOL_CALL,
    "custom_tool_call_output": _CUSTOM_TOOL_CALL_OUTPUT,
    **CLIENT_ITEMS,
    **HOSTED_ITEMS,
    **MCP_ITEMS,
    COMPACTION: object_of({"id": OWN_ID, "encrypted_content": data}, "encrypted_content"),
    TRIGGER: object_of({"id": OWN_ID}),
    CONFIGURATION: configuration_update,
    "item_reference": object_of({"id": ID}, "id"),
}
"""Checks of the items that this server supports, by type."""


def _joined_later(check: Check) -> Check:
    """Return the check for an output whose `call_id` may be absent, null or empty if the limits do not require it."""

    @takes(schema_of(check))
    def check_it(value: Any, at: Location) -> dict[str, Any]:
        members = an_object(value, at)
        if at.limits.call_ids_required or members.get("call_id"):
            checked: dict[str, Any] = check(members, at)
            return checked
        checked = check({**members, "call_id": "call"}, at)
        del checked["call_id"]
        return checked

    return check_it


_TYPED_ITEM: Final = tagged(
    {kind: _joined_later(check) if kind in JOINABLE else check for kind, check in _ITEMS.items()}
)


@takes(any_of(schema_of(_TYPED_ITEM), schema_of(_message), {"type": "object", "required": ["id"]}))
def _item(value: Any, at: Location) -> dict[str, Any]:
    members = an_object(value, at)
    if members.get("type") is None:
        members = {**members, "type": _implied_type(members, at)}
    item: dict[str, Any] = _TYPED_ITEM(members, at)
    if item.get("id") == "":
        del item["id"]
    return item


def _implied_type(members: dict[str, Any], at: Location) -> str:
    """Return the type of an item without one: with a role it is a message, with only an id a reference."""
    names = {name for name, member in members.items() if member is not None}
    if "role" in names:
        return "message"
    if names == {"id"}:
        return "item_reference"
    raise missing(at.key("type"))


ITEMS_SCHEMA: Final = schema_of(array(_item))
"""JSON Schema of an array of items."""

INPUT_SCHEMA: Final = any_of({"type": "string"}, ITEMS_SCHEMA)
"""JSON Schema of what `check_input` accepts."""
