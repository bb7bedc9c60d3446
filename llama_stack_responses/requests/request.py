"""The request body that creates a response: every field is checked and normalized here, once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, Final, Literal

from ..core.errors import bad_request
from ..core.shapes import (
    DEFAULT_LIMITS,
    Check,
    Location,
    RequestLimits,
    Schema,
    any_of,
    array,
    boolean,
    check_json,
    excerpt,
    integer,
    kind,
    metadata,
    missing,
    number,
    object_of,
    one_of,
    or_null,
    schema_of,
    string,
)
from . import request_values as values
from .declared_tools import check_choice, tool_choice, tools
from .input_items import INPUT_SCHEMA, TRIGGER, check_input
from .item_tools import check_carried
from .request_field import declared, or_else, request_field, same

_TEXT: Final[Schema] = {"type": "string"}
_OBJECT: Final[Schema] = {"type": "object"}
_LIST: Final[Schema] = {"type": "array", "items": _OBJECT}

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

    Each field is declared once, with `request_field`: its check, its default for clients that omit it or send null,
    what a response repeats of it, and whether a chat request has it too. A default of None leaves the value to the
    model server. The values are the client's own JSON and are shared with the response that echoes them, so they must
    not be changed.

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

    model: str = request_field(string(1, 512), MISSING, echo=same, schema=_TEXT)
    input: str | list[Any] | None = None
    input_items: list[dict[str, Any]] = field(default_factory=list)
    instructions: str | list[dict[str, Any]] | None = request_field(
        string(), echo=same, schema=or_null(any_of(_TEXT, _LIST))
    )
    previous_response_id: str | None = request_field(values.previous_response_id, echo=same)
    conversation: str | None = request_field(
        values.conversation, echo=values.echoed_conversation, schema=or_null(_OBJECT)
    )
    prompt: dict[str, Any] | None = request_field(values.PROMPT, echo=same, schema=or_null(_OBJECT))
    context_management: Sequence[dict[str, Any]] = request_field(array(values.CONTEXT_ENTRY), ())
    truncation: Literal["auto", "disabled"] = request_field(one_of("auto", "disabled"), "disabled", echo=same)
    image: dict[str, Any] | None = request_field(
        values.IMAGE, echo=values.echoed_image, unsupported=values.unsupported_image
    )

    tools: list[dict[str, Any]] = request_field(tools, factory=list)
    tool_choice: str | dict[str, Any] | None = request_field(
        tool_choice, echo=or_else("auto"), schema=any_of(_TEXT, _OBJECT)
    )
    parallel_tool_calls: bool | None = request_field(boolean, echo=or_else(True))
    max_tool_calls: int | None = request_field(integer(1), echo=same)

    max_output_tokens: int | None = request_field(integer(16), echo=same)
    temperature: float | None = request_field(number(0, 2), echo=or_else(1.0), forwarded=True)
    top_p: float | None = request_field(number(0, 1), echo=or_else(1.0), forwarded=True)
    frequency_penalty: float | None = request_field(number(-2, 2), echo=or_else(0.0), forwarded=True)
    presence_penalty: float | None = request_field(number(-2, 2), echo=or_else(0.0), forwarded=True)
    top_logprobs: int | None = request_field(integer(0, 20), echo=or_else(0))
    text: dict[str, Any] | None = request_field(values.TEXT, echo=values.echoed_text, schema=_OBJECT)
    reasoning: dict[str, Any] | None = request_field(values.REASONING)
    include: Sequence[str] = request_field(array(one_of(*values.INCLUDABLE)), ())

    stream: bool = request_field(boolean, False)
    stream_options: dict[str, Any] | None = request_field(object_of({"include_obfuscation": boolean}))
    background: bool = request_field(boolean, False, echo=same)
    background_options: dict[str, Any] | None = request_field(values.BACKGROUND_OPTIONS)
    store: bool = request_field(boolean, True, echo=same)
    metadata: dict[str, str] = request_field(metadata, factory=dict, echo=or_else({}))

    service_tier: str | None = request_field(
        one_of(*values.SERVICE_TIERS), echo=values.echoed_tier, schema=_TEXT, forwarded=True
    )
    prompt_cache_key: str | None = request_field(string(0, 512), echo=same, forwarded=True)
    prompt_cache_options: dict[str, Any] | None = request_field(
        values.CACHE_OPTIONS, echo=values.echoed_cache_options, schema=or_null(_OBJECT)
    )
    prompt_cache_retention: str | None = request_field(one_of("in_memory", "24h"), echo=same, forwarded=True)
    access_programs: dict[str, Any] | None = request_field(
        values.ACCESS_PROGRAMS, echo=lambda programs: programs or None, schema=or_null(_OBJECT)
    )
    moderation: dict[str, Any] | None = request_field(values.MODERATION)
    guardrails: Sequence[str | None] = request_field(values.guardrails, (), lenient=True)
    safety_identifier: str | None = request_field(string(0, 128), echo=same, forwarded=True)
    user: str | None = request_field(string(0, 512), echo=same, forwarded=True)

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


REQUEST_FIELDS: Final = declared(CreateRequest)
"""The declared fields of a request. The only other one is `input`, which has a check of its own."""

ECHOED: Final = {name: (each.echo, each.schema) for name, each in REQUEST_FIELDS.items() if each.echo}
"""What a response repeats of each field, and its JSON Schema."""

FORWARDED: Final = tuple(name for name, each in REQUEST_FIELDS.items() if each.forwarded)
"""Fields with the same name in a chat request."""

_CHECKS: Final[Mapping[str, Check]] = {name: each.check for name, each in REQUEST_FIELDS.items()} | {
    "input": check_input
}

FIELDS: Final = frozenset(_CHECKS)
"""The names of the fields."""


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
    fields = {name: check(body[name], _at(top, name)) for name, check in _CHECKS.items() if body.get(name) is not None}
    _check_together(fields, may_be_empty=may_be_empty)
    if limits.bounded:
        check_carried(fields.get("input", []), fields.get("tools", []), limits)
    _refuse_unsupported(fields)
    return CreateRequest(
        input_items=fields.pop("input", []),
        input=body.get("input"),
        passthrough={name: body[name] for name in passthrough - FIELDS if body.get(name) is not None},
        **fields,
    )


def _at(top: Location, name: str) -> Location:
    # Clients send items back as they keep them.
    lenient = name == "input" or REQUEST_FIELDS[name].lenient
    return top.key(name).leniently() if lenient else top.key(name)


def read_fields(body: Mapping[str, Any], passthrough: frozenset[str]) -> dict[str, Any]:
    """Return the fields that `parse_create` reads. It ignores the others, which may hold a client's keys."""
    return {name: value for name, value in body.items() if name in FIELDS or name in passthrough}


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


