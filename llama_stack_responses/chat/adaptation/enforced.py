"""What a model server does not enforce: the model is asked for it in words, and its answer is checked here.

A `tool_choice` that requires a call, and the formats of `response_format`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...core.late_patterns import LatePattern
from ...core.types import Json
from .adaptation import Adaptation, Form, Step
from .message_edits import with_instructions
from .refusal import Refusal

CALL: Final = "tool_choice_in_words"
SCHEMA: Final = "schema_in_words"
FORMAT: Final = "format_in_words"
OBJECT: Final = "json_object_as_schema"

_OF_FORMAT: Final = LatePattern(
    r"\b(?:response[ _](?:format|mime[ _]type)|json[ _]schema|structured[ _]outputs?|output_config\.format"
    r"|json mode|grammar)\b"
    r"|\bcontrolled generation\b"
    r"|guided.(?:json|decoding)|xgrammar|outlines|llguidance|failed to generate json"
    # llama.cpp, with tools and the generic chat format: it cannot read an answer that is not a string.
    r"|^content path must be a string",
    re.IGNORECASE,
)
_OF_ONE_SCHEMA: Final = LatePattern(
    r"invalid (?:json ?)?schema|unimplemented key|grammar|compil|\$ref|\bpatterns?\b|keyword|additionalproperties"
    r"|\brequired\b|\bproperties\b|recursi",
    re.IGNORECASE,
)
"""Words about one schema: another one may be taken."""

_DIGEST_BYTES: Final = 8

_FORCED: Final = ("forced tool", "forced function", "calling config mode any", "required tool use", "mode any")
"""Other names of a required call."""
_CALL_WORDS: Final = "You must call {} now. Do not answer with text before you have called it."
_SCHEMA_WORDS: Final = (
    "Answer with one JSON value and nothing else: no Markdown, no text before or after it. It must be valid against "
    "this JSON schema:\n{}"
)
_JSON_WORDS: Final = "Answer with one JSON object and nothing else: no Markdown, no text before or after it."


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the answer to a chat request must have, which the model server does not enforce.

    Attributes:
        call: it must call a tool.
        schema: its text must be JSON that is valid against this schema; None for no check. `{}` is any JSON.
    """

    call: bool = False
    schema: Json | None = None

    @property
    def repairs(self) -> int:
        """The number of times that the model is asked again."""
        return 1 if self.call else 2

    def repair(self, text: str, problem: str) -> list[Json]:
        """Return the messages that ask the model again.

        Args:
            text: its answer.
            problem: what is wrong with it.
        """
        said = [{"role": "assistant", "content": text}] if text.strip() else []
        if self.call:
            return [*said, {"role": "user", "content": "You have not called a tool. Call one now, without any text."}]
        return [
            *said,
            {"role": "user", "content": f"That is not valid: {problem} Answer again, with the corrected JSON alone."},
        ]


def expected(chat: Json, applied: Sequence[Step]) -> Expectation | None:
    """Return what the answer to a chat request must have, after these changes of it; None for nothing.

    Args:
        chat: the request without the changes.
        applied: the changes.
    """
    kinds = {step.kind for step in applied}
    call = CALL in kinds
    schema = _schema(chat) if kinds & {SCHEMA, FORMAT} else None
    return Expectation(call, schema) if call or schema is not None else None


def _schema(chat: Json) -> Json | None:
    form = chat.get("response_format") or {}
    if form.get("type") == "json_object":
        return {"type": "object"}
    schema: Json | None = (form.get("json_schema") or {}).get("schema")
    return schema


def _without(chat: Json, name: str) -> Json:
    return {each: value for each, value in chat.items() if each != name}


def _must_call(chat: Json) -> bool:
    return bool(chat.get("tools")) and chat.get("tool_choice") not in (None, "auto", "none")


