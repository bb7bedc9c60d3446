"""JSON Schemas of the objects and events in the Open Responses specification.

The specification is partly stricter than the types of the `openai` package: some fields that are optional there are
required, and some that may be null there may not.

    check(RESPONSE, response)           # WireError with the violation and its path
    check_event(event)                  # an event of a stream, by its type
"""

from typing import Any, Final

from jsonschema import Draft202012Validator

from tests.support.conform import WireError

type Json = dict[str, Any]

STRING: Final[Json] = {"type": "string"}
INTEGER: Final[Json] = {"type": "integer"}
NUMBER: Final[Json] = {"type": "number"}
BOOLEAN: Final[Json] = {"type": "boolean"}
NULL: Final[Json] = {"type": "null"}
OBJECT: Final[Json] = {"type": "object"}


def nullable(schema: Json) -> Json:
    """Return a schema that also accepts null."""
    return {"anyOf": [schema, NULL]}


def either(*values: str) -> Json:
    """Return the schema of one of these strings."""
    return {"enum": list(values)}


def several(schema: Json) -> Json:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def record(required: Json, **optional: Json) -> Json:
    """Return the schema of an object with these fields; others are allowed."""
    return {"type": "object", "properties": required | optional, "required": list(required)}


def typed(kinds: dict[str, Json]) -> Json:
    """Return the schema of an object with one of these `type`s, and its type's schema."""
    cases = [{"if": {"properties": {"type": {"const": name}}}, "then": schema} for name, schema in kinds.items()]
    return {"type": "object", "required": ["type"], "properties": {"type": either(*kinds)}, "allOf": cases}


STATUS: Final = either("in_progress", "completed", "incomplete")
_TOP_LOGPROB: Final[Json] = {"token": STRING, "logprob": NUMBER, "bytes": several(INTEGER)}
LOGPROB: Final = record({**_TOP_LOGPROB, "top_logprobs": several(record(_TOP_LOGPROB))})
CITATION: Final = record({"url": STRING, "title": STRING, "start_index": INTEGER, "end_index": INTEGER})
PART: Final = typed(
    {
        "input_text": record({"text": STRING}),
        "input_image": record({"image_url": nullable(STRING), "detail": either("low", "high", "auto", "original")}),
        "input_file": record({}, filename=STRING, file_url=STRING),
        "output_text": record(
            {"text": STRING, "annotations": several(typed({"url_citation": CITATION})), "logprobs": several(LOGPROB)}
        ),
        "refusal": record({"refusal": STRING}),
        "reasoning_text": record({"text": STRING}),
        "summary_text": record({"text": STRING}),
    }
)
ITEM: Final = typed(
    {
        "message": record(
            {
                "id": STRING,
                "status": STATUS,
                "role": either("user", "assistant", "system", "developer"),
                "content": several(PART),
            },
            phase=either("commentary", "final_answer"),
        ),
        "function_call": record(
            {"id": STRING, "call_id": STRING, "name": STRING, "arguments": STRING, "status": STATUS}
        ),
        "function_call_output": record({"id": STRING, "call_id": STRING, "output": {}, "status": STATUS}),
        "reasoning": record({"id": STRING, "summary": several(PART)}, content=several(PART), encrypted_content=STRING),
        "compaction": record({"id": STRING, "encrypted_content": STRING}),
    }
)
USAGE: Final = record(
    {
        "input_tokens": INTEGER,
        "output_tokens": INTEGER,
        "total_tokens": INTEGER,
        "input_tokens_details": record({"cached_tokens": INTEGER}),
        "output_tokens_details": record({"reasoning_tokens": INTEGER}),
    }
)
TOOL: Final = typed(
    {
        "function": record(
            {
                "name": STRING,
                "description": nullable(STRING),
                "parameters": nullable(OBJECT),
                "strict": nullable(BOOLEAN),
            }
        )
    }
)
CHOICE: Final[Json] = {
    "anyOf": [
        either("none", "auto", "required"),
        typed({"function": record({"name": STRING}), "allowed_tools": record({"tools": {}, "mode": STRING})}),
    ]
}
FORMAT: Final = typed(
    {
        "text": OBJECT,
        "json_object": OBJECT,
        "json_schema": record({"name": STRING, "description": nullable(STRING), "schema": {}, "strict": BOOLEAN}),
    }
)
RESPONSE: Final = record(
    {
        "id": STRING,
        "object": {"const": "response"},
        "created_at": INTEGER,
        "completed_at": nullable(INTEGER),
        "status": either("completed", "failed", "in_progress", "cancelled", "queued", "incomplete"),
        "incomplete_details": nullable(record({"reason": STRING})),
        "model": STRING,
        "previous_response_id": nullable(STRING),
        "instructions": nullable(STRING),
        "output": several(ITEM),
        "error": nullable(record({"code": STRING, "message": STRING})),
        "tools": several(TOOL),
        "tool_choice": CHOICE,
        "truncation": either("auto", "disabled"),
        "parallel_tool_calls": BOOLEAN,
        "text": record({"format": FORMAT}, verbosity=either("low", "medium", "high")),
        "top_p": NUMBER,
        "presence_penalty": NUMBER,
        "frequency_penalty": NUMBER,
        "top_logprobs": INTEGER,
        "temperature": NUMBER,
        "reasoning": nullable(record({"effort": nullable(STRING), "summary": nullable(STRING)})),
        "usage": nullable(USAGE),
        "max_output_tokens": nullable(INTEGER),
        "max_tool_calls": nullable(INTEGER),
        "store": BOOLEAN,
        "background": BOOLEAN,
        "service_tier": STRING,
        "metadata": {"type": "object", "additionalProperties": STRING},
        "safety_identifier": nullable(STRING),
        "prompt_cache_key": nullable(STRING),
    }
)
COMPACTED: Final = record(
    {
        "id": STRING,
        "object": {"const": "response.compaction"},
        "created_at": INTEGER,
        "output": several(ITEM),
        "usage": USAGE,
    }
)
SOCKET_ERROR: Final = record(
    {
        "type": {"const": "error"},
        "status": INTEGER,
        "error": record({"code": nullable(STRING), "message": STRING}, type=STRING, param=nullable(STRING)),
    }
)
"""The error in answer to a request on a WebSocket. It is not an event of a stream, so it has no sequence number."""