def request_schema(names: Collection[str] = FIELDS) -> Schema:
    """Return the JSON Schema of a request with these fields. Other fields are ignored, or passed to the engine."""
    required = ("model",)
    checks = {name: schema_of(check) for name, check in _CHECKS.items() if name in names}
    fields = {**checks, "input": INPUT_SCHEMA}
    properties = {name: schema if name in required else or_null(schema) for name, schema in fields.items()}
    return {"type": "object", "properties": properties, "required": list(required)}


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        known = REQUEST_FIELDS.get(name)
        if known and known.unsupported and (what := known.unsupported(value)):
            message = f"Unsupported parameter: {what} is not supported by this server."
            raise bad_request(message, name, "unsupported_parameter")


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
    for name in sorted(body.keys() - FIELDS - passthrough - _WITHOUT_MEANING):
        if body[name] is not None:
            raise bad_request(
                f"Unknown parameter: '{excerpt(name)}'. Omit it, or ask the operator to add it to 'passthrough', the "
                "fields that go to the model server.",
                excerpt(name),
                "unknown_parameter",
            )


_OTHER_TIERS: Final = frozenset({"flex", "priority", "fast", "ultrafast", "scale"})
"""The service tiers with another order of work than the standard one."""


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
    if window != "soonest" and fields.get("service_tier") in _OTHER_TIERS:
        raise bad_request(
            f"A 'completion_window' of '{window}' needs the standard service tier: omit 'service_tier'.",
            "service_tier",
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
