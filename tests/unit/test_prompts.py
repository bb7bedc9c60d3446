"""Prompts are filled in with what a request brings, and with nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.request import CreateRequest, parse_create
from llama_stack_responses.prompts import Template, with_prompt

Json = dict[str, Any]

IMAGE = {"type": "input_image", "image_url": "https://a.b/c.png", "detail": "auto"}


class Drawer:
    """Prompts in this process: the versions of one, the last of which is the default."""

    def __init__(self, *texts: str, variables: str = "") -> None:
        self.texts = texts
        self.variables = frozenset(variables.split())

    async def get(self, prompt_id: str, version: int | None) -> Template | None:
        """One of the versions."""
        number = version or len(self.texts)
        if prompt_id != "p" or number > len(self.texts):
            return None
        return Template(self.texts[number - 1], number, self.variables)


def request(prompt: Json | None, **fields: Any) -> CreateRequest:
    return parse_create({"model": "m", "input": "Hi", "prompt": prompt, **fields})


def message(*parts: str | Json) -> Json:
    content = [{"type": "input_text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"type": "message", "role": "developer", "content": content}


async def filled(text: str, variables: str = "", **given: Any) -> list[Json]:
    """The messages that a prompt with these variables makes of what was given."""
    asked = request({"id": "p", "variables": given})
    instructions = (await with_prompt(asked, Drawer(text, variables=variables))).instructions
    assert isinstance(instructions, list)
    return instructions


async def refused(prompts: Drawer | None, prompt: Json) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await with_prompt(request(prompt), prompts)
    return caught.value


async def test_a_request_without_a_prompt_stays_as_it_is() -> None:
    asked = request(None, instructions="Be kind.")
    assert await with_prompt(asked, None) is asked


async def test_text_goes_to_its_places() -> None:
    said = await filled(
        "{{ who }}, {{who}} and {{what}}.", "who what", who="I", what={"type": "input_text", "text": "you"}
    )
    assert said == [message("I, I and you.")]


async def test_what_is_filled_in_is_no_template() -> None:
    said = await filled("{{a}} {{b}} {not} {{ this one }}", "a b", a="{{b}} \\1 {a}", b="x")
    assert said == [message("{{b}} \\1 {a} x {not} {{ this one }}")]


async def test_files_and_images_stand_where_their_places_are() -> None:
    assert await filled("See {{a}}, and {{b}}", "a b", a=IMAGE, b="this") == [message("See ", IMAGE, ", and this")]
    assert await filled("{{a}}", "a", a=IMAGE) == [message(IMAGE)]


async def test_a_variable_without_a_place_need_not_be_given() -> None:
    assert await filled("Hello", "a b", a="x") == [message("Hello")]


async def test_instructions_come_after_the_prompt() -> None:
    made = await with_prompt(request({"id": "p"}, instructions="Be kind."), Drawer("Hello"))
    assert made.instructions == [message("Hello"), message("Be kind.")]


async def test_the_response_says_which_version_it_was() -> None:
    prompts = Drawer("one {{a}}", "two {{a}}", variables="a")
    newest = await with_prompt(request({"id": "p", "variables": {"a": "x"}}), prompts)
    assert newest.prompt == {"id": "p", "variables": {"a": "x"}, "version": "2"}
    first = await with_prompt(request({"id": "p", "variables": {"a": "x"}, "version": "1"}), prompts)
    assert (first.prompt, first.instructions) == ({**newest.prompt, "version": "1"}, [message("one x")])


async def test_a_prompt_that_says_nothing() -> None:
    made = await with_prompt(request({"id": "p"}), Drawer(""))
    assert (made.instructions, made.prompt) == ([], {"id": "p", "variables": {}, "version": "1"})


@pytest.mark.parametrize(
    "prompt", [{"id": "q"}, *({"id": "p", "version": each} for each in ("2", "0", "-1", "x", "²"))]
)
async def test_a_prompt_that_is_not_there(prompt: Json) -> None:
    error = await refused(Drawer("Hello"), prompt)
    assert (error.status, error.param, error.code) == (404, "prompt", "prompt_not_found")
    assert all(f"'{value}'" in error.message for value in prompt.values())


@pytest.mark.parametrize(
    ("given", "code", "names"),
    [
        ({}, "prompt_variable_missing", "a, b"),
        ({"a": "x"}, "prompt_variable_missing", "b"),
        ({"a": "x", "b": "y", "d": "z"}, "prompt_variable_unknown", "d"),
    ],
)
async def test_variables_that_do_not_fit(given: Json, code: str, names: str) -> None:
    error = await refused(Drawer("{{a}} {{b}} {{a}}", variables="a b c"), {"id": "p", "variables": given})
    assert (error.status, error.param, error.code) == (400, "prompt.variables", code)
    assert f"variables: {names}." in error.message


async def test_a_stack_without_prompts() -> None:
    error = await refused(None, {"id": "p"})
    assert (error.status, error.param, error.code) == (400, "prompt", "unsupported_parameter")
