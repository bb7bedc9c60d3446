"""Stored prompts, filled in with the variables of a request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from ..core.errors import ApiError, bad_request
from ..core.shapes import excerpt
from ..core.types import Json
from ..requests.request import CreateRequest

_VARIABLE: Final = re.compile(r"{{\s*(\w+)\s*}}")
_VERSION: Final = re.compile("[1-9][0-9]{0,8}")
_TEMPLATE_CHARACTERS: Final = 1 << 20
"""Maximum characters of a prompt template: it is searched for placeholders in the event loop."""
_MAX_USES: Final = 10_000
_PART_CHARACTERS: Final = 512
"""Minimum characters for which a file or an image counts: each becomes a separate part."""
_MAX_LISTED_NAMES: Final = 10
"""Maximum variable names in an error message."""


@dataclass(frozen=True, slots=True)
class PromptVersion:
    """One version of a prompt.

    Attributes:
        text: the text, with `{{name}}` as the placeholder of a variable.
        variables: the names of the declared variables.
    """

    text: str
    version: int
    variables: frozenset[str]


class Prompts(Protocol):
    """The host's prompts that the current user may read."""

    async def get(self, prompt_id: str, version: int | None) -> PromptVersion | None:
        """Return a version of a prompt, or its default one; None if it does not exist or is another user's.

        Raises:
            ApiError: the prompts cannot be read.
        """
        ...


async def with_prompt(request: CreateRequest, prompts: Prompts | None, characters: int) -> CreateRequest:
    """Return the request with its prompt filled in, if it has one.

    The text of the prompt becomes messages in `instructions`, before the request's own instructions; `prompt` then
    names the version. The response shows both, and a worker that runs it later uses this text even if the prompt has
    changed.

    Args:
        prompts: the prompts of the stack; None if it has none, or if requests may not use them.
        characters: maximum length of the prompt with its variables filled in.

    Raises:
        ApiError: 404 for an unknown prompt or version; 400 if its variables do not match the given ones, or if the
            result would be too long, which is checked before it is built.
    """
    prompt = request.prompt
    if prompt is None:
        return request
    if prompts is None:
        message = "This server does not support stored prompts in 'prompt': send the prompt's text as 'instructions'."
        raise bad_request(message, "prompt", "unsupported_parameter")
    template = await _template(prompt, prompts)
    variables = prompt.get("variables", {})
    _check(template, variables, characters)
    messages = [_message(list(_filled(template.text, variables)))] if template.text else []
    if request.instructions and isinstance(request.instructions, str):
        messages.append(_message([_text(request.instructions)]))
    echoed = {"id": prompt["id"], "variables": variables, "version": str(template.version)}
    return replace(request, prompt=echoed, instructions=messages)


async def _template(prompt: Json, prompts: Prompts) -> PromptVersion:
    prompt_id, version = prompt["id"], prompt.get("version")
    which = "" if version is None else f" and version '{version}'"
    # Versions are numbers: another value cannot exist.
    stored = None
    if version is None or _VERSION.fullmatch(version):
        stored = await prompts.get(prompt_id, version and int(version))
    if not stored:
        raise ApiError(404, f"Prompt with id '{prompt_id}'{which} not found.", param="prompt", code="prompt_not_found")
    return stored


def _check(template: PromptVersion, variables: Mapping[str, Any], characters: int) -> None:
    if len(template.text) > _TEMPLATE_CHARACTERS:
        message = (
            f"The prompt has {len(template.text)} characters. A stored prompt may have at most {_TEMPLATE_CHARACTERS}."
        )
        raise bad_request(message, "prompt", "string_above_max_length")
    needed = Counter(_VARIABLE.findall(template.text))
    if missing := [name for name in needed if name not in variables]:
        message = f"Missing prompt variables: {_names(missing)}."
        raise bad_request(message, "prompt.variables", "prompt_variable_missing")
    if unknown := [name for name in variables if name not in template.variables]:
        message = f"Unknown prompt variables: {_names(unknown)}. Prompt version {template.version} does not have them."
        raise bad_request(message, "prompt.variables", "prompt_variable_unknown")
    _check_result(template, needed, variables, characters)


def _check_result(template: PromptVersion, uses: Counter[str], variables: Mapping[str, Any], characters: int) -> None:
    """Refuse a prompt that would be too long when filled in, before building it."""
    if uses.total() > _MAX_USES:
        message = f"The prompt has {uses.total()} places for variables. A stored prompt may have at most {_MAX_USES}."
        raise bad_request(message, "prompt", "string_above_max_length")
    size = len(template.text) + sum(_growth(variables[name], count) for name, count in uses.items())
    if size > characters:
        message = (
            f"With its 'prompt.variables', the prompt would have {size} characters, more than the maximum of "
            f"{characters}. Send shorter variables, or use a prompt that repeats them less often."
        )
        raise bad_request(message, "prompt.variables", "string_above_max_length")


def _growth(variable: Any, count: int) -> int:
    """Return the characters that a variable adds when used `count` times.

    The data of a file or an image is part of the request already, whose size is limited, so only further copies count.
    """
    if isinstance(variable, str):
        return len(variable) * count
    if variable["type"] == "input_text":
        return len(variable["text"]) * count
    size = sum(len(value) for value in variable.values() if isinstance(value, str))
    return max(size, _PART_CHARACTERS) * (count - 1)


def _names(names: list[str]) -> str:
    """Return the shortened names as a list for an error message, with the number of those left out."""
    listed = ", ".join(map(excerpt, names[:_MAX_LISTED_NAMES]))
    return listed if len(names) <= _MAX_LISTED_NAMES else f"{listed}, and {len(names) - _MAX_LISTED_NAMES} more"


def _filled(text: str, variables: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the parts of a message with this text, with text variables inserted, and files and images as parts."""
    texts: list[str] = []
    # `split` returns the text between placeholders and the placeholders' names alternately.
    for number, piece in enumerate(_VARIABLE.split(text)):
        value = variables[piece] if number % 2 else piece
        if isinstance(value, str):
            texts.append(value)
        elif value["type"] == "input_text":
            texts.append(value["text"])
        else:
            yield from _joined(texts)
            yield value
            texts = []
    yield from _joined(texts)


def _joined(texts: Iterable[str]) -> list[Json]:
    text = "".join(texts)
    return [_text(text)] if text else []


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _message(parts: list[Json]) -> Json:
    return {"type": "message", "role": "developer", "content": parts}
