"""The settings of the image server."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from ...core.feature_settings import FeatureSettings, absent_without
from ...core.setting_values import address

ImageOption = Literal[
    "background",
    "complexity",
    "frame_count",
    "frame_duration_ms",
    "input_fidelity",
    "moderation",
    "output_compression",
    "output_format",
    "partial_images",
    "quality",
    "size",
]


class ImageGeneration(BaseModel):
    """The server that generates the images of the tool `image_generation`.

    Attributes:
        url: base URL of a server with OpenAI's `/images/generations`, up to `/v1`.
        api_key: API key for that server.
        model: image model for requests that name none; null lets the server choose.
        models: further models that requests may name; null is all.
        options: fields of the tool that the server supports; requests with others are refused.
        edits: whether the server has `/images/edits`.
        response_format: whether calls ask for base64 with the field `response_format`; `auto` does so unless the
            model's name begins with `gpt-image` or `chatgpt-image`.
        model_sees_images: whether the chat model gets each generated image; if not, it gets only its name.
        seconds: time limit of one image; `limits.tool_seconds` applies too, and counts the time in the queue.
        image_bytes: maximum size of an image, generated or to be edited.
        concurrency: maximum number of images that a server process has generated at the same time.
        concurrency_per_user: maximum number of these that belong to one authenticated user. A stack without
            authentication has one user, who may use all.
        waiting_per_user: maximum number of further images of one user that wait.
    """

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, AfterValidator(address("http", "https"))] = Field(examples=["http://localhost:1234/v1"])
    api_key: SecretStr | None = None
    model: str | None = None
    models: list[str] | None = None
    options: frozenset[ImageOption] = frozenset(get_args(ImageOption))
    edits: bool = True
    response_format: Literal["auto", "b64_json", "none"] = "auto"
    model_sees_images: bool = False
    seconds: float = Field(default=180.0, gt=0)
    image_bytes: int = Field(default=20 * 2**20, ge=1)
    concurrency: int = Field(default=4, ge=1)
    concurrency_per_user: int = Field(default=2, ge=1)
    waiting_per_user: int = Field(default=32, ge=0)


SETTINGS: Final[FeatureSettings[ImageGeneration | None]] = FeatureSettings(
    "image_generation", Annotated[ImageGeneration | None, absent_without("url")], default=lambda: None
)
"""Without them, or with an empty `url`, the tool is unavailable."""
