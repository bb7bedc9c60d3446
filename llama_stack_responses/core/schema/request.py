"""The request body that creates a response: every field is checked and normalized here, once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ..answer_settings import EFFORT, FORMAT
from ..errors import bad_request
from ..ids import check_conversation_id, check_response_id
from ..items.parts import OUTPUT_PARTS
from ..items.registry import ITEM_KINDS
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
    check_count,
    check_json,
    excerpt,
    integer,
    invalid_type,
    kind,
    metadata,
    missing,
    number,
    object_of,
    one_of,
    or_null,
    schema_of,
    string,
    tagged,
    takes,
)
from .declared_tools import check_choice, tool_choice, tools
from .item_tools import check_carried
from .items import INPUT_SCHEMA, TRIGGER, check_input

DEFAULT_PASSTHROUGH: Final = frozenset(
    {
        "seed",
        "stop",
        "top_k",
        "min_p",
        "repetition_penalty",
        "chat_template_kwargs",
        "cache_salt",
        "priority",
        "logit_bias",
    }
)
"""Fields outside OpenAI's API that are passed to the engine unchanged, unless the operator configures others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """A checked request: OpenAI's fields by their names.

    A field that the client omitted, or sent as null, has its default from here; None leaves the default to the model
    server. The values are the client's own JSON and are shared with the response that echoes them, so they must not be
    changed.

    Attributes:
        input: as the client sent it.
        instructions: as the client sent them; with a prompt template, the messages that it produces.
        input_items: `input` as items in the form in which they are stored; empty without an `input`.
        conversation: its id.
        tools: each with its `type`, and a function with its `name`, `parameters` and `strict`.
        guardrails: the host's field, which OpenAI does not have: names of checks on input and output; None is the
            stack's default one.
        passthrough: fields for the engine, by name, that OpenAI does not have.
    """

    model: str
    input: str | list[Any] | None = None
    input_items: list[dict[str, Any]] = field(default_factory=list)
    instructions: str | list[dict[str, Any]] | None = None
    previous_response_id: str | None = None
    conversation: str | None = None
    prompt: dict[str, Any] | None = None
    context_management: Sequence[dict[str, Any]] = ()
    truncation: Literal["auto", "disabled"] = "disabled"
    image: dict[str, Any] | None = None

    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_logprobs: int | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: Sequence[str] = ()

    stream: bool = False
    stream_options: dict[str, Any] | None = None
    background: bool = False
    background_options: dict[str, Any] | None = None
    store: bool = True
    metadata: dict[str, str] = field(default_factory=dict)

    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    access_programs: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    guardrails: Sequence[str | None] = ()
    safety_identifier: str | None = None
    user: str | None = None

    passthrough: dict[str, Any] = field(default_factory=dict)

    @property
    def wants_logprobs(self) -> bool:
        """Whether output text carries logprobs: requested by `include`, or by a number of alternatives."""
        return "message.output_text.logprobs" in self.include or bool(self.top_logprobs)

    @property
    def reasoning_summary(self) -> Literal["auto", "concise", "detailed"] | None:
        """The requested reasoning summary, from `summary` or its former name."""
        reasoning = self.reasoning or {}
        return reasoning.get("summary") or reasoning.get("generate_summary")

    @property
    def compacts(self) -> bool:
        """Whether the request only compacts the conversation."""
        return any(item["type"] == TRIGGER for item in self.input_items[-1:])

    @property
    def prewarms(self) -> bool:
        """Whether the request only has the model server read the prompt, so that its cache has it."""
        return bool((self.prompt_cache_options or {}).get("prewarm"))

    @property
    def compared_response_id(self) -> str | None:
        """The response to whose prompt that of this response is compared."""
        return (self.prompt_cache_options or {}).get("comparison_response_id")

    @property
    def wants_json(self) -> bool:
        """Whether the answer has to be JSON, with or without a schema."""
        form = (self.text or {}).get("format")
        return form is not None and form["type"] != "text"


def parse_create(
    body: Any,
    *,
    passthrough: frozenset[str] = DEFAULT_PASSTHROUGH,
    limits: RequestLimits = DEFAULT_LIMITS,
    refuse_unknown: bool = False,
    may_be_empty: bool = False,
) -> CreateRequest:
    """Return the request of a decoded JSON body.

    Args:
        body: any JSON value.
        passthrough: names of fields outside OpenAI's API that are passed to the engine.
        limits: how much the request may hold.
        refuse_unknown: whether other unknown fields are refused, also those inside of fields; otherwise they are
            ignored.
        may_be_empty: whether the request needs no input, because no model is asked.

    Raises:
        ApiError: 400; `param` is the path of the invalid value, such as `tools[1].name`.
    """
    if not isinstance(body, dict):
        message = f"Invalid request body: expected a JSON object, but got {kind(body)} instead."
        raise bad_request(message, code="invalid_type")
    check_json(body)
    top = Location("", limits, refuse_unknown=refuse_unknown)
    if body.get("model") is None:
        raise missing(top.key("model"))
    _refuse_chat_fields(body, passthrough)
    if refuse_unknown:
        _refuse_unknown(body, passthrough)
    fields = {name: check(body[name], _at(top, name)) for name, check in _FIELDS.items() if body.get(name) is not None}
    _check_together(fields, may_be_empty=may_be_empty)
    if limits.bounded:
        check_carried(fields.get("input", []), fields.get("tools", []), limits)
    _refuse_unsupported(fields)
    return CreateRequest(
        input_items=fields.pop("input", []),
        input=body.get("input"),
        passthrough={name: body[name] for name in passthrough - _FIELDS.keys() if body.get(name) is not None},
        **fields,
    )


def _at(top: Location, name: str) -> Location:
    return top.key(name).leniently() if name in _LENIENT else top.key(name)


def read_fields(body: Mapping[str, Any], passthrough: frozenset[str]) -> dict[str, Any]:
    """Return the fields that `parse_create` reads. It ignores the others, which may hold a client's keys."""
    return {name: value for name, value in body.items() if name in _FIELDS or name in passthrough}


