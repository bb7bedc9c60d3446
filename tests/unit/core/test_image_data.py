"""Images in data URLs: what is accepted, and that stored ones are not checked again."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.image_data import check_image
from llama_stack_responses.core.shapes import DEFAULT_LIMITS, Location

PNG: Final = b"\x89PNG\r\n\x1a\n"
AT: Final = Location("input[0].content[0].image_url")


def url(media_type: str, content: bytes) -> str:
    """Return a data URL."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize(
    "accepted",
    [
        url("image/png", PNG),
        url("IMAGE/PNG", PNG).replace("data", "DATA"),
        url("image/png;charset=utf-8", PNG),
        url("image/jpeg", PNG),
        url("image/jpg", b"\xff\xd8\xff\xe0"),
        url("image/gif", b"GIF89a"),
        url("image/webp", b"RIFF\x10\0\0\0WEBP"),
        url("image/bmp", b"BM"),
        f"data:image/png;base64,{base64.encodebytes(PNG * 100_000).decode()}",
    ],
    ids=lambda value: value[:30],
)
def test_image_is_accepted(accepted: str) -> None:
    check_image(accepted, AT)


@pytest.mark.parametrize(
    "refused",
    [
        url("image/webp", b"RIFF\x10\0\0\0WAVE"),
        url("image/bmp", b""),
        f"data:image/png{';' * 2_000};base64,{base64.b64encode(PNG).decode()}",
        f"data:image/png;base64,{base64.b64encode(PNG).decode()}AAA",
    ],
    ids=lambda value: value[:30],
)
def test_other_data_is_refused_with_its_place(refused: str) -> None:
    with pytest.raises(ApiError) as raised:
        check_image(refused, AT)
    assert (raised.value.status, raised.value.param, raised.value.code) == (400, AT.path, "invalid_value")


def test_media_type_of_any_length_is_quoted_in_part() -> None:
    with pytest.raises(ApiError) as raised:
        check_image(f"data:{'x' * 900};base64,AAAA", AT)
    assert len(raised.value.message) < 400


def test_image_of_a_stored_request_is_not_checked_again() -> None:
    check_image("data:text/plain;base64,", Location("input", replace(DEFAULT_LIMITS, bounded=False)))
