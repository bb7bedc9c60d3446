"""Settings of teams."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Team(BaseModel):
    """What is special about the users of a team, which is the first value of the attribute `teams` of a user.

    Attributes:
        weight: how much each user of the team gets of all that users wait for, in comparison with the 1 of others.
    """

    model_config = ConfigDict(extra="forbid")

    weight: float = Field(default=1.0, ge=0.01, le=100)