# Checks of single fields


SERVICE_TIERS: Final = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")


@takes(any_of({"type": "string"}, {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}))
def _conversation(value: Any, at: Location) -> str:
    """Check the id of a conversation, given alone or as the member of an object."""
    if isinstance(value, str):
        return check_conversation_id(value, at.path)
    if not isinstance(value, dict):
        raise invalid_type(value, at, "one of a string or an object")
    conversation: dict[str, str] = object_of({"id": string()}, "id")(value, at)
    return check_conversation_id(conversation["id"], at.key("id").path)


@takes({"type": "string", "pattern": "^resp_[0-9a-zA-Z_-]{1,64}$"})
def _previous_response_id(value: Any, at: Location) -> str:
    return check_response_id(string()(value, at), at.path)


_SUMMARY: Final = one_of("auto", "concise", "detailed")

_REASONING: Final = object_of(
    {
        "effort": EFFORT,
        "summary": _SUMMARY,
        "generate_summary": _SUMMARY,
        "context": one_of("auto", "current_turn", "all_turns"),
        "mode": string(1, 64),
    }
)

_TEXT: Final = object_of({"format": FORMAT, "verbosity": one_of("low", "medium", "high")})

_NAME: Final = string(1, 512)
_MAX_GUARDRAILS: Final = 16

_POLICY: Final = object_of({"mode": one_of("score", "block")}, "mode")

_MODERATION: Final = object_of(
    {"model": string(1, 512), "policy": object_of({"input": _POLICY, "output": _POLICY})}, "model"
)


_NAMED: Final = object_of({"type": _NAME}, "type")


@takes(any_of(schema_of(_NAME), schema_of(_NAMED)))
def _guardrail(value: Any, at: Location) -> str:
    name: str = _NAME(value, at) if isinstance(value, str) else _NAMED(value, at)["type"]
    return name


