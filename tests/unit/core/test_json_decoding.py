"""Large JSON decoded in pieces: the same values and refusals as by `orjson`, in bounded calls."""

from __future__ import annotations

import json
from functools import partial
from random import Random
from typing import Any

import orjson
import pytest

from llama_stack_responses.core import json_decoding
from llama_stack_responses.core.json_decoding import InvalidJsonError

loads = partial(json_decoding.loads, at_once=0)

WORDS = 'wörd "quoted" 😀 \\ back\n'
MESSAGE = {"role": "user", "content": [{"type": "input_text", "text": WORDS * 20}]}
NUMBERS = list(range(60_000))
NAMES = {f"name {number}": number for number in range(30_000)}

LARGE: dict[str, Any] = {
    "messages": {"model": "m", "input": [MESSAGE] * 500, "tools": []},
    "numbers": {"a": [*NUMBERS, -1.5e-7, 2**63, True, None, ""]},
    "names": {"a": {**NAMES, "": None}, "b": [NAMES]},
    "long text": {"a": WORDS * 20_000, "b": [WORDS * 20_000, "", WORDS * 20_000], "c": 1},
    "text without escapes": {"a": "wörd 😀 " * 20_000},
    "few escapes": {"a": ("wörd 😀 " * 5_000 + '"') * 8},
    "long name": {"before": 1, WORDS * 4_000: {"x": [WORDS * 4_000]}, "after": 2},
    "only escapes": {"a": '"' * 100_000, "b": "\\" * 100_000, "c": "😀" * 40_000},
    "brackets in text": {"a": ["[{]},"] * 20_000, "b": '"[{' * 50_000},
    "empty values": {"a": [[]] * 50_000, "b": [{}] * 50_000},
    "nested": {"a": [[[NUMBERS], [[NAMES]], [[[WORDS * 4_000]]]], 1], "b": {"c": {"d": NUMBERS}}},
    "array": [NUMBERS, [NUMBERS], "x"],
    "string": WORDS * 20_000,
    "small string": WORDS,
    "small": {"a": [1, {"b": "c"}], "d": None},
    "empty": {},
}


@pytest.mark.relatives
@pytest.mark.parametrize(("indent", "ascii_only"), [(None, True), (1, False)])
@pytest.mark.parametrize("name", LARGE)
def test_value_is_same_as_orjsons(name: str, indent: int | None, ascii_only: bool) -> None:
    document = json.dumps(LARGE[name], indent=indent, ensure_ascii=ascii_only).encode()
    assert loads(document) == loads(bytearray(document)) == orjson.loads(document)


@pytest.mark.parametrize("name", LARGE)
def test_no_call_of_decoder_gets_megabytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Spy:
        JSONDecodeError = orjson.JSONDecodeError

        @staticmethod
        def loads(text: bytes) -> Any:
            sizes.append(len(text))
            return orjson.loads(text)

    monkeypatch.setattr(json_decoding, "orjson", Spy)
    document = orjson.dumps(LARGE[name])
    assert loads(document) == LARGE[name]
    assert max(sizes) <= 150_000


def test_name_that_repeats_has_last_value() -> None:
    document = b'{"a":%b,"b":1,"a":%b,"a":2}' % (orjson.dumps(NUMBERS), orjson.dumps(WORDS * 4_000))
    assert loads(document) == {"a": 2, "b": 1}


def test_random_values_are_same_as_orjsons() -> None:
    random = Random(14)

    def value(depth: int) -> Any:
        match random.randrange(8 if depth else 5):
            case 0:
                return random.choice([None, True, -1, 0.5, 10**15, ""])
            case 1 | 2:
                return random.choice(['a"b', "\\", "é", "😀", "[", "},", "x" * 300]) * random.choice([1, 3, 9_000])
            case 3 | 4:
                return list(range(random.choice([0, 2, 9_000])))
            case 5 | 6:
                return [value(depth - 1) for _ in range(random.randrange(6))]
            case _:
                return {f'"{number}': value(depth - 1) for number in range(random.randrange(6))}

    for _ in range(20):
        whole = {"a": value(5)}
        assert loads(json.dumps(whole).encode()) == whole
        assert loads(orjson.dumps(whole)) == whole


