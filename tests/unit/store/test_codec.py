from __future__ import annotations

import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.json_blocks import dumps
from llama_stack_responses.store import codec

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=()), max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


@given(JSON, st.binary(max_size=300))
def test_encoded_value_decodes_to_itself(value: object, head: bytes) -> None:
    data = codec.encode(value, head)
    assert codec.decode(data) == value
    assert codec.head(data) == head


def test_large_values_are_compressed_and_small_ones_plain() -> None:
    text = "the same words again and again " * 100
    assert len(codec.encode([text])) < len(text) / 10
    assert codec.encode([1]) == bytes((codec.FORMAT,)) + b"[1]"


@pytest.mark.parametrize("length", [200, 4_094, 4_095, 20_000])
def test_compressors_of_small_and_large_values_write_the_same_format(length: int) -> None:
    value = "".join(map(str, range(length)))[:length]
    assert [codec.decode(codec.encode(value)) for _ in range(2)] == [value] * 2


def test_lone_surrogates_and_long_integers_survive_encoding() -> None:
    value = {"text": "\ud83d", "number": 2**70}
    assert codec.decode(codec.encode(value)) == value


def test_format_1_stays_readable() -> None:
    """Bytes of the first version: the format may gain a successor but never changes."""
    assert codec.decode(bytes.fromhex(FORMAT_1)) == VALUE
    assert codec.head(bytes.fromhex(FORMAT_1)) == b"head"


@pytest.mark.parametrize("data", [b"", b"\x02[1]", b"\x0f{}"])
def test_unknown_format_raises_error(data: bytes) -> None:
    with pytest.raises(ApiError, match="format") as error:
        codec.decode(data)
    assert error.value.status == 500


@pytest.mark.parametrize("data", [b"\x01", b"\x01{", b"\x81\xff\xff\xff", codec.encode(["x" * 500])[:-3]])
def test_damaged_bytes_raise_error(data: bytes) -> None:
    with pytest.raises(ApiError, match="damaged") as error:
        codec.decode(data)
    assert error.value.status == 500


def test_value_over_largest_size_raises_error() -> None:
    data = codec.encode(["x" * 10_000])
    assert codec.decode(data, 10_004) == ["x" * 10_000]
    with pytest.raises(codec.UnreadableError, match="holds more than 10003 bytes") as error:
        codec.decode(data, 10_003)
    assert error.value.status == 500


def test_text_over_limit_is_not_decompressed() -> None:
    data = codec.encode(["x" * 10_000_000])
    tracemalloc.start()
    try:
        with pytest.raises(codec.TooLarge):
            codec.text(data, 10_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


VALUE = [
    {
        "id": "msg_0123456789abcdef",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "What was written stays readable.", "annotations": []}],
    }
]
FORMAT_1 = (
    "c10004686561644376aa81a191b189a999b98565625232b008a1c4e9c4ba311cd4e2284f043638807916e82b05604054162b"
    "00a33d05542ee861fa01e46a00"
)


@pytest.mark.parametrize("value", ["wörd " * 500_000, [{"a": "wörd " * 300_000}] * 2, {"a": [1] * 800_000}])
def test_large_value_is_decoded_in_pieces(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    loads = orjson.loads

    def spy(text: bytes) -> Any:
        sizes.append(len(text))
        return loads(text)

    encoded = codec.encode(value)
    monkeypatch.setattr(orjson, "loads", spy)
    assert codec.decode(encoded) == value
    assert max(sizes) < 200_000


@pytest.mark.parametrize("odd", ["", "\ud800", 2**70], ids=["plain", "surrogate", "integer"])
def test_large_value_is_encoded_in_blocks_as_at_once(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"z": ["\u00e9x" * 400_000, {"b": [1.5, None, {"a": "y" * 900_000}]}], "a": odd}
    sizes: list[int] = []
    whole = dumps(value)
    orjson_dumps = orjson.dumps

    def measured(value: Any, *args: Any, **options: Any) -> bytes:
        encoded = orjson_dumps(value, *args, **options)
        sizes.append(len(encoded))
        return encoded

    monkeypatch.setattr(orjson, "dumps", measured)
    text = codec.text_of(value)
    assert (bytes(text.json), text.lenient) == (whole, odd != "")
    assert codec.decode(codec.encode(value)) == value
    if odd == "":
        assert max(sizes) < 2**18


def test_damaged_large_value_is_unreadable() -> None:
    encoded = codec.encode({"a": [1] * 800_000}, pack=False)
    with pytest.raises(codec.UnreadableError):
        codec.decode(encoded[:-1])
