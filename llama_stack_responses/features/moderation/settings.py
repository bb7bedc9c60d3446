"""The settings of moderation."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from ...core.feature_settings import FeatureSettings
from ...core.setting_values import address


class Moderation(BaseModel):
    """How requests with `moderation` or `guardrails` are checked.

    Attributes:
        url: base URL of a server with OpenAI's `/moderations`, up to `/v1`; without it, the stack's safety provider
            checks.
        api_key: API key for that server.
        model: moderation model for requests that name none; null lets the server choose.
        seconds: time limit of one check.
        held_characters: number of output characters that are held until they are checked, if the output may be blocked.
    """

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, AfterValidator(address("http", "https"))] | None = None
    api_key: SecretStr | None = None
    model: str | None = None
    seconds: float = Field(default=30.0, gt=0)
    held_characters: int = Field(default=200, ge=1)


SETTINGS: Final = FeatureSettings("moderation", Moderation, default=Moderation)
