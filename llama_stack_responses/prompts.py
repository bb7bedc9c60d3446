"""Prompts that are kept on the server, filled in with what a request brings for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from .core.errors import ApiError, bad_request
from .core.request import CreateRequest

Json = dict[str, Any]

_PLACE: Final = re.compile(r"{{\s*(\w+)\s*}}")
_VERSION: Final = re.compile("[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Template:
    """One version of a prompt.

    Attributes:
        text: what it says, with `{{name}}` where a variable belongs.
        variables: those that it declares.
    """

    text: str
    version: int
    variables: frozenset[str]


class Prompts(Protocol):
    """The host's prompts, as far as the user who asks may see them."""

    async def get(self, prompt_id: str, version: int | None) -> Template | None:
        """A version of a prompt, or its default one; None if there is none, or only another user's.

        Raises:
            ApiError: the prompts cannot be read.
        """
        ...


async def with_prompt(request: CreateRequest, prompts: Prompts | None) -> CreateRequest:
    """The request with its prompt filled in, if it has one.

    What the prompt says becomes its `instructions`, as messages, in front of those that it brings itself; its `prompt`
    then says which version that was. So the response shows both, and whoever makes it finds there what was filled in,
    whatever has become of the prompt since.

    Args:
        prompts: those of the stack; None if it has none.

    Raises:
        ApiError: 404 for a prompt or a version that is not there; 400 if its variables are not those that were given.
    """
    asked = request.prompt
    if asked is None:
        return request
    if prompts is None:
        message = "This stack has no prompts API for 'prompt': send the prompt's text as 'instructions'."
        raise bad_request(message, "prompt", "unsupported_parameter")
    template = await _template(asked, prompts)
    variables = asked.get("variables", {})
    _check(template, variables)
    messages = [_message(list(_filled(template.text, variables)))] if template.text else []
    if request.instructions and isinstance(request.instructions, str):
        messages.append(_message([_text(request.instructions)]))
    echoed = {"id": asked["id"], "variables": variables, "version": str(template.version)}
    return replace(request, prompt=echoed, instructions=messages)


async def _template(asked: Json, prompts: Prompts) -> Template:
    prompt_id, version = asked["id"], asked.get("version")
    which = "" if version is None else f" and version '{version}'"
    # What is no number is no version.
    found = None
    if version is None or _VERSION.fullmatch(version):
        found = await prompts.get(prompt_id, version and int(version))
    if not found:
        raise ApiError(404, f"Prompt with id '{prompt_id}'{which} not found.", param="prompt", code="prompt_not_found")
    return found


def _check(template: Template, variables: Mapping[str, Any]) -> None:
    needed = dict.fromkeys(_PLACE.findall(template.text))
    if missing := [name for name in needed if name not in variables]:
        message = f"Missing prompt variables: {', '.join(missing)}."
        raise bad_request(message, "prompt.variables", "prompt_variable_missing")
    if unknown := [name for name in variables if name not in template.variables]:
        message = f"Unknown prompt variables: {', '.join(unknown)}. Prompt version {template.version} has no such ones."
        raise bad_request(message, "prompt.variables", "prompt_variable_unknown")


def _filled(text: str, variables: Mapping[str, Any]) -> Iterator[Json]:
    """The parts of a message that says `text`: what was given as text is in it, files and images stand in between."""
    said = ""
    # What stands between two places, and the names of the places, by turns.
    for number, piece in enumerate(_PLACE.split(text)):
        given = variables[piece] if number % 2 else piece
        if isinstance(given, str):
            said += given
        elif given["type"] == "input_text":
            said += given["text"]
        else:
            yield from [_text(said)] * bool(said)
            yield given
            said = ""
    yield from [_text(said)] * bool(said)


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _message(parts: list[Json]) -> Json:
    return {"type": "message", "role": "developer", "content": parts}
