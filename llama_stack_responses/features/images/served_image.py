"""Calls of an image server, and the images that it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...concurrency.large_base64 import decoded, encoded, encoded_bytes
from ...core.base64_pieces import data_start
from ...core.media_formats import image_format
from ...core.types import Json
from ...items.tool_usage import ImageUsage, image_usage
from .failure import ImageFailed

_SETTINGS: Final[Mapping[str, frozenset[str]]] = {
    "background": frozenset({"transparent", "opaque", "auto"}),
    "quality": frozenset({"low", "medium", "high", "xhigh", "max", "auto"}),
}
_SIZE_CHARACTERS: Final = 16
_PROMPT_CHARACTERS: Final = 32_000
_A_URL: Final = (
    "The image server answered with a URL instead of the image. Its operator has to configure it to answer in base64."
)


@dataclass(frozen=True, slots=True)
class ImageCall:
    """A call of an image server.

    Attributes:
        model: the model; None leaves it to the server.
        options: further fields of the request, such as `size`.
        images: the images to edit; without any, a new one is generated.
        mask: marks where the first of them is edited.
        partial_images: how many unfinished images are requested.
    """

    prompt: str
    model: str | None = None
    options: Mapping[str, str | int] = field(default_factory=dict)
    images: Sequence[bytes] = ()
    mask: bytes | None = None
    partial_images: int = 0


@dataclass(frozen=True, slots=True)
class ServedImage:
    """An image of an image server.

    Attributes:
        data: the image, as base64.
        output_format: its format, by its first bytes.
        settings: `background`, `quality` and `size`, as far as the server says them.
        revised_prompt: the prompt that the server used; None if it does not say.
        usage: the tokens of the call; None if the server does not say.
    """

    data: str
    output_format: str
    settings: Mapping[str, str]
    revised_prompt: str | None = None
    usage: ImageUsage | None = None


async def served_image(entry: Json, about: Json, max_bytes: int) -> ServedImage:
    """Return an image of an answer.

    Args:
        entry: has the image.
        about: has the settings and the tokens.
        max_bytes: maximum size of the image.

    Raises:
        ImageFailed: there is no image, or it is too large.
    """
    data, output_format = await _checked(_text_of(entry), max_bytes)
    revised = entry.get("revised_prompt")
    settings = {name: about[name] for name, known in _SETTINGS.items() if _is_one_of(about.get(name), known)}
    size = about.get("size")
    if isinstance(size, str) and 0 < len(size) <= _SIZE_CHARACTERS:
        settings["size"] = size
    prompt = revised[:_PROMPT_CHARACTERS] if isinstance(revised, str) and revised else None
    return ServedImage(data, output_format, settings, prompt, image_usage(about.get("usage")))


def _is_one_of(value: Any, known: frozenset[str]) -> bool:
    return isinstance(value, str) and value in known


def _text_of(entry: Json) -> str:
    data, url = entry.get("b64_json"), entry.get("url")
    if isinstance(data, str) and data:
        return data
    if isinstance(url, str) and url.startswith("data:"):
        return url
    if url:
        raise ImageFailed(_A_URL, "an answer with a URL")
    raise ImageFailed("The image server's answer has no image.", "an answer without an image")


async def _checked(text: str, max_bytes: int) -> tuple[str, str]:
    """Return an image as plain base64, and its format."""
    start = data_start(text)
    try:
        content = await decoded(text, start)
    except ValueError:
        raise ImageFailed("The image server's answer is not valid base64.", "invalid base64") from None
    if len(content) > max_bytes:
        raise too_large(max_bytes)
    if (output_format := image_format(content)) is None:
        message = "The image server's answer is no image in one of the formats PNG, JPEG, WebP and GIF."
        raise ImageFailed(message, "an answer that is no image")
    is_plain = not start and len(text) == encoded_bytes(content)
    return text if is_plain else await encoded(content), output_format


def too_large(max_bytes: int) -> ImageFailed:
    """Return the failure of an answer with an image of more than this many bytes."""
    message = f"The image server's image is larger than {max_bytes} bytes, the maximum. Generate a smaller one."
    return ImageFailed(message, "too large an answer")
