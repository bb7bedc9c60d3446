"""Settings of teams."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Team(BaseModel):
    """Settings of a team. A user's team is the first value of their attribute `teams`.

    Attributes:
        weight: share of each user of the team in what users wait for; other users have 1.
    """

    model_config = ConfigDict(extra="forbid")

    weight: float = Field(default=1.0, ge=0.01, le=100)
