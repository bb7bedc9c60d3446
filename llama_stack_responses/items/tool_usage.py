"""What hosted tools used for a response: the tokens of an image server, and searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from ..core.types import Json
from .registry import ITEM_KINDS

_MAX_TOKENS: Final = 10**12


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """The tokens of calls of an image server.

    Attributes:
        input_tokens: tokens of prompts and images.
        input_image_tokens: the part of `input_tokens` that is images.
        output_tokens: tokens of generated images, and of texts about them.
        output_image_tokens: the part of `output_tokens` that is images.
    """

    input_tokens: int = 0
    input_image_tokens: int = 0
    output_tokens: int = 0
    output_image_tokens: int = 0

    def __add__(self, other: ImageUsage) -> ImageUsage:
        """Return the sum."""
        return ImageUsage(
            self.input_tokens + other.input_tokens,
            self.input_image_tokens + other.input_image_tokens,
            self.output_tokens + other.output_tokens,
            self.output_image_tokens + other.output_image_tokens,
        )


def image_usage(reported: Any) -> ImageUsage | None:
    """Return the tokens that an image server reports; None if it does not.

    Args:
        reported: the `usage` of its answer, any JSON.
    """
    if not isinstance(reported, dict):
        return None
    inputs, outputs = reported.get("input_tokens"), reported.get("output_tokens")
    if not (_is_count(inputs, _MAX_TOKENS) and _is_count(outputs, _MAX_TOKENS)):
        return None
    # Without details, all input is the prompt and all output is the image.
    input_images = _image_tokens(reported.get("input_tokens_details"), inputs, 0)
    return ImageUsage(
        inputs, input_images, outputs, _image_tokens(reported.get("output_tokens_details"), outputs, outputs)
    )


def _image_tokens(details: Any, maximum: int, otherwise: int) -> int:
    """Return the part of `maximum` tokens that is images."""
    if not isinstance(details, dict):
        return otherwise
    images, texts = details.get("image_tokens"), details.get("text_tokens")
    if _is_count(images, maximum):
        return images
    return maximum - texts if _is_count(texts, maximum) else otherwise


def _is_count(value: Any, maximum: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= maximum


def tool_usage(output: Sequence[Json], images: ImageUsage) -> Json:
    """Return a response's `tool_usage`.

    Args:
        output: the response's output. Its searches are counted, not the pages that were opened.
        images: the tokens of all images.
    """
    return {
        "image_gen": {
            "input_tokens": images.input_tokens,
            "input_tokens_details": _details(images.input_tokens, images.input_image_tokens),
            "output_tokens": images.output_tokens,
            "output_tokens_details": _details(images.output_tokens, images.output_image_tokens),
            "total_tokens": images.input_tokens + images.output_tokens,
        },
        "web_search": {"num_requests": sum(map(_is_search, output))},
    }


def _details(tokens: int, image_tokens: int) -> Json:
    return {"image_tokens": image_tokens, "text_tokens": tokens - image_tokens}


def _is_search(item: Json) -> bool:
    kind = ITEM_KINDS.get(item["type"])
    return bool(kind and kind.searches and kind.searches(item))
