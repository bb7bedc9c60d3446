"""The settings of webhooks."""

from __future__ import annotations

from base64 import b64decode
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from ...core.feature_settings import FeatureSettings
from ...core.setting_values import address

PREFIX: Final = "whsec_"
"""The beginning of each signing secret, as Standard Webhooks has it."""

EventType = Literal[
    "response.completed",
    "response.failed",
    "response.cancelled",
    "response.incomplete",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
]
EVENT_TYPES: Final[tuple[EventType, ...]] = get_args(EventType)


def _secret(secret: SecretStr) -> SecretStr:
    prefix, begins, encoded = secret.get_secret_value().partition(PREFIX)
    try:
        size = len(b64decode(encoded, validate=True)) if begins and not prefix else 0
    except ValueError:
        size = 0
    if not 24 <= size <= 64:
        raise ValueError(
            "a secret is whsec_ and 24 to 64 bytes in base64: `echo whsec_$(openssl rand -base64 32)` makes one"
        )
    return secret


class WebhookEndpoint(BaseModel):
    """A webhook endpoint that receives the events of all users' background responses and batches.

    Attributes:
        url: where events are posted.
        secret: signs the events: `whsec_` and 24 to 64 bytes in base64.
        events: the event types to which it subscribes.
    """

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, AfterValidator(address("https", "http"))] = Field(examples=["https://hooks.example.com/openai"])
    secret: Annotated[SecretStr, AfterValidator(_secret)] = Field(
        examples=["whsec_REPLACE/THIS/BY/WHAT/OPENSSL/RAND/PRINTS"]
    )
    events: list[EventType] = Field(default_factory=lambda: list(EVENT_TYPES), min_length=1)


class Webhooks(BaseModel):
    """How events are delivered to webhook endpoints.

    Attributes:
        endpoints: webhook endpoints that receive the events of all users' background responses and batches, in addition
            to those that users create.
        per_user: maximum number of endpoints that one user may create.
        allow_http: whether URLs of users may begin with `http://`. Private addresses also need
            `fetch.allowed_networks`.
        seconds: time limit of one attempt.
        retry_seconds: time before the second attempt, which doubles up to four hours.
        retry_hours: time after which a delivery fails, and an endpoint that has accepted nothing is disabled.
        retention_days: days for which deliveries are kept.
    """

    model_config = ConfigDict(extra="forbid")

    endpoints: list[WebhookEndpoint] = Field(default_factory=list)
    per_user: int = Field(default=20, ge=0, le=100)
    allow_http: bool = False
    seconds: float = Field(default=15.0, gt=0, le=30)
    retry_seconds: float = Field(default=5.0, gt=0, le=3600)
    retry_hours: float = Field(default=72.0, gt=0, le=720)
    retention_days: float = Field(default=30.0, gt=0)

    @model_validator(mode="after")
    def _check_urls(self) -> Self:
        if len({each.url for each in self.endpoints}) < len(self.endpoints):
            raise ValueError("two of 'endpoints' have the same 'url': give one of them all 'events'")
        return self


SETTINGS: Final[FeatureSettings[Webhooks | None]] = FeatureSettings("webhooks", Webhooks | None, default=lambda: None)
"""Without them, nothing is recorded or delivered."""
