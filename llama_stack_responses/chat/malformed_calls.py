"""What a model wrote in a form that its server could not read, so that the server refuses its own answer.

Groq answers with status 400, or with an error in the stream, and quotes what the model wrote as `failed_generation`.
Ollama, llama.cpp and LM Studio say it with status 500, Gemini with the finish reason. The request itself is valid, so
it is sent again with a message that names the mistake. If what the model wrote is a complete call, the call is used
without a retry: the server may not know all call formats of its model.

Sources: text-generation-inference issue 2145, pydantic-ai's pull requests 2774 and 4354 and freellmapi's pull request
291 (Groq), ollama issues 12884, 17638 and 11781, opencode issue 1018 (in the stream), llama.cpp issues 20260 and 27733,
lmstudio-bug-tracker issue 942.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ..core.errors import MalformedCallError
from ..core.late_patterns import LatePattern
from ..core.types import Json
from .adaptation.refusal import places_of

MAX_REPAIRS: Final = 2
"""Times that a model is asked again in one round."""

_CODES: Final = ("tool_use_failed", "output_parse_failed", "tool_call_failed", "incomplete_json_output")
"""Groq's first two, and Cerebras' next two."""
_QUOTED: Final = "failed_generation"
_CALL_WORDS: Final = r"(?:tool|function)[ _]?calls?\b"
_WORDS: Final = LatePattern(
    r"\bfailed to call a function\b|\btool call validation failed\b"
    rf"|\b(?:error parsing|failed to (?:parse|generate)(?: a)?) {_CALL_WORDS}(?! arguments)"
    # Bedrock, Mistral, LM Studio, Cerebras: what the model did, and what is wrong with it, in any order
    r"|\bmodel (?:has )?(?:generated|produced|wrote|emitted)\b(?![^.]{0,40}\b(?:image|audio|video)s?\b)[^.]{0,40}"
    r"\b(?:invalid|malformed|incomplete|unparsable|could not be (?:parsed|read))\b"
    r"|^no function provided\b|^tool error: "  # the second one: TGI
    # SGLang, and Ollama with Qwen3-Coder
    r"|^failed to parse fc related info\b|^xml syntax error on line \d",
    re.IGNORECASE,
)
_OF_ANOTHER: Final = LatePattern(
    r"\bdid not call a tool\b|\bquota\b|\blimit \d|\b(?:rate|usage|spend\w*) limit\b|\btoo many requests\b",
    re.IGNORECASE,
)
"""Groq has the same code for an answer without a required call, which `adaptation/enforced.py` answers. Other errors
are about a limit."""
_OF_REQUEST: Final = LatePattern(
    # A place in the request (OpenAI, pydantic, JSON pointers, Gemini), or a message of it
    r"\b(?:messages|input|contents|history)(?:\[|\.|/|\]\[)\d|\bmessage (?:at |with )?(?:index|position|#)? ?\d"
    r"|\b(?:tool|assistant|user|system|previous|earlier|last|input) messages?\b|\b(?:tool_call_id|role)\b"
    r"|\b(?:of|in|from) (?:the |your )?(?:request\b(?!\.tools)|conversation|history|chat|messages|input)\b",
    re.IGNORECASE,
)
"""Words of errors about calls of the history."""
_QUOTE: Final = LatePattern(r"raw=|[{<\n]")
"""Where what the model wrote may begin in a text."""
_OF_TEMPLATE: Final = LatePattern(
    # llama.cpp: its parser first read the output in another way, or not at all; it may quote it.
    r"(?:Invalid diff: |Failed to parse input at pos |The model produced output that does not match the expected "
    # vLLM with gpt-oss.
    r"|unexpected tokens remaining in message header|Unexpected token \d+ while expecting start token"
    r"|Unknown role: functions?\b)"
)
_UNREADABLE: Final = (
    "The model server could not read the model's output, which does not keep to the form of its chat template: try "
    "again, without tools or without 'text.format', or use a larger model."
)
_OLLAMA: Final = ("raw='", "', err=")
"""What Ollama has before and behind what the model wrote."""
ARGUMENTS: Final = ("arguments", "parameters", "args", "input")
"""Names of the arguments of a call: of OpenAI, Llama, Gemini, and Anthropic and custom tools."""
_READ_CHARACTERS: Final = 16_384
_SHOWN_CHARACTERS: Final = 1_000
_MAX_CALLS: Final = 32

_TAGGED: Final = LatePattern(r"\s*(?:<function[=:(]\s*)?([\w.:-]{1,128})\s*[=>(,:]{0,2}\s*(?=\{)")
"""The name before the arguments, as Llama writes it: `<function=name>{...}</function>`, or a part of that."""
_AFTER: Final = LatePattern(r"[\s)>;]*(?:</?function>?)?\s*")
_FENCES: Final = (("```json", "```"), ("```", "```"), ("<tool_call>", "</tool_call>"), ("[TOOL_CALLS]", ""))


class WrittenCall(NamedTuple):
    """A call as a model wrote it: the name of a function, and its arguments, which are the JSON of an object."""

    name: str
    arguments: str


def malformed_call(message: str, code: Any, body: Any) -> MalformedCallError | None:
    """Return the error for a call that a model server could not read; None if its error is another.

    If only words say so, it is one if the request has tools: see its attribute `by_words`.

    Args:
        message: the text of the server's error.
        code: its code.
        body: the whole error.
    """
    text = message[:_READ_CHARACTERS]
    if _OF_TEMPLATE.match(text):
        return MalformedCallError(_UNREADABLE, "it does not keep to the form of the chat template", "", of_stream=True)
    said = str(code) in _CODES or any(each in text for each in _CODES)
    if _OF_ANOTHER.search(text) or not (said or (_WORDS.search(text) and not _is_of_request(text, body))):
        return None
    quoted = body if isinstance(body, dict) and _QUOTED in body else _quoted_in(text)
    words, written = (each if isinstance(each := quoted.get(name), str) else "" for name in ("message", _QUOTED))
    error = failed_call((words or text)[:_SHOWN_CHARACTERS], written[:_READ_CHARACTERS])
    error.by_words = not said
    return error


def _is_of_request(text: str, body: Any) -> bool:
    """Return whether an error names a place in the messages of the request, or one of these."""
    said = _QUOTE.split(text, maxsplit=1)[0]
    return _OF_REQUEST.search(said) is not None or any(place.startswith("messages") for place in places_of(body))


def failed_call(words: str, written: str = "") -> MalformedCallError:
    """Return the error for a call that could not be read.

    Args:
        words: what is wrong with it.
        written: what the model wrote, as far as that is known.
    """
    return MalformedCallError(
        f"The model has written no call of a tool that its model server could read ({words.rstrip('.')}): try again, "
        "simplify the schemas of the tools, or use another model.",
        words,
        written,
    )


def _quoted_in(text: str) -> Json:
    """Return the error that a text quotes: that of Groq within a gateway's, or Ollama's in the same form."""
    opening, closing = _OLLAMA
    begin, end = text.find(opening), text.rfind(closing)
    if begin >= 0:
        written = text[begin + len(opening) : end if end > begin else None]
        return {"message": text[:begin].strip(" :"), _QUOTED: written}
    begin = text.find("{")
    try:
        error = json.loads(text[begin:])["error"] if begin >= 0 else None
    except (ValueError, RecursionError, LookupError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def written_calls(text: str) -> list[WrittenCall]:
    """Return the calls in what a model wrote, if it is nothing but whole calls; none otherwise."""
    text = text.strip()
    for opening, closing in _FENCES:
        if text.startswith(opening):
            text = text.removeprefix(opening).removesuffix(closing).strip()
    calls = list(_of_json(text) or _of_tags(text))
    return calls if len(calls) <= _MAX_CALLS else []


def _of_json(text: str) -> list[WrittenCall]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if isinstance(value, dict) and isinstance(listed := value.get("tool_calls"), list):
        value = listed
    found = [_call(each) for each in (value if isinstance(value, list) else [value])]
    whole = [each for each in found if each]
    return whole if len(whole) == len(found) else []


def _call(value: Any) -> WrittenCall | None:
    if isinstance(value, dict) and isinstance(inner := value.get("function"), dict):
        value = inner
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str):
        return None
    arguments = next((value[each] for each in ARGUMENTS if each in value), None)
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return None
    return WrittenCall(name, json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def _of_tags(text: str) -> Iterator[WrittenCall]:
    """Yield the calls in Llama's form; none if anything else is in the text."""
    place, found = 0, list[WrittenCall]()
    while place < len(text):
        tag = _TAGGED.match(text, place)
        if tag is None or len(found) > _MAX_CALLS:
            return
        try:
            arguments, end = json.JSONDecoder().raw_decode(text, tag.end())
        except (ValueError, RecursionError):
            return
        found.append(WrittenCall(tag[1].rstrip(":"), json.dumps(arguments, ensure_ascii=False)))
        after = _AFTER.match(text, end)
        place = after.end() if after else end
    yield from found


def told(error: MalformedCallError) -> Json:
    """Return the message that tells the model what was wrong with its call."""
    quoted = f" You wrote:\n{error.written[:_SHOWN_CHARACTERS]}\n" if error.written else " "
    return {
        "role": "user",
        "content": f"Your answer could not be read: {error.words.rstrip('.')}.{quoted}Answer again. Call a tool by its "
        "exact name, in the form that you were told, with one JSON object that is valid against its parameters.",
    }
