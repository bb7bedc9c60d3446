"""JSON Schemas of the answers: the part of the OpenAPI document that cannot be derived from the code.

The schemas contain no references, so none can dangle. Objects may have additional fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import Response

from ..chat.prompt_comparison import REASONS
from ..core.shapes import Schema, any_of, metadata, or_null, schema_of
from ..core.statuses import STATUSES
from ..requests.input_items import ITEMS_SCHEMA
from ..requests.request import ECHOED
from ..requests.request_values import INCLUDABLE

TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer", "minimum": 0}
YES_OR_NO: Final[Schema] = {"type": "boolean"}
BINARY: Final[Schema] = {"type": "string", "format": "binary"}
"""The content of a file."""
TIME: Final[Schema] = {"type": "number", "description": "Seconds since the epoch."}
_OBJECT: Final[Schema] = {"type": "object"}


def an_id(prefix: str) -> Schema:
    """Return the schema of an id with this prefix."""
    return {"type": "string", "pattern": f"^{prefix}_"}


def whole(**fields: Schema) -> Schema:
    """Return the schema of an object in which all these fields are required."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def constant(value: str) -> Schema:
    """Return the schema of this string."""
    return {"type": "string", "const": value}


def one_of(*values: str) -> Schema:
    """Return the schema of one of these strings."""
    return {"type": "string", "enum": list(values)}


def array_of(entry: Schema) -> Schema:
    """Return the schema of an array of these."""
    return {"type": "array", "items": entry}


def page(entry: Schema) -> Schema:
    """Return the schema of a page of a list."""
    ends = or_null(TEXT)
    return whole(object=constant("list"), data=array_of(entry), first_id=ends, last_id=ends, has_more=YES_OR_NO)


def deleted(kind: str) -> Schema:
    """Return the schema of the confirmation of a deletion."""
    return whole(id=TEXT, object=constant(kind), deleted={"type": "boolean", "const": True})


ERROR: Final = whole(error=whole(message=TEXT, type=TEXT, param=or_null(TEXT), code=or_null(TEXT)))
ERROR_RESPONSES: Final = {
    "default": {"description": "An error.", "content": {"application/json": {"schema": ERROR}}},
}
"""The answers of all routes other than the one to a good request."""

_PART: Final = one_of("ok", "unavailable", "unknown")
READINESS: Final[Schema] = {
    "type": "object",
    "properties": {
        "status": one_of("ready", "not_ready", "stopping"),
        "store": _PART,
        "worker": _PART,
        "model_server": _PART,
        "clock": one_of("wrong"),
        "durability": one_of("volatile", "unknown"),
        "secrets": one_of("different"),
        "sweep": one_of("held"),
    },
    "required": ["status"],
}

TYPED: Final[Schema] = {"type": "object", "properties": {"type": TEXT}, "required": ["type"]}
"""An object whose `type` identifies its kind."""

_ITEM: Final[Schema] = {"type": "object", "properties": {"type": TEXT, "id": TEXT}, "required": ["type"]}

_USAGE: Final = whole(
    input_tokens=WHOLE,
    input_tokens_details=whole(cached_tokens=WHOLE, cache_write_tokens=WHOLE),
    output_tokens=WHOLE,
    output_tokens_details=whole(reasoning_tokens=WHOLE),
    total_tokens=WHOLE,
)

_IMAGE_TOKENS: Final = whole(image_tokens=WHOLE, text_tokens=WHOLE)
_IMAGE_USAGE: Final = whole(
    input_tokens=WHOLE,
    input_tokens_details=_IMAGE_TOKENS,
    output_tokens=WHOLE,
    output_tokens_details=_IMAGE_TOKENS,
    total_tokens=WHOLE,
)

_CACHE_MISS: Final = whole(type=constant("cache_miss"), reason=one_of(*REASONS), cache_missed_tokens=WHOLE)
_CACHE_DIAGNOSTICS: Final = any_of(
    whole(type=one_of("cache_hit", "comparison_response_not_found", "unavailable")),
    {**_CACHE_MISS, "properties": {**_CACHE_MISS["properties"], "comparison_reusable_tokens": WHOLE}},
)

