"""Images, files and sounds as data: what is accepted, and that stored ones are not checked again."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.inline_data import check_file, check_image, check_sound
from llama_stack_responses.core.shapes import DEFAULT_LIMITS, Location

PNG_HEADER: Final = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\b\2\0\0\0\x90wS\xde"
PNG: Final = PNG_HEADER + b"\0\0\0\x0cIDATx\x9ccx\xf7\xff?\0\5Z\2\xac"
GIF: Final = b"GIF89a\1\0\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D"
WEBP: Final = b"RIFF\x19\0\0\0WEBPVP8L\x0d\0\0\0/\0\0\0\x10\7\x10\x11\x11\x88\x88\xfe\7\0"
JPEG_HEADER: Final = b"\xff\xd8\xff\xe0\0\x04xx\xff\xff\xc0\0\x0b\b\0\1\0\1\1\1\x11\0"
JPEG: Final = JPEG_HEADER + b"\xff\xda\0\x08\1\1\0\0?\0\xd2"
EXIF: Final = b"\xff\xd8\xff\xe1\xff\xff" + b"e" * 65_533
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
        url("image/jpg", JPEG),
        url("image/jpg", JPEG[:8] + b"between" + JPEG[8:]),
        url("image/jpeg", EXIF + JPEG[2:]),
        url("image/jpeg", EXIF * 3 + b"more than what is read at once" * 10_000),
        url("image/gif", GIF),
        url("image/gif", GIF.replace(b"89", b"87")),
        url("image/webp", WEBP),
        url("image/bmp", b"BM\x46\0\0\0"),
        url("image/avif", b"\0\0\0\x20ftypavif"),
        url("image/tiff", b"II*\0"),
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
        url("image/png", PNG[:8]),
        url("image/png", PNG[:23]),
        url("image/png", PNG_HEADER),
        url("image/png", PNG[:40]),
        url("image/png", PNG.replace(b"IHDR\0\0\0\1", b"IHDR\0\0\0\0")),
        url("image/gif", GIF[:12]),
        url("image/gif", GIF[:13]),
        url("image/gif", GIF[:13] + b";"),
        url("image/gif", b"GIF88a" + bytes(20)),
        url("image/webp", WEBP[:24]),
        url("image/webp", WEBP.replace(b"VP8L", b"VP9 ")),
        url("image/jpeg", JPEG[:4]),
        url("image/jpeg", JPEG[:17]),
        url("image/jpeg", JPEG_HEADER),
        url("image/jpeg", JPEG_HEADER + b"\xff\xd9"),
        url("image/jpeg", EXIF),
        url("image/jpeg", b"\xff\xd8\xff\xda\0\x04xx"),
        url("image/jpeg", b"\xff\xd8" + b"\xff\x01" * 1_000 + JPEG[2:]),
        url("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        url("image/svg+xml", b"\x1f\x8b\b\0"),
        url("image/svg+xml", PNG[:8]),
        url("image/bmp", b"<!doctype html><p>Not found: \xc3\xa4.</p>" * 99),
        url("image/bmp", b"\xef\xbb\xbfA text."),
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


WAV: Final = b"RIFF\x24\0\0\0WAVE"


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("wav", WAV),
        ("wav", WAV.replace(b"RIFF", b"RF64")),
        ("mp3", b"ID3\x04"),
        ("mp3", b"\xff\xfb\x90"),
        ("mp3", b"\0\0\xff\xe3"),
        ("mp3", b"ID3" * 200_000),
    ],
)
def test_sound_of_its_format_is_accepted(form: str, content: bytes) -> None:
    check_sound(base64.encodebytes(content).decode(), form, AT)


@pytest.mark.parametrize(
    ("data", "form", "got"),
    [
        ("?!", "wav", "an invalid base64-encoded value"),
        (base64.b64encode(b"ID3" * 200_000).decode() + "*", "mp3", "an invalid base64-encoded value"),
        ("", "wav", "empty base64-encoded bytes"),
        (url("audio/wav", WAV), "wav", "a data URL"),
        ("https://example.org/a.wav", "wav", "a URL"),
        (base64.b64encode(b"ID3\x04").decode(), "wav", "not of the format 'wav'"),
        (base64.b64encode(WAV).decode(), "mp3", "not of the format 'mp3'"),
        (base64.b64encode(b"OggS" + b"\0" * 2_000 + b"\xff\xfb").decode(), "mp3", "not of the format 'mp3'"),
    ],
    ids=lambda value: value[:20],
)
def test_data_that_is_no_such_sound_is_refused(data: str, form: str, got: str) -> None:
    with pytest.raises(ApiError, match=got) as raised:
        check_sound(data, form, AT)
    assert (raised.value.status, raised.value.param, raised.value.code) == (400, AT.path, "invalid_value")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (url("application/pdf", b"%PDF-1.7"), ""),
        (url("application/pdf", b"\n" * 1_000 + b"%PDF-1.7"), "a.pdf"),
        (base64.encodebytes(b"%PDF-1.7").decode(), "a.pdf"),
        (url("text/plain", b"<p>"), "a.pdf"),
        (url("image/jpeg", PNG), "a"),
        (url("application/zip", b"x"), "a.docx"),
    ],
    ids=lambda value: value[:30],
)
def test_file_is_accepted(data: str, name: str) -> None:
    check_file(data, name, AT)


@pytest.mark.parametrize(
    ("data", "name", "said"),
    [
        ("data:application/pdf;base64,?!", "a.pdf", "an invalid base64-encoded value"),
        ("A", "a", "an invalid base64-encoded value"),
        ("AA=A" * 100_000, "a", "an invalid base64-encoded value"),
        ("AAAA" * 100_000 + "*", "a", "an invalid base64-encoded value"),
        ("AAAA" * 100_000 + "A", "a", "an invalid base64-encoded value"),
        (f"data:text/plain{';' * 1_000_000},QUFB", "a", "an invalid base64-encoded value"),
        (url("application/pdf", b""), "a.pdf", "empty base64-encoded bytes"),
        (url("text/plain", b""), "a", "empty base64-encoded bytes"),
        (url("application/pdf", b"<p>Sign in.</p>"), "", "called a PDF"),
        (url("text/html", b"<p>Sign in.</p>"), "a.PDF", "called a PDF"),
        (base64.b64encode(b"Hello").decode(), "a.pdf", "called a PDF"),
        (url("image/png", b"<p>Sign in.</p>"), "", "called an image"),
    ],
    ids=lambda value: value[:30],
)
def test_data_that_is_no_such_file_is_refused(data: str, name: str, said: str) -> None:
    with pytest.raises(ApiError, match=said) as raised:
        check_file(data, name, AT)
    assert (raised.value.status, raised.value.param, raised.value.code) == (400, AT.path, "invalid_value")


def test_data_of_a_stored_request_is_not_checked_again() -> None:
    at = Location("input", replace(DEFAULT_LIMITS, bounded=False))
    check_image("data:text/plain;base64,", at)
    check_file("data:application/pdf;base64,", "a.pdf", at)
    check_sound("?", "wav", at)
