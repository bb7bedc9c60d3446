"""Prompts are filled in with the variables of a request only."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.inputs.prompts import PromptVersion, with_prompt
from llama_stack_responses.requests.request import CreateRequest, parse_create

Json = dict[str, Any]

PLENTY = 10_000
IMAGE = {"type": "input_image", "image_url": "https://a.b/c.png", "detail": "auto"}


class FakePrompts:
    """Prompts in this process: the versions of one prompt, the last of which is the default."""

    def __init__(self, *texts: str, variables: str = "") -> None:
        self.texts = texts
        self.variables = frozenset(variables.split())

    async def get(self, prompt_id: str, version: int | None) -> PromptVersion | None:
        """Return one of the versions."""
        number = version or len(self.texts)
        if prompt_id != "p" or number > len(self.texts):
            return None
        return PromptVersion(self.texts[number - 1], number, self.variables)


def request(prompt: Json | None, **fields: Any) -> CreateRequest:
    return parse_create({"model": "m", "input": "Hi", "prompt": prompt, **fields})


def message(*parts: str | Json) -> Json:
    content = [{"type": "input_text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"type": "message", "role": "developer", "content": content}


async def filled(text: str, variables: str = "", **given: Any) -> list[Json]:
    """Return the messages that result from a prompt with these variables and the given values."""
    requested = request({"id": "p", "variables": given})
    instructions = (await with_prompt(requested, FakePrompts(text, variables=variables), PLENTY)).instructions
    assert isinstance(instructions, list)
    return instructions


async def refused(prompts: FakePrompts | None, prompt: Json, characters: int = PLENTY) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await with_prompt(request(prompt), prompts, characters)
    return caught.value


async def test_request_without_prompt_stays_same_object() -> None:
    requested = request(None, instructions="Be kind.")
    assert await with_prompt(requested, None, PLENTY) is requested


async def test_text_variables_are_filled_in() -> None:
    text = await filled(
        "{{ who }}, {{who}} and {{what}}.", "who what", who="I", what={"type": "input_text", "text": "you"}
    )
    assert text == [message("I, I and you.")]


async def test_filled_in_text_is_not_template() -> None:
    text = await filled("{{a}} {{b}} {not} {{ this one }}", "a b", a="{{b}} \\1 {a}", b="x")
    assert text == [message("{{b}} \\1 {a} x {not} {{ this one }}")]


async def test_image_variables_stand_in_their_places() -> None:
    assert await filled("See {{a}}, and {{b}}", "a b", a=IMAGE, b="this") == [message("See ", IMAGE, ", and this")]
    assert await filled("{{a}}", "a", a=IMAGE) == [message(IMAGE)]


async def test_variable_without_place_may_be_missing() -> None:
    assert await filled("Hello", "a b", a="x") == [message("Hello")]


async def test_instructions_follow_prompt() -> None:
    created = await with_prompt(request({"id": "p"}, instructions="Be kind."), FakePrompts("Hello"), PLENTY)
    assert created.instructions == [message("Hello"), message("Be kind.")]


async def test_response_names_version_of_prompt() -> None:
    prompts = FakePrompts("one {{a}}", "two {{a}}", variables="a")
    newest = await with_prompt(request({"id": "p", "variables": {"a": "x"}}), prompts, PLENTY)
    assert newest.prompt == {"id": "p", "variables": {"a": "x"}, "version": "2"}
    first = await with_prompt(request({"id": "p", "variables": {"a": "x"}, "version": "1"}), prompts, PLENTY)
    assert (first.prompt, first.instructions) == ({**newest.prompt, "version": "1"}, [message("one x")])


async def test_empty_prompt_adds_no_message() -> None:
    created = await with_prompt(request({"id": "p"}), FakePrompts(""), PLENTY)
    assert (created.instructions, created.prompt) == ([], {"id": "p", "variables": {}, "version": "1"})


@pytest.mark.parametrize(
    "prompt", [{"id": "q"}, *({"id": "p", "version": each} for each in ("2", "0", "-1", "x", "²"))]
)
async def test_unknown_prompt_or_version_is_404(prompt: Json) -> None:
    error = await refused(FakePrompts("Hello"), prompt)
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
async def test_missing_and_unknown_variables_are_refused(given: Json, code: str, names: str) -> None:
    error = await refused(FakePrompts("{{a}} {{b}} {{a}}", variables="a b c"), {"id": "p", "variables": given})
    assert (error.status, error.param, error.code) == (400, "prompt.variables", code)
    assert f"variables: {names}." in error.message


async def test_prompt_is_refused_without_prompt_store() -> None:
    error = await refused(None, {"id": "p"})
    assert (error.status, error.param, error.code) == (400, "prompt", "unsupported_parameter")


TEXT = {"type": "input_text", "text": "x" * 100}


@pytest.mark.parametrize("variable", ["x" * 100, TEXT])
async def test_repeated_variable_is_filled_in_up_to_limit(variable: Any) -> None:
    prompts, prompt = FakePrompts("{{a}}" * 10, variables="a"), {"id": "p", "variables": {"a": variable}}
    created = await with_prompt(request(prompt), prompts, characters=10 * 105)
    assert created.instructions == [message("x" * 1000)]
    error = await refused(prompts, prompt, characters=10 * 105 - 1)
    assert (error.status, error.param, error.code) == (400, "prompt.variables", "string_above_max_length")
    assert all(each in error.message for each in ("'prompt.variables'", "1050 characters", "1049"))


@pytest.mark.parametrize(
    "variable",
    [
        "x" * 50_000,
        {
            **IMAGE,
            "image_url": f"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAAAUlEQVQA{'A' * 49_944}",
        },
    ],
)
async def test_excessively_repeated_variable_is_refused(variable: Any) -> None:
    prompt = {"id": "p", "variables": {"a": variable}}
    error = await refused(FakePrompts("{{a}}" * 4_000, variables="a"), prompt, characters=10_485_760)
    assert (error.param, error.code) == ("prompt.variables", "string_above_max_length")


async def test_image_counts_from_its_second_place() -> None:
    image = {
        **IMAGE,
        "image_url": f"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAAAUlEQVQA{'A' * 4944}",
    }
    prompt = {"id": "p", "variables": {"a": image}}
    assert (await with_prompt(request(prompt), FakePrompts("{{a}}", variables="a"), 100)).instructions == [
        message(image)
    ]
    assert (await refused(FakePrompts("{{a}}{{a}}", variables="a"), prompt, 5000)).param == "prompt.variables"


async def test_many_small_images_count_as_parts() -> None:
    prompt = {"id": "p", "variables": {"a": IMAGE}}
    assert (await refused(FakePrompts("{{a}}" * 100, variables="a"), prompt, 40_000)).code == "string_above_max_length"


@pytest.mark.parametrize("text", ["x" * (2**20 + 1), "{{a}}" * 10_001])
async def test_oversized_stored_prompt_is_refused(text: str) -> None:
    error = await refused(FakePrompts(text, variables="a"), {"id": "p", "variables": {"a": ""}}, 2**30)
    assert (error.status, error.param, error.code) == (400, "prompt", "string_above_max_length")


async def test_error_lists_at_most_ten_variables() -> None:
    names = [f"{'n' * 200}{number}" for number in range(1000)]
    error = await refused(FakePrompts("".join(f"{{{{{name}}}}}" for name in names)), {"id": "p"}, 2**20)
    assert error.message.endswith(", and 990 more.")
    assert len(error.message) < 2000
