"""What a model server sends is decoded within bounds on its values and its digits."""

import json
import math
from random import Random

import pytest

from llama_stack_openai_chat.chunks import chat_chunk
from llama_stack_openai_chat.events import EventReader
from llama_stack_openai_chat.json_encoding import loads, loads_few


@pytest.mark.parametrize("text", ["[{,", 'quoted "[," text', "back\\slash \\", 'x\\"'])
def test_text_is_not_counted_as_values(text: str) -> None:
    value = {"a": [text * 50_000, "[" * 100_000], "b": text}
    assert loads_few(json.dumps(value).encode(), 4) == value
    with pytest.raises(ValueError, match="too many values"):
        loads_few(json.dumps(value).encode(), 3)


def test_count_does_not_depend_on_where_a_text_is_cut() -> None:
    random = Random(1)
    for _ in range(40):
        strings = ["".join(random.choices('[,"\\x', k=random.randrange(2_000))) for _ in range(100)]
        encoded = json.dumps(strings).encode()
        assert loads_few(encoded, 100) == strings
        with pytest.raises(ValueError, match="too many values"):
            loads_few(encoded, 99)


@pytest.mark.parametrize("values", [b"[]," * 40_000, b'"a":1,' * 40_000, b"1," * 40_000, b'"","",' * 30_000])
def test_large_event_with_many_values_is_refused(values: bytes) -> None:
    reader = EventReader(chat_chunk, lambda: pytest.fail("no error is reported"))
    with pytest.raises(ValueError, match="too many values"):
        list(reader.read(b'data: {"x": [%b]}\n\n' % values))


def test_large_event_with_one_text_is_read() -> None:
    reader = EventReader(chat_chunk, lambda: pytest.fail("no error is reported"))
    delta = {"choices": [{"index": 0, "delta": {"content": "a, [b], {c} " * 20_000}}]}
    [chunk] = list(reader.read(b"data: %b\n\n" % json.dumps(delta).encode()))
    assert chunk.choices[0].delta.content == "a, [b], {c} " * 20_000


def test_long_integer_next_to_invalid_json_becomes_a_float() -> None:
    [not_a_number, large, exact] = loads(b"[NaN, %b, 12345678901234567890]" % (b"9" * 300))
    assert math.isnan(not_a_number)
    assert (type(large), exact) == (float, 12345678901234567890)


@pytest.mark.parametrize(("count", "meant"), [("5", 5), (5.0, 5), (1.5, 1)])
def test_count_of_tokens_as_float_or_text_is_read(count: object, meant: int) -> None:
    chunk = chat_chunk({"choices": [], "usage": {"prompt_tokens": count}})
    assert chunk.usage is not None
    assert chunk.usage.prompt_tokens == meant


@pytest.mark.parametrize("count", ["x", "9" * 20, [1], {}, float("inf"), None, True])
def test_count_of_tokens_of_another_type_is_zero(count: object) -> None:
    chunk = chat_chunk({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": count}})
    assert chunk.usage is not None
    assert (chunk.usage.prompt_tokens, chunk.usage.completion_tokens, chunk.usage.total_tokens) == (3, 0, 0)
