"""The image tool of a stack that has an image server."""

from __future__ import annotations

from functools import partial

from ...feature import Feature, Stack
from ...tools.registry import HostedTool
from .client import ImageServer, ImageServerLimits
from .reader import ImageReader
from .settings import SETTINGS, ImageGeneration
from .tool import ImageServices, ImageSupport, ImageTool


def open_feature(stack: Stack) -> Feature:
    """Return the tool; none without an image server."""
    settings = SETTINGS.of(stack.config)
    if settings is None:
        return Feature()
    server = _server(settings)
    reader = ImageReader(stack.files, stack.fetcher(settings.image_bytes), settings.image_bytes)
    services = ImageServices(server, _support(settings), reader.read, stack.reserve, stack.current_user)
    tool = HostedTool(partial(ImageTool, services=services))
    return Feature(tools={"image_generation": tool}, close=server.close)


def _server(settings: ImageGeneration) -> ImageServer:
    key = settings.api_key.get_secret_value() if settings.api_key else None
    limits = ImageServerLimits(
        seconds=settings.seconds,
        image_bytes=settings.image_bytes,
        concurrency=settings.concurrency,
        concurrency_per_user=settings.concurrency_per_user,
        waiting_per_user=settings.waiting_per_user,
    )
    return ImageServer(settings.url, key, settings.response_format, limits)


def _support(settings: ImageGeneration) -> ImageSupport:
    return ImageSupport(
        model=settings.model,
        models=settings.models,
        options=settings.options,
        edits=settings.edits,
        model_sees_images=settings.model_sees_images,
    )
