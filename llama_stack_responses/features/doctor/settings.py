"""When a server examines the models of its inference providers by itself."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from ...core.feature_settings import FeatureSettings


class Doctor(BaseModel):
    """When a server sends the requests of the command `doctor` to its models, about thirty for each.

    Attributes:
        at_start: whether each model is examined when a server starts, unless that was done in the hour before.
        every_hours: hours after which each model is examined again; null is never.
        models: shell-style patterns for the names of these models.
        seconds: time limit of one answer.
    """

    model_config = ConfigDict(extra="forbid")

    at_start: bool = False
    every_hours: float | None = Field(default=None, ge=0.01)
    models: list[str] = Field(default_factory=lambda: ["*"])
    seconds: float = Field(default=60.0, ge=1)

    @property
    def is_on(self) -> bool:
        """Whether models are examined at all."""
        return self.at_start or self.every_hours is not None


SETTINGS: Final = FeatureSettings("doctor", Doctor, default=Doctor)
"""Without them, no model is examined but by the command."""