def _events() -> dict[str, Json]:
    """Return the schemas of a stream's events by type."""
    place = {"item_id": STRING, "output_index": INTEGER}
    content, summary = {**place, "content_index": INTEGER}, {**place, "summary_index": INTEGER}
    opening = ("created", "queued", "in_progress")
    ends = {name: {"response": RESPONSE} for name in (*opening, "completed", "failed", "incomplete")}
    fields: dict[str, Json] = {
        **ends,
        **{f"output_item.{verb}": {"output_index": INTEGER, "item": ITEM} for verb in ("added", "done")},
        **{f"content_part.{verb}": {**content, "part": PART} for verb in ("added", "done")},
        **{f"reasoning_summary_part.{verb}": {**summary, "part": PART} for verb in ("added", "done")},
        "output_text.delta": {**content, "delta": STRING, "logprobs": several(LOGPROB)},
        "output_text.done": {**content, "text": STRING, "logprobs": several(LOGPROB)},
        "output_text.annotation.added": {**content, "annotation_index": INTEGER, "annotation": OBJECT},
        "refusal.delta": {**content, "delta": STRING},
        "refusal.done": {**content, "refusal": STRING},
        "reasoning_text.delta": {**content, "delta": STRING},
        "reasoning_text.done": {**content, "text": STRING},
        "reasoning_summary_text.delta": {**summary, "delta": STRING},
        "reasoning_summary_text.done": {**summary, "text": STRING},
        "function_call_arguments.delta": {**place, "delta": STRING},
        "function_call_arguments.done": {**place, "arguments": STRING},
    }
    return {f"response.{name}": record({"sequence_number": INTEGER, **own}) for name, own in fields.items()}


EVENT: Final = typed(_events())
_VALIDATORS: Final = {id(schema): Draft202012Validator(schema) for schema in (RESPONSE, COMPACTED, SOCKET_ERROR, EVENT)}


def check(schema: Json, value: Any) -> None:
    """Raise WireError unless `value` matches `schema`, one of this module's."""
    errors = sorted(_VALIDATORS[id(schema)].iter_errors(value), key=lambda error: error.json_path)
    if errors:
        raise WireError("\n".join(f"{error.json_path}: {error.message:.300}" for error in errors))


def check_event(event: Json) -> None:
    """Raise WireError unless `event` matches the specification of its type."""
    check(EVENT, event)