def large(text: bytes) -> bytes:
    """Return a large document that contains `text` in an array."""
    return b'{"a":[%b,%b,%b]}' % (orjson.dumps(NUMBERS), text, orjson.dumps(NUMBERS))


TEXT = orjson.dumps("x" * 100_000)
INVALID = {
    "nothing": b"",
    "blank": b" \n",
    "open string": b'"x',
    "text after string": orjson.dumps(WORDS * 20_000) + b'"',
    "number": b"1",
    "open array": large(b"1")[:-2],
    "open object": large(b"1")[:-1],
    "open text": b'{"a":"' + b"x" * 100_000,
    "open escape": b'{"a":"' + b"x" * 100_000 + b"\\",
    "wrong bracket": large(b"[1}"),
    "wrong large bracket": b'{"a":' + orjson.dumps(NUMBERS)[:-1] + b"}]",
    "text after it": large(b"1") + b"{}",
    "comma at end": b'{"a":%b,]}' % orjson.dumps(NUMBERS)[:-1],
    "comma at begin": b'{"a":[ %b,1]}' % (b" " * 100_000),
    "two commas": large(b"1,,1"),
    "no comma": large(b"1 [2]"),
    "no comma after large value": b'{"a":[%b 1]}' % orjson.dumps(NUMBERS),
    "no comma between texts": b'{"a":[%b%b]}' % (TEXT, TEXT),
    "no colon": b'{"a" %b}' % TEXT,
    "no value": b'{"a":1,"b":,"c":%b}' % TEXT,
    "no name": b"{%b}" % TEXT,
    "array in name": b"{%b:1}" % orjson.dumps(NUMBERS),
    "single quotes": large(b"'x'"),
    "not a number": large(b"NaN"),
    "control character": large(b'"\n"'),
    "control character in long text": b'{"a":"%b"}' % (b"x" * 100_000 + b"\n"),
    "unknown escape in long text": b'{"a":"%b"}' % (b"x" * 100_000 + b"\\x41"),
    "short escape in long text": b'{"a":"%b"}' % (b"x" * 100_000 + b"\\u12"),
    "lone surrogate": large(b'"\\ud800"'),
    "lone high surrogate in long text": b'{"a":"%b"}' % (b"x" * 100_000 + b"\\ud83d"),
    "lone low surrogate in long text": b'{"a":"%b"}' % (b"x" * 100_000 + b"\\ude00"),
    "not UTF-8": large(b'"\xff"'),
    "not UTF-8 in long text": b'{"a":"%b"}' % (b"x" * 100_000 + b"\xff"),
    "continuation bytes": b'{"a":"%b"}' % (b"\x80" * 100_000),
    "not UTF-8 outside": large(b"\xff"),
    "deep": b'{"a":%b%b}' % (b"[" * 2_000 + b"1," * 50_000 + b"1", b"]" * 2_000),
    "deep and small": b'{"a":%b%b}' % (b"[" * 2_000, b"]" * 2_000),
}


@pytest.mark.parametrize("before", range(14))
@pytest.mark.parametrize(
    "part", ["\\n", "\\\\", '\\"', "\\u00e9", "\\ud83d\\ude00", "\\\\u00e9", "\\uD83D\\uDE00\\\\", "é", "😀\\t"]
)
def test_text_is_cut_between_characters(part: str, before: int) -> None:
    """Each place of an escape is at the end of a piece once."""
    text = "x" * before + part * 20_000
    document = f'{{"a":"{text}"}}'.encode()
    assert loads(document) == orjson.loads(document)


@pytest.mark.parametrize("name", INVALID)
def test_invalid_document_is_refused(name: str) -> None:
    if name != "number":
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(INVALID[name])
    with pytest.raises(InvalidJsonError):
        loads(INVALID[name])


def test_small_document_is_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(json_decoding, "_Decoding")
    assert json_decoding.loads(b'{"a": [%b1]}' % (b"0," * 30_000)) == {"a": [0] * 30_000 + [1]}
    with pytest.raises(InvalidJsonError, match="column"):
        json_decoding.loads(b"{")
    with pytest.raises(NameError):
        json_decoding.loads(b'{"a": [%b1]}' % (b"0," * 40_000))