RESPONSE: Final = whole(
    id=an_id("resp"),
    object=constant("response"),
    created_at=TIME,
    status=one_of(*STATUSES),
    completed_at=or_null(TIME),
    error=or_null(whole(code=TEXT, message=TEXT)),
    incomplete_details=or_null(whole(reason=TEXT)),
    input_transformations=or_null(_OBJECT),
    **{name: schema for name, (_, schema) in ECHOED.items()},
    moderation=or_null(_OBJECT),
    reasoning=_OBJECT,
    tools=array_of(TYPED),
    output=array_of(_ITEM),
    prompt_cache_diagnostics=or_null(_CACHE_DIAGNOSTICS),
    tool_usage=or_null(whole(image_gen=_IMAGE_USAGE, web_search=whole(num_requests=WHOLE))),
    usage=or_null(_USAGE),
)
"""A response; every field is always present."""

ITEM: Final = whole(type=TEXT, id=TEXT)

ITEMS: Final = page(ITEM)

_PAIRS: Final = schema_of(metadata)

CONVERSATION: Final = whole(id=an_id("conv"), object=constant("conversation"), created_at=TIME, metadata=_PAIRS)

METADATA: Final = whole(metadata=or_null(_PAIRS))

NEW_ITEMS: Final = whole(items=ITEMS_SCHEMA)

NEW_CONVERSATION: Final[Schema] = {
    "type": "object",
    "properties": {"metadata": or_null(_PAIRS), "items": or_null(ITEMS_SCHEMA)},
}

TOKENS: Final = whole(object=constant("response.input_tokens"), input_tokens=WHOLE)

COMPACTION: Final = whole(
    id=TEXT,
    object=constant("response.compaction"),
    created_at=TIME,
    output=array_of(_ITEM),
    usage=_USAGE,
)

EVENTS: Final[Schema] = {
    "type": "object",
    "description": "One server-sent event; the last one has the data [DONE].",
    "properties": {"event": TEXT, "data": TEXT},
    "required": ["data"],
}

PAGING: Final[Mapping[str, Schema]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "after": {"type": "string", "maxLength": 512, "description": "The last id of the page before."},
    "order": {**one_of("asc", "desc"), "default": "desc"},
}
"""The query parameters of every list."""

INCLUDE: Final[Mapping[str, Schema]] = {"include": array_of(one_of(*INCLUDABLE))}

REPLAY: Final[Mapping[str, Schema]] = {
    "stream": {**YES_OR_NO, "default": False},
    "include_obfuscation": YES_OR_NO,
    "starting_after": {**WHOLE, "description": "Only the events after this number."},
}


def described(
    answer: Schema,
    *,
    body: Schema | None = None,
    example: Any = None,
    query: Mapping[str, Schema] | None = None,
    media: str = "application/json",
    form: Schema | None = None,
    streams: bool = False,
    optional: bool = False,
) -> dict[str, Any]:
    """Return the keyword arguments of `add_api_route` that describe a route.

    Args:
        answer: schema of the successful answer.
        body: schema of the JSON body, if there is one.
        example: an example of the body.
        query: schemas of the query parameters, by name.
        media: media type of the answer.
        form: schema of the form that the body may be.
        streams: whether the answer may be an event stream.
        optional: whether the body may be omitted.
    """
    content: dict[str, Any] = {media: {"schema": answer}}
    if streams:
        content["text/event-stream"] = {"schema": EVENTS}
    extra: dict[str, Any] = {"responses": {"200": {"description": "It is done.", "content": content}}}
    sent: dict[str, Any] = {} if form is None else {"multipart/form-data": {"schema": form}}
    if body is not None:
        sent["application/json"] = {"schema": body} if example is None else {"schema": body, "example": example}
    if sent:
        extra["requestBody"] = {"required": not optional, "content": sent}
    if query:
        extra["parameters"] = [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]
    # Without a response class, FastAPI would add JSON to the media types of the answer.
    return {"openapi_extra": extra, **({} if media == "application/json" else {"response_class": Response})}
