"""Input files are read in pieces from any line on, and checked with bounds."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

import pytest

from llama_stack_responses.features.batches.input_lines import Checked, Checks, LineReader, RawLine, checked, value_of
from llama_stack_responses.features.batches.rows import Named

ENDPOINT = "/v1/responses"


def line(custom_id: str = "a", **changes: Any) -> bytes:
    body = {"model": "m", "input": "Hi"}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body, **changes}).encode()


async def read(file: BinaryIO, line_bytes: int = 1_000, number: int = 1, offset: int = 0) -> list[RawLine]:
    reader, lines = LineReader(file, line_bytes, number, offset), list[RawLine]()
    while page := await reader.page():
        lines += page
    return lines


async def found_in(
    content: bytes, lines: int = 100, line_bytes: int = 1_000, noted: list[Named] | None = None
) -> Checked:
    async def note(some: Sequence[Named]) -> None:
        if noted is not None:
            noted.extend(some)

    return await checked(io.BytesIO(content), Checks(ENDPOINT, lines, line_bytes), note)


def codes(found: Checked) -> list[tuple[str, int | None]]:
    return [(each["code"], each["line"]) for each in found.errors]


async def test_blank_lines_count_and_are_left_out() -> None:
    found = await read(io.BytesIO(b"one\n\n  \r\ntwo\r\nthree"))
    assert [(each.number, each.text.strip()) for each in found] == [(1, b"one"), (4, b"two"), (5, b"three")]


async def test_lines_behind_many_blank_ones_are_read() -> None:
    blank = b"\n".rjust(2**16)
    found = await read(io.BytesIO(b"one\n" + blank * 40 + b"two\n" + blank * 40), line_bytes=2**17)
    assert [(each.number, each.text) for each in found] == [(1, b"one\n"), (42, b"two\n")]


async def test_byte_order_mark_at_the_beginning_is_left_out() -> None:
    mark = b"\xef\xbb\xbf"
    first, second = await read(io.BytesIO(mark + b"one\n" + mark + b"two"))
    assert (first, second.text) == (RawLine(1, b"one\n", 0, 7), mark + b"two")
    assert codes(await found_in(mark + line())) == []
    assert codes(await found_in(mark)) == [("empty_file", None)]


async def test_reading_goes_on_from_any_line() -> None:
    content = io.BytesIO(b"\n".join(b"line %d" % number for number in range(1, 1_001)))
    every = await read(content)
    assert [each.number for each in every] == list(range(1, 1_001))
    for index in (0, 255, 256, 998):
        rest = await read(content, number=every[index].number + 1, offset=every[index].end)
        assert rest == every[index + 1 :]


async def test_long_line_is_cut_off_and_the_next_one_is_whole() -> None:
    long = b"x" * 300_000
    first, second = await read(io.BytesIO(long + b"\nnext\n"), line_bytes=10)
    assert (first.number, first.text, first.end) == (1, b"x" * 11, len(long) + 1)
    assert (second.number, second.text) == (2, b"next\n")


async def test_line_of_the_maximum_size_is_accepted() -> None:
    text = line()
    assert codes(await found_in(text + b"\n", line_bytes=len(text) + 1)) == []
    assert codes(await found_in(text, line_bytes=len(text))) == []
    assert codes(await found_in(text, line_bytes=len(text) - 1)) == [("line_too_long", 1)]


async def test_checked_file_has_count_and_model() -> None:
    found = await found_in(b"\n".join([line("a"), b"", line("b")]))
    assert (found.count, found.model, found.errors) == (2, "m", [])
    several = await found_in(b"\n".join([line("a"), line("b", body={"model": "n"}), line("c", body={"model": "o"})]))
    assert (several.count, several.model) == (3, None)


async def test_custom_ids_are_noted_until_something_is_wrong() -> None:
    noted = list[Named]()
    await found_in(b"\n".join([line("a"), b"", *(line(f"b{number}") for number in range(300))]), 400, noted=noted)
    assert noted == [(1, "a"), *((number + 3, f"b{number}") for number in range(300))]
    noted.clear()
    await found_in(b"\n".join([*(line(f"b{number}") for number in range(256)), b"{", line("c")]), 400, noted=noted)
    assert len(noted) == 256


async def test_file_with_too_many_lines_is_refused_once() -> None:
    assert codes(await found_in(b"\n".join(line(str(n)) for n in range(600)), lines=5)) == [("too_many_tasks", None)]


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe",
        b'{"custom_id": "\\ud800"}',
        b"[" * 100_000,
        b'{"a": ' + b'{"b": ' * 200 + b"1" + b"}" * 201,
        b"null",
        b"NaN",
    ],
)
async def test_line_that_is_no_json_object_is_refused(text: bytes) -> None:
    assert codes(await found_in(text, line_bytes=1_000_000)) == [("invalid_json_line", 1)]


async def test_errors_are_bounded() -> None:
    found = await found_in(b"\n".join([b"{"] * 1_000), lines=10_000)
    assert len(found.errors) == 100


async def test_event_loop_may_run_after_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)
    await found_in(b"\n".join(line(str(number)) for number in range(50)))
    assert pauses == [0] * 50


async def test_custom_id_is_short_and_not_empty() -> None:
    found = await found_in(b"\n".join([line(""), line("x" * 512), line("x" * 513)]), line_bytes=10_000)
    assert codes(found) == [("invalid_value", 1), ("invalid_value", 3)]


async def test_large_line_is_decoded() -> None:
    text = line(body={"model": "m", "input": "x" * 200_000})
    assert (await value_of(text))["body"]["input"] == "x" * 200_000
