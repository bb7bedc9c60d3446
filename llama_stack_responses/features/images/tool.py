"""Image generation: the model has an image server generate images, and edit those of the conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ...admission import Reservation
from ...concurrency.offloading import in_thread_if_large
from ...core.errors import ApiError
from ...core.media_formats import image_format
from ...core.types import Json
from ...feature import Feature, Stack
from ...fetch.address_policy import UrlRefused
from ...requests.request import CreateRequest
from ...requests.unavailable_tools import UnavailableTool
from ...stream.call_kinds import CallKind, no_fields
from ...tools.hosted.lenient_arguments import named_arguments
from ...tools.registry import HostedTool
from ...tools.tool import NeedsPreparation
from ...tools.tool_function import Function, Invocation, ItemReporter, Outcome, Output, ToolError, chat_function
from ...tools.tool_history import ToolHistory
from .client import ImageServer, ImageServerLimits
from .failure import ImageFailed
from .kinds import DEFAULT_FORMAT, FORM, IMAGE_CALL, IMAGE_SETTINGS
from .names import GENERATE, generated, image_name
from .reader import ImageReader
from .served_image import ImageCall, ServedImage
from .settings import ImageGeneration

_MAX_IMAGES: Final = 16
"""Maximum images of one edit, as OpenAI allows."""
_PROMPT_CHARACTERS: Final = 32_000
_LISTED_NAMES: Final = 50
_SENT_NAME: Final = "input"
"""The beginning of the names of images that the user sent."""

_ASSUMED: Final[Mapping[str, Any]] = {
    "background": "auto",
    "moderation": "auto",
    "output_compression": 100,
    "output_format": DEFAULT_FORMAT,
    "partial_images": 0,
    "quality": "auto",
    "size": "auto",
}
"""Values that mean the same as an absent field. Such fields are not sent: not every image server knows them."""
_NO_OPTIONS: Final = frozenset({"type", "action", "input_image_mask", "model", "partial_images"})
"""Fields of a declaration that are not fields of a request to the image server as they are."""
_OF_EDITS: Final = frozenset({"input_fidelity", "input_image_mask"})
_OF_NEW_IMAGES: Final = frozenset({"moderation"})
"""Fields that only one kind of request has."""

_PROMPT: Final = {
    "type": "string",
    "description": "A full description of the image, or of what to change. The image generator sees nothing else.",
}
_IMAGES: Final = (
    "The names of the images to edit or to combine: those of generated images are in their results, and the images "
    f"that the user sent are '{_SENT_NAME}-1', '{_SENT_NAME}-2' and so on, in their order."
)


@dataclass(frozen=True, slots=True)
class ImageSupport:
    """What the image server can do.

    Attributes:
        model: the model of requests that name none; None leaves it to the server.
        models: the models that requests may name; None for all.
        options: the fields of a declaration that it supports.
        edits: whether it edits images.
        model_sees_images: whether the chat model gets the images.
    """

    model: str | None = None
    models: Collection[str] | None = None
    options: Collection[str] = ()
    edits: bool = True
    model_sees_images: bool = False

    def check(self, declared: Json) -> None:
        """Check a declaration.

        Raises:
            UnavailableTool: it asks for what the server cannot do.
        """
        if self.models is not None and declared.get("model", self.model) not in (self.model, *self.models):
            known = ", ".join(f"'{each}'" for each in sorted({*self.models, *filter(None, [self.model])}))
            raise UnavailableTool(f"The image server of this stack has these models: {known}.", "model")
        for name in declared:
            if declared[name] == _ASSUMED.get(name) or name in ("type", "model"):
                continue
            wants_edits = name in _OF_EDITS or (name, declared[name]) == ("action", "edit")
            lacks_option = name not in ("action", "input_image_mask") and name not in self.options
            if lacks_option or (wants_edits and not self.edits):
                value = f"'{name}': '{declared[name]}'" if name == "action" else f"'{name}'"
                message = f"The image server of this stack does not support {value}. Omit it."
                raise UnavailableTool(message, name)


@dataclass(frozen=True, slots=True)
class ImageServices:
    """What the tool uses.

    Attributes:
        server: the image server.
        support: what it can do.
        read: reads an image: a part of a message, a mask or the item of a call. It raises `ApiError`, or `UrlRefused`
            or a `ValueError` with the reason; its second argument is called with the number of bytes to be held.
        reserve: creates a reservation of the current user for the bytes that a call holds.
    """

    server: ImageServer
    support: ImageSupport
    read: Callable[[Json, Callable[[int], object]], Awaitable[bytes]]
    reserve: Callable[[], Reservation]


class ImageTool(NeedsPreparation):
    """The image generation tool, with a single function.

    Args:
        declared: the tool's entry.
        request: the whole request.
        services: what it uses.

    Raises:
        UnavailableTool: it asks for what the image server cannot do.
    """

    def __init__(self, declared: Json, request: CreateRequest, services: ImageServices) -> None:
        services.support.check(declared)
        self._declared = declared
        self._services = services
        self._partial_images: int = declared.get("partial_images", 0) if request.stream else 0
        self._images: dict[str, Json] = {}
        self._latest: Sequence[str] = ()
        action = declared.get("action", "auto")
        self._must_edit = action == "edit" or "input_image_mask" in declared
        self._may_edit = services.support.edits and action != "generate"
        kind = CallKind(FORM, no_fields, whole=_read, unread={}, hosted=True)
        # Repeatable: another image costs time, and changes nothing.
        self._functions = (Function(self._function(), kind, self._run, repeatable=True),)

    def functions(self) -> Sequence[Function]:
        """Return the single function."""
        return self._functions

    def handles(self) -> Collection[str]:
        """Return the handle of its type."""
        return ("image_generation",)

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names the tool's type."""
        return [GENERATE] if choice["type"] == "image_generation" else []

    async def prepare(self, history: ToolHistory, _: ItemReporter) -> None:
        """Find the images of the conversation."""
        sent = 0
        for images in await in_thread_if_large(partial(_images_of, history.items), history.items):
            names = []
            for image in images:
                sent += image["type"] != IMAGE_CALL
                names.append(image_name(image["id"]) if image["type"] == IMAGE_CALL else f"{_SENT_NAME}-{sent}")
            self._add(dict(zip(names, images, strict=True)))

    def _add(self, images: Mapping[str, Json]) -> None:
        self._images.update(images)
        self._latest = list(images)

    def _function(self) -> Json:
        properties: Json = {"prompt": _PROMPT}
        description = "Generates an image, which the user sees at once."
        if self._may_edit:
            default = "Omit it to edit the newest." if self._must_edit else "Omit it for a new image."
            properties["images"] = {
                "type": "array",
                "items": {"type": "string"},
                "description": f"{_IMAGES} {default}",
            }
            description = "Generates an image, or edits images of the conversation. The user sees the result at once."
        parameters = {"type": "object", "properties": properties, "required": ["prompt"]}
        return chat_function(GENERATE, description, parameters)

    async def _run(self, invocation: Invocation) -> Outcome:
        arguments = await invocation.arguments()
        prompt = arguments["prompt"].strip()
        if len(prompt) > _PROMPT_CHARACTERS:
            raise ToolError(f"The prompt is too long: it may have {_PROMPT_CHARACTERS} characters.")
        names = self._chosen(arguments.get("images"))
        invocation.advance("generating")
        image = await self._served(invocation, prompt, names)
        fields = {
            **self._fields(image),
            "action": "edit" if names else "generate",
            "result": image.data,
            "revised_prompt": image.revised_prompt or prompt,
        }
        item_id = invocation.item["id"]
        self._add({image_name(item_id): {**invocation.item, **fields}})
        return Outcome(self._output(item_id, image), fields, image_usage=image.usage)

    def _output(self, item_id: str, image: ServedImage) -> Output:
        text = generated(item_id)
        if not self._services.support.model_sees_images:
            return text
        url = f"data:image/{image.output_format};base64,{image.data}"
        return [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url, "detail": "auto"}]

    def _fields(self, image: ServedImage) -> Json:
        """Return the settings of an image: as the server says, as the request says, or `auto`."""
        asked = {name: self._declared.get(name, "auto") for name in IMAGE_SETTINGS}
        return {**asked, **image.settings, "output_format": image.output_format}

    async def _served(self, invocation: Invocation, prompt: str, names: Sequence[str]) -> ServedImage:
        def show(number: int, image: ServedImage) -> None:
            invocation.show_partial(number, {**self._fields(image), "result": image.data}, len(image.data))

        services, mask = self._services, self._declared.get("input_image_mask")
        try:
            with services.reserve() as held:
                call = ImageCall(
                    prompt,
                    self._declared.get("model", services.support.model),
                    self._options(_OF_NEW_IMAGES if names else _OF_EDITS),
                    [await self._content(name, self._images[name], held.add) for name in names],
                    await self._content("mask", mask, held.add) if mask and names else None,
                    self._partial_images,
                )
                return await services.server.call(call, held.add, show)
        except ImageFailed as error:
            raise ToolError(error.message, {"error": _moderation_error(error)} if error.blocked else None) from error
        except ApiError as error:
            raise ToolError(error.message) from error

    def _options(self, other: Collection[str]) -> dict[str, str | int]:
        """Return the fields of the request that the declaration sets, without those of the other kind of request."""
        return {
            name: value
            for name, value in self._declared.items()
            if name not in _NO_OPTIONS and name not in other and value != _ASSUMED.get(name)
        }

    async def _content(self, name: str, image: Json, hold: Callable[[int], object]) -> bytes:
        try:
            content = await self._services.read(image, hold)
        except (UrlRefused, ValueError) as error:
            raise ToolError(f"The image '{name}' cannot be read: {error}") from error
        if image_format(content) is None:
            raise ToolError(f"The image '{name}' has none of the formats PNG, JPEG, GIF and WebP.")
        return content

    def _chosen(self, asked: Any) -> Sequence[str]:
        """Return the names of the images that a call edits; none for a new image.

        Raises:
            ToolError: there are no such images.
        """
        names = _names(asked)
        if names and not self._may_edit:
            raise ToolError("Images cannot be edited here. Call again without 'images' to generate a new one.")
        if unknown := [name for name in names if name not in self._images]:
            known = ", ".join(f"'{name}'" for name in [*self._images][-_LISTED_NAMES:]) or "none"
            raise ToolError(f"There is no image named '{unknown[0]}' in this conversation. Its images: {known}.")
        if len(names) > _MAX_IMAGES:
            raise ToolError(f"At most {_MAX_IMAGES} images can be edited in one call.")
        if names or not self._must_edit:
            return names
        if not self._latest:
            raise ToolError("There is no image in this conversation that could be edited.")
        return self._latest[-_MAX_IMAGES:]