def _asks_call(refusal: Refusal, chat: Json) -> Iterator[None]:
    if (
        _must_call(chat)
        and not _WRONG_CHOICE.search(refusal.words)
        and refusal.names("tool_choice", "tool choice", *_FORCED)
    ):
        yield None


def _call_in_words(chat: Json, _: Any) -> Json:
    if not _must_call(chat):
        return chat
    names = [tool[tool["type"]]["name"] for tool in chat["tools"] if "name" in tool.get(tool.get("type"), {})]
    choice = chat["tool_choice"]
    if isinstance(choice, dict) and isinstance(named := choice.get("function"), dict):
        names = [str(named.get("name"))]
    which = f"the tool '{names[0]}'" if len(names) == 1 else "one of the tools"
    return with_instructions(_without(chat, "tool_choice"), _CALL_WORDS.format(which))


def names_format(refusal: Refusal) -> bool:
    """Return whether a refusal is about the format of the answer."""
    return refusal.names("response_format") or (
        not refusal.is_placed and bool(_OF_FORMAT.search(refusal.subject) or "should be 'text'" in refusal.words)
    )


def _asks_schema(refusal: Refusal, chat: Json) -> Iterator[str | None]:
    is_schema = (chat.get("response_format") or {}).get("type") == "json_schema"
    if is_schema and names_format(refusal) and not refusal.begins_with("strict"):
        yield _digest(chat) if _OF_ONE_SCHEMA.search(refusal.words) else None


def _digest(chat: Json) -> str:
    """Return a digest of the schema of an answer, by which it is known again."""
    written = json.dumps(_schema(chat), sort_keys=True)
    return hashlib.blake2b(written.encode(errors="replace"), digest_size=_DIGEST_BYTES).hexdigest()


def _schema_in_words(chat: Json, argument: Any) -> Json:
    form = chat.get("response_format") or {}
    if form.get("type") != "json_schema" or argument not in (None, _digest(chat)):
        return chat
    text = _SCHEMA_WORDS.format(json.dumps(_schema(chat) or {}, ensure_ascii=False))
    return with_instructions(chat, text) | {"response_format": {"type": "json_object"}}


def _is_object(chat: Json) -> bool:
    return (chat.get("response_format") or {}).get("type") == "json_object"


def _asks_object(refusal: Refusal, chat: Json) -> Iterator[None]:
    if _is_object(chat) and names_format(refusal) and "json_schema" in refusal.words:
        yield None


def _object_as_schema(chat: Json, _: Any) -> Json:
    if not _is_object(chat):
        return chat
    schema = {"name": "object", "schema": {"type": "object", "additionalProperties": True}}
    return chat | {"response_format": {"type": "json_schema", "json_schema": schema}}


def _asks_format(refusal: Refusal, chat: Json) -> Iterator[None]:
    if _is_object(chat) and names_format(refusal) and "json_schema" not in refusal.words:
        yield None


def _format_in_words(chat: Json, _: Any) -> Json:
    form = chat.get("response_format") or {}
    if form.get("type") == "json_schema":
        return _without(_schema_in_words(chat, None), "response_format")
    if form.get("type") != "json_object":
        return chat
    changed = _without(chat, "response_format")
    # The words about the schema say the same.
    told = any(_SCHEMA_WORDS[:40] in str(message.get("content")) for message in chat["messages"][:1])
    return changed if told else with_instructions(changed, _JSON_WORDS)


_WRONG_CHOICE: Final = LatePattern(r"\bnot found in\b|\bonly allowed when\b", re.IGNORECASE)
"""Words about a choice that does not fit the tools of the request: it is the client's error."""

ENFORCED: Final = (
    Form(OBJECT, _asks_object, _object_as_schema),
    Adaptation(CALL, _asks_call, _call_in_words),
    # Its argument is the digest of the one schema that was refused, or None for all schemas.
    Adaptation(SCHEMA, _asks_schema, _schema_in_words, walks_messages=True),
    Adaptation(FORMAT, _asks_format, _format_in_words),
)