@takes(any_of({"type": "boolean"}, {"type": "array", "maxItems": _MAX_GUARDRAILS, "items": schema_of(_guardrail)}))
def _guardrails(value: Any, at: Location) -> list[str | None]:
    """Check names, or objects with a name as their `type`; true selects the stack's default."""
    if isinstance(value, bool):
        return [None] if value else []
    if not isinstance(value, list):
        raise invalid_type(value, at, "one of an array or a boolean")
    check_count(value, at, _MAX_GUARDRAILS)
    names: list[str | None] = array(_guardrail)(value, at)
    return names


_VARIABLE: Final = tagged(OUTPUT_PARTS)


def _variables(value: Any, at: Location) -> dict[str, Any]:
    """Check variables by name: strings, and parts of messages."""
    variables = an_object(value, at)
    return {name: _variable(variable, at.key(name)) for name, variable in variables.items()}


def _variable(value: Any, at: Location) -> str | dict[str, Any]:
    if not isinstance(value, str | dict):
        raise invalid_type(value, at, "one of a string or an object")
    variable: str | dict[str, Any] = (string() if isinstance(value, str) else _VARIABLE)(value, at)
    return variable


_PROMPT: Final = object_of({"id": string(1, 512), "variables": _variables, "version": string(1, 64)}, "id")

_CACHE_OPTIONS: Final = object_of(
    {
        "mode": one_of("implicit", "explicit"),
        "ttl": one_of("30m", "12h"),
        "prewarm": boolean,
        "comparison_response_id": string(1, 512),
    }
)

_BACKGROUND_OPTIONS: Final = object_of(
    {"completion_window": one_of("soonest", "2h", "8h"), "continuation_id": string(1, 512)}
)

_CONTEXT_ENTRY: Final = object_of({"type": one_of("compaction"), "compact_threshold": integer(1)}, "type")

INCLUDABLE: Final = tuple(value for kind in ITEM_KINDS.values() for value in kind.includable)
"""The supported values of `include`."""


# The whole request

_FIELDS: Final[Mapping[str, Check]] = {
    "access_programs": object_of({"cyber": one_of("standard", "daybreak_blue", "daybreak_red")}),
    "background": boolean,
    "background_options": _BACKGROUND_OPTIONS,
    "context_management": array(_CONTEXT_ENTRY),
    "conversation": _conversation,
    "frequency_penalty": number(-2, 2),
    "guardrails": _guardrails,
    "image": object_of({"context_compression": one_of("auto", "enabled", "disabled")}),
    "include": array(one_of(*INCLUDABLE)),
    "input": check_input,
    "instructions": string(),
    "max_output_tokens": integer(16),
    "max_tool_calls": integer(1),
    "metadata": metadata,
    "model": string(1, 512),
    "moderation": _MODERATION,
    "parallel_tool_calls": boolean,
    "presence_penalty": number(-2, 2),
    "previous_response_id": _previous_response_id,
    "prompt": _PROMPT,
    "prompt_cache_key": string(0, 512),
    "prompt_cache_options": _CACHE_OPTIONS,
    "prompt_cache_retention": one_of("in_memory", "24h"),
    "reasoning": _REASONING,
    "safety_identifier": string(0, 128),
    "service_tier": one_of(*SERVICE_TIERS),
    "store": boolean,
    "stream": boolean,
    "stream_options": object_of({"include_obfuscation": boolean}),
    "temperature": number(0, 2),
    "text": _TEXT,
    "tool_choice": tool_choice,
    "tools": tools,
    "top_logprobs": integer(0, 20),
    "top_p": number(0, 1),
    "truncation": one_of("auto", "disabled"),
    "user": string(0, 512),
}
"""Checks of OpenAI's fields, the penalties of the Open Responses specification, and the host's `guardrails`.

Null means absent for each field but the model.
"""

_UNSUPPORTED: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "image": (lambda image: image.get("context_compression") == "enabled", "'image.context_compression': 'enabled'"),
}
"""Unsupported values, by field: which values request the feature, and its name in the error message.

Such a request is refused: ignoring the field silently would be worse.
"""


