"""Where idle responses are kept."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from ...core.feature_settings import FeatureSettings, absent_without

_PLACE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/[A-Za-z0-9._/-]*)?|file:///.+")
_ENDPOINT: Final = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
NO_PACKAGE: Final = "'archive' needs the package obstore: pip install obstore."


def _place(url: str) -> str:
    if not _PLACE.fullmatch(url):
        raise ValueError("this is not s3://BUCKET, s3://BUCKET/PREFIX or file:///FOLDER")
    return url


def _endpoint(url: str) -> str:
    if not _ENDPOINT.fullmatch(url):
        raise ValueError("this is not http://HOST or https://HOST, with or without :PORT and a path")
    return url


class ColdTier(BaseModel):
    """Where idle responses and items of conversations are kept: packed and encrypted in an object store.

    Attributes:
        url: `s3://BUCKET/PREFIX`, or `file:///FOLDER` of a folder that all servers share.
        after_hours: hours after which a chain of responses is packed, counted from its newest response, and after which
            items of a conversation are, counted from its last change. What a read has brought back stays in the store
            for as long.
        endpoint: the URL of a server with the protocol of S3 that is not AWS.
        region: the region of the bucket.
        access_key_id: null takes the credentials of the environment, as other programs for AWS do.
        secret_access_key: belongs to `access_key_id`.
    """

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, AfterValidator(_place)] = Field(examples=["s3://bucket/responses"])
    after_hours: float = Field(default=48.0, gt=0)
    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: SecretStr | None = None


SETTINGS: Final[FeatureSettings[ColdTier | None]] = FeatureSettings(
    "archive", Annotated[ColdTier | None, absent_without("url")], default=lambda: None
)
"""Without them, all responses stay in the store."""
