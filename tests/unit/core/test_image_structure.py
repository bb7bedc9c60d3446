"""Images that were cut are told from those that some decoder shows: each format is made by Pillow, which is asked too."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from io import BytesIO
from time import process_time
from typing import Any, Final

import pytest
from PIL import Image, ImageFile

from llama_stack_responses.core.image_structure import has_picture
from llama_stack_responses.core.media_formats import IMAGE_HEAD_BYTES

PICTURE: Final = Image.effect_noise((24, 24), 80).convert("RGB")
PROFILE: Final = b"p" * 70_000


def made(form: str, **options: Any) -> bytes:
    """Return an image of this format."""
    file = BytesIO()
    PICTURE.save(file, form, **options)
    return file.getvalue()


IMAGES: Final = {
    "png": made("png"),
    "png with a profile": made("png", icc_profile=PROFILE),
    "jpeg": made("jpeg"),
    "jpeg progressive": made("jpeg", progressive=True),
    "jpeg with a profile": made("jpeg", icc_profile=PROFILE, exif=b"Exif\0\0" + bytes(2_000)),
    "gif": made("gif"),
    "gif of frames": made("gif", save_all=True, append_images=[PICTURE.rotate(90)], comment=b"c" * 600),
    "webp": made("webp"),
    "webp lossless": made("webp", lossless=True),
    "webp with a profile": made("webp", icc_profile=PROFILE),
    "webp of frames": made("webp", save_all=True, append_images=[PICTURE.rotate(90)]),
}


def has(name: str, content: bytes) -> bool:
    return has_picture(name.partition(" ")[0], content[:IMAGE_HEAD_BYTES], len(content))


def is_shown(content: bytes) -> bool:
    """Return whether Pillow shows the image or a part of it."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(BytesIO(content)) as image:
            image.load()
            # What it has not read has one colour.
            extremes: Any = image.convert("RGB").getextrema()
            return any(low != high for low, high in extremes)
    except Exception:  # noqa: BLE001 - Pillow raises many kinds
        return False


@pytest.fixture
def shows_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Pillow show images that end early."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)


def cuts(content: bytes) -> Iterator[bytes]:
    """Yield the beginnings of an image, all of the first kilobyte and of the last bytes."""
    sizes = {
        *range(24, min(len(content), 1_200)),
        *range(24, len(content), 997),
        *range(len(content) - 9, len(content)),
    }
    yield from (content[:size] for size in sorted(sizes))


@pytest.mark.parametrize("name", IMAGES)
def test_whole_image_is_accepted_also_with_bytes_behind_its_end(name: str) -> None:
    for more in (b"", b"\0\0\0", b"\r\n", b"text behind it" * 20_000):
        assert has(name, IMAGES[name] + more)


@pytest.mark.relatives
@pytest.mark.usefixtures("shows_parts")
@pytest.mark.parametrize("name", IMAGES)
def test_cut_image_of_which_pillow_shows_a_part_is_accepted(name: str) -> None:
    refused = [len(each) for each in cuts(IMAGES[name]) if is_shown(each) and not has(name, each)]
    assert refused == []


@pytest.mark.parametrize("name", IMAGES)
def test_image_that_ends_before_its_picture_is_refused(name: str) -> None:
    beginning = {"png": b"IDAT", "jpeg": b"\xff\xda", "gif": b"\x2c\0\0\0\0"}.get(name.partition(" ")[0])
    # libwebp shows nothing of a file that is shorter than it says.
    picture = IMAGES[name].index(beginning) if beginning else len(IMAGES[name]) - 2
    assert not any(has(name, each) for each in cuts(IMAGES[name][:picture]))
    assert not has(name, IMAGES[name][:40])


@pytest.mark.parametrize("name", ["png", "jpeg", "gif"])
def test_image_without_its_end_is_accepted(name: str) -> None:
    end = {"png": 12, "jpeg": 2, "gif": 1}[name]
    assert has(name, IMAGES[name][:-end])


def test_webp_without_the_byte_that_fills_up_is_accepted() -> None:
    content = IMAGES["webp"]
    assert has("webp", content[:-1])
    assert not has("webp", content[:-2])


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("png", IMAGES["png"][:33] + b"\0\0\0\0tEXtcrc." * 20_000),
        ("png", IMAGES["png"][:33] + b"\xff\xff\xff\xfftEXt"),
        ("gif", IMAGES["gif"][:13] + b"\x21\xfe" + b"\x01c" * 100_000),
        ("gif", b"GIF89a\1\0\1\0\0\0\0" + b"\x21\xfe\0" * 50_000),
        ("jpeg", b"\xff\xd8" + b"\xff\xfe\0\2" * 50_000),
        ("jpeg", b"\xff\xd8" + b"\xff" * 200_000),
        ("jpeg", b"\xff\xd8\xff\xe0" + bytes(200_000)),
    ],
)
def test_endless_image_is_read_in_a_bounded_number_of_steps(form: str, content: bytes) -> None:
    steps = 0

    def count(*_: object) -> Any:
        nonlocal steps
        steps += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        has(form, content)
    finally:
        sys.settrace(before)
    assert steps < 10_000


def test_fill_bytes_of_a_jpeg_are_searched_once() -> None:
    """Another pattern would begin anew at each of them, which takes half a minute."""
    started = process_time()
    assert not has("jpeg", b"\xff\xd8" + b"\xff" * (IMAGE_HEAD_BYTES - 2))
    assert process_time() - started < 2
