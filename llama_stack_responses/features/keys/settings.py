"""The settings of keys."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from ...core.feature_settings import FeatureSettings


class Keys(BaseModel):
    """Keys of this server with which users authenticate.

    Attributes:
        overlap_hours: time for which the old token of a key is accepted after a rotation that names no other time.
        use_seconds: interval in which it is written at most once that a key is used.
    """

    model_config = ConfigDict(extra="forbid")

    overlap_hours: float = Field(default=24.0, ge=0, le=8760)
    use_seconds: float = Field(default=60.0, ge=1)


SETTINGS: Final[FeatureSettings[Keys | None]] = FeatureSettings("keys", Keys | None, default=lambda: None)