_CHAT_FIELDS: Final[Mapping[str, str]] = {
    "function_call": "tool_choice",
    "functions": "tools",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}
"""Fields of the Chat Completions API that have another name in the Responses API."""


_WITHOUT_MEANING: Final = frozenset({"client_metadata", "max_infer_iters"})
"""Ignored fields that some clients send: Codex CLI's metadata, and the hosts' limit on rounds."""


_LENIENT: Final = frozenset({"guardrails", "input"})
"""Fields whose objects may have unknown members: clients send items back as they keep them, and the hosts' clients have
more fields in `guardrails`."""


FIELDS: Final = frozenset(_FIELDS)
"""The names of the fields."""


def request_schema(names: Collection[str] = FIELDS) -> Schema:
    """Return the JSON Schema of a request with these fields. Other fields are ignored, or passed to the engine."""
    required = ("model",)
    checks = {name: schema_of(check) for name, check in _FIELDS.items() if name in names}
    fields = {**checks, "input": INPUT_SCHEMA}
    properties = {name: schema if name in required else or_null(schema) for name, schema in fields.items()}
    return {"type": "object", "properties": properties, "required": list(required)}


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    for name, (asks_for_it, what) in _UNSUPPORTED.items():
        if name in body and asks_for_it(body[name]):
            raise bad_request(
                f"Unsupported parameter: {what} is not supported by this server.", name, "unsupported_parameter"
            )


def _refuse_chat_fields(body: Mapping[str, Any], passthrough: frozenset[str]) -> None:
    """Refuse fields of a chat request, as OpenAI does: ignoring them would give an answer that was not requested."""
    for name, moved_to in _CHAT_FIELDS.items():
        if body.get(name) is not None and name not in passthrough:
            raise bad_request(
                f"Unsupported parameter: '{name}'. In the Responses API, this parameter has moved to '{moved_to}'. "
                "Try again with the new parameter.",
                name,
                "unsupported_parameter",
            )


def _refuse_unknown(body: Mapping[str, Any], passthrough: frozenset[str]) -> None:
    """Refuse unknown fields, as OpenAI does."""
    for name in sorted(body.keys() - _FIELDS.keys() - passthrough - _WITHOUT_MEANING):
        if body[name] is not None:
            raise bad_request(
                f"Unknown parameter: '{excerpt(name)}'. Omit it, or ask the operator to add it to 'passthrough', the "
                "fields that go to the model server.",
                excerpt(name),
                "unknown_parameter",
            )


def _check_together(fields: Mapping[str, Any], *, may_be_empty: bool) -> None:
    """Check the fields in combination."""
    if "previous_response_id" in fields and "conversation" in fields:
        raise bad_request(
            "Mutually exclusive parameters: only one of 'previous_response_id' and 'conversation' can be given.",
            "previous_response_id",
            "mutually_exclusive_parameters",
        )
    has_input = fields.get("input") or may_be_empty
    if not has_input and fields.keys().isdisjoint({"previous_response_id", "conversation", "prompt"}):
        raise bad_request(
            "Missing required parameter: 'input'. Without it, 'previous_response_id', 'conversation' or 'prompt' must "
            "be given.",
            "input",
            "missing_required_parameter",
        )
    if fields.get("background") and not fields.get("store", True):
        raise bad_request("Background responses are stored: 'background' needs 'store' to be true.", "store")
    window = fields.get("background_options", {}).get("completion_window", "soonest")
    if window != "soonest" and (fields.get("stream") or not fields.get("background")):
        raise bad_request(
            f"A 'completion_window' of '{window}' needs 'background' to be true, and no 'stream'.",
            "background_options.completion_window",
        )
    if fields.get("guardrails") and fields.get("moderation"):
        raise bad_request(
            "Mutually exclusive parameters: only one of 'guardrails' and 'moderation' can be given.",
            "guardrails",
            "mutually_exclusive_parameters",
        )
    if "stream_options" in fields and not fields.get("stream"):
        raise bad_request("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")
    check_choice(fields.get("tool_choice", "auto"), fields.get("tools", []))