def _images_of(items: Iterable[Json]) -> list[list[Json]]:
    """Return, for each item that has images, the parts that are images; the item itself if it is a generated one."""
    return [images for item in items if (images := _images(item))]


def _images(item: Json) -> list[Json]:
    if item["type"] == IMAGE_CALL:
        return [item] if item.get("result") and "id" in item else []
    parts = item.get("content") or item.get("output")
    if not isinstance(parts, list):
        return []
    return [part for part in parts if isinstance(part, dict) and part.get("type") == "input_image"]


def _read(arguments: str) -> Json | None:
    """Return the fields of an item if the arguments have a prompt, and None otherwise."""
    prompt = named_arguments(arguments).get("prompt")
    return {"revised_prompt": prompt.strip()} if isinstance(prompt, str) and prompt.strip() else None


def _names(asked: Any) -> Sequence[str]:
    """Return the names in an argument. Models do not always keep to its type."""
    entries: Iterable[Any] = [asked] if isinstance(asked, str) else asked if isinstance(asked, list) else ()
    return list(dict.fromkeys(each.strip() for each in entries if isinstance(each, str) and each.strip()))


def _moderation_error(error: ImageFailed) -> Json:
    return {
        "type": "image_generation_user_error",
        "code": "moderation_blocked",
        "message": error.message,
        "param": None,
    }


def open_tool(stack: Stack, settings: ImageGeneration) -> Feature:
    """Return the tool of a stack with these settings."""
    server = _server(settings)
    reader = ImageReader(stack.files, stack.fetcher(settings.image_bytes), settings.image_bytes)
    services = ImageServices(server, _support(settings), reader.read, stack.reserve)
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
