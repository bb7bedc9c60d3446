"""How much may be used: the amounts that limits of the configuration and of keys have."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["LimitedAmounts"]

_Count = Annotated[int | None, Field(ge=1, le=10**15)]
_Money = Annotated[float | None, Field(gt=0, le=10**12)]


class LimitedAmounts(BaseModel):
    """What may be used. Without an amount, it is not limited.

    Attributes:
        requests_per_minute: requests in a minute.
        tokens_per_minute: input and output tokens in a minute.
        tokens_per_day: input and output tokens in a day of UTC.
        tokens_per_month: input and output tokens in a month of UTC.
        budget_per_day: costs in a day, by the prices.
        budget_per_month: costs in a month, by the prices.
        running: responses that run at a time, except in the background.
        background: background responses that wait or run at a time.
        stored_bytes: bytes of stored responses, conversations and skills.
    """

    model_config = ConfigDict(extra="forbid")

    requests_per_minute: _Count = None
    tokens_per_minute: _Count = None
    tokens_per_day: _Count = None
    tokens_per_month: _Count = None
    budget_per_day: _Money = None
    budget_per_month: _Money = None
    running: _Count = None
    background: _Count = None
    stored_bytes: _Count = None

    @property
    def amounts(self) -> dict[str, float]:
        """The amounts that are limited, by their names."""
        values = {name: getattr(self, name) for name in LimitedAmounts.model_fields}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def has_budget(self) -> bool:
        """Whether costs are limited."""
        return self.budget_per_day is not None or self.budget_per_month is not None
