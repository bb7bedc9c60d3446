"""Arguments that a hostile model server makes are decoded within bounds."""

import json

import pytest

from llama_stack_responses.core.decoded_arguments import decoded_arguments

LONG = "x, [{" * 10_000


@pytest.mark.parametrize("value", [{"a": [1, {"b": None}]}, {"text": LONG}, {"a": list(range(1_000))}, "text", [1]])
def test_arguments_are_decoded(value: object) -> None:
    assert decoded_arguments(json.dumps(value)) == value


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": [' + "[]," * 20_000 + "[]]}",
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        json.dumps({"a": "x" * 2**20}),
        "[" * 100_000,
        '{"a": ' + "1" * 100_000 + "}",
        '{"a": "' + chr(0xD800) + '"}',
    ],
    ids=["values", "depth", "length", "open", "digits", "surrogate"],
)
def test_arguments_that_cost_much_are_refused(arguments: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoded_arguments(arguments)
