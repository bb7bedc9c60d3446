"""The settings of batches."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from ...core.feature_settings import FeatureSettings


class Batches(BaseModel):
    """How batches run, and how large they may be.

    Attributes:
        lines: maximum number of lines of an input file.
        file_bytes: maximum size of an input file.
        line_bytes: maximum size of one line.
        per_user: maximum number of batches of one user that have not ended.
        at_once: batches that one server runs at a time; further ones wait, users in turn.
        ahead: lines of one batch and one of its models that are queued or run at a time, over all servers; of all its
            models together, eight times as many.
        tries: how often a line is tried if the model server is too busy, or fails.
        retry_seconds: time before the second try of a line, which doubles up to five minutes.
        window_hours: hours after which a batch expires, which a request calls `24h`.
        retention_days: days for which batches are kept after their end.
    """

    model_config = ConfigDict(extra="forbid")

    lines: int = Field(default=50_000, ge=1, le=1_000_000)
    file_bytes: int = Field(default=200_000_000, ge=1)
    line_bytes: int = Field(default=16 * 2**20, ge=1)
    per_user: int = Field(default=50, ge=1)
    at_once: int = Field(default=8, ge=1)
    ahead: int = Field(default=64, ge=1, le=1_000)
    tries: int = Field(default=5, ge=1, le=200)
    retry_seconds: float = Field(default=2.0, gt=0, le=300)
    window_hours: float = Field(default=24.0, gt=0, le=720)
    retention_days: float = Field(default=30.0, gt=0)


SETTINGS: Final[FeatureSettings[Batches | None]] = FeatureSettings("batches", Batches | None, default=lambda: None)
"""Without them, the host's batches stay as they are."""
