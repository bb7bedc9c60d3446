"""The values of a request's fields: how they are checked, and how a response repeats them."""

from __future__ import annotations

from typing import Any, Final

from ..core.answer_settings import EFFORT, FORMAT
from ..core.ids import check_conversation_id, check_response_id
from ..core.shapes import (
    Location,
    an_object,
    any_of,
    array,
    boolean,
    check_count,
    integer,
    invalid_type,
    object_of,
    one_of,
    schema_of,
    string,
    tagged,
    takes,
)
from ..core.types import Json
from ..items.content_parts import OUTPUT_PARTS
from ..items.registry import ITEM_KINDS

SERVICE_TIERS: Final = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")


@takes(any_of({"type": "string"}, {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}))
def conversation(value: Any, at: Location) -> str:
    """Check the id of a conversation, given alone or as the member of an object."""
    if isinstance(value, str):
        return check_conversation_id(value, at.path)
    if not isinstance(value, dict):
        raise invalid_type(value, at, "one of a string or an object")
    found: dict[str, str] = object_of({"id": string()}, "id")(value, at)
    return check_conversation_id(found["id"], at.key("id").path)


@takes({"type": "string", "pattern": "^resp_[0-9a-zA-Z_-]{1,64}$"})
def previous_response_id(value: Any, at: Location) -> str:
    return check_response_id(string()(value, at), at.path)


_SUMMARY: Final = one_of("auto", "concise", "detailed")

REASONING: Final = object_of(
    {
        "effort": EFFORT,
        "summary": _SUMMARY,
        "generate_summary": _SUMMARY,
        "context": one_of("auto", "current_turn", "all_turns"),
        "mode": string(1, 64),
    }
)

TEXT: Final = object_of({"format": FORMAT, "verbosity": one_of("low", "medium", "high")})

_NAME: Final = string(1, 512)
_MAX_GUARDRAILS: Final = 16

_POLICY: Final = object_of({"mode": one_of("score", "block")}, "mode")

MODERATION: Final = object_of(
    {"model": string(1, 512), "policy": object_of({"input": _POLICY, "output": _POLICY})}, "model"
)


_NAMED: Final = object_of({"type": _NAME}, "type")


@takes(any_of(schema_of(_NAME), schema_of(_NAMED)))
def _guardrail(value: Any, at: Location) -> str:
    name: str = _NAME(value, at) if isinstance(value, str) else _NAMED(value, at)["type"]
    return name


@takes(any_of({"type": "boolean"}, {"type": "array", "maxItems": _MAX_GUARDRAILS, "items": schema_of(_guardrail)}))
def guardrails(value: Any, at: Location) -> list[str | None]:
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


PROMPT: Final = object_of({"id": string(1, 512), "variables": _variables, "version": string(1, 64)}, "id")

CACHE_OPTIONS: Final = object_of(
    {
        "mode": one_of("implicit", "explicit"),
        "ttl": one_of("30m", "12h"),
        "prewarm": boolean,
        "comparison_response_id": string(1, 512),
    }
)

BACKGROUND_OPTIONS: Final = object_of(
    {"completion_window": one_of("soonest", "2h", "8h"), "continuation_id": string(1, 512)}
)

CONTEXT_ENTRY: Final = object_of({"type": one_of("compaction"), "compact_threshold": integer(1)}, "type")

INCLUDABLE: Final = tuple(value for kind in ITEM_KINDS.values() for value in kind.includable)
"""The supported values of `include`."""

ACCESS_PROGRAMS: Final = object_of({"cyber": one_of("standard", "daybreak_blue", "daybreak_red")})

IMAGE: Final = object_of({"context_compression": one_of("auto", "enabled", "disabled")})

_DEFAULT_TEXT: Final = {"format": {"type": "text"}, "verbosity": "medium"}


# What a response repeats


def echoed_conversation(conversation_id: str | None) -> Json | None:
    """Return the conversation as a response has it."""
    return {"id": conversation_id} if conversation_id else None


def echoed_image(image: Json | None) -> Json | None:
    """Return the policy in effect: `auto` is a request, not a policy."""
    return image if image and image.get("context_compression") == "disabled" else None


def unsupported_image(image: Json) -> str | None:
    """Return what of a policy this server does not do."""
    return "'image.context_compression': 'enabled'" if image.get("context_compression") == "enabled" else None


def echoed_cache_options(options: Json | None) -> Json | None:
    """Return the options with the defaults of what the client did not set."""
    if options is None:
        return None
    kept = {name: option for name, option in options.items() if name != "prewarm"}
    return {"mode": "implicit", "ttl": "30m", **kept}


def echoed_tier(tier: str | None) -> str:
    """Return the tier that serves the request until the model server reports another one."""
    tier = tier or "auto"
    return {"auto": "default", "fast": "priority"}.get(tier, tier)


def echoed_text(text: Json | None) -> Json:
    """Return the settings of text with the defaults of what the client did not set."""
    return _DEFAULT_TEXT | text if text else _DEFAULT_TEXT
