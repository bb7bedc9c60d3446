"""Whether and how usage is counted, and what it costs."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ...core.feature_settings import FeatureSettings

_Currency = Annotated[str, StringConstraints(pattern="^[a-z]{3}$")]


class Price(BaseModel):
    """The price of models, in the currency of all prices.

    Attributes:
        match: a shell-style pattern of the names of the models.
        input: for a million input tokens that were not read from a cache.
        cached_input: for a million input tokens that were; as `input` if null.
        output: for a million output tokens, reasoning included.
        request: for a response.
    """

    model_config = ConfigDict(extra="forbid")

    match: str = "*"
    input: float = Field(default=0.0, ge=0)
    cached_input: float | None = Field(default=None, ge=0)
    output: float = Field(default=0.0, ge=0)
    request: float = Field(default=0.0, ge=0)


class Usage(BaseModel):
    """How usage is counted.

    Attributes:
        retention_days: days for which it is kept, whatever the retention of responses; null keeps it for ever.
        metadata_key: the key of a request's `metadata` by whose values usage is counted as well; null for none.
        users: users of a day that are counted by their names; further ones are counted together as `other`.
        values_per_user: teams, keys, models and values of the metadata key of one user and day that are counted by
            their names; further ones are counted together as `other`.
        prices: the prices of models; the first that matches the name of a model counts.
        currency: their currency, three lowercase letters.
    """

    model_config = ConfigDict(extra="forbid")

    retention_days: float | None = Field(default=400.0, gt=0)
    metadata_key: str | None = Field(default=None, min_length=1, max_length=64)
    users: int = Field(default=10_000, ge=1)
    values_per_user: int = Field(default=100, ge=1)
    prices: list[Price] = Field(default_factory=list)
    currency: _Currency = "usd"


def _nothing() -> Usage | None:
    return None


SETTINGS: Final = FeatureSettings("usage", Usage | None, default=_nothing)
"""Without them, nothing is counted."""
