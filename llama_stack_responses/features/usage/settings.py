"""Whether and how usage is counted, and what it costs."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from ...core.feature_settings import FeatureSettings
from ...core.limited_amounts import LimitedAmounts

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


class Limit(LimitedAmounts):
    """What each user, team or key may use, or all may use of each model.

    Attributes:
        name: its name in log lines and metrics, under which the servers count as well; made of the next three if it is
            empty.
        by: whose use is counted: that of each `user`, `team`, `key` or `model`, or of `all`.
        match: a shell-style pattern of the names of those to whom it applies.
        models: a shell-style pattern of the names of the models that count.
        enforced: whether requests over the limit are refused; otherwise it only warns.
        warn_at: the part of a limit whose use is logged, once in each window.
        cut_running: whether responses that run are ended too when tokens or costs of a day or month are used up.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = ""
    by: Literal["user", "team", "key", "model", "all"] = "user"
    match: str = "*"
    models: str = "*"
    enforced: bool = True
    warn_at: float = Field(default=0.8, gt=0, le=1)
    cut_running: bool = False

    @property
    def identity(self) -> str:
        """What distinguishes it from other limits."""
        return self.name or f"{self.by} {self.match} of {self.models}"

    @property
    def whose(self) -> str:
        """Whose use is counted, in words."""
        return "all users" if self.by == "all" else f"this {self.by}"

    @model_validator(mode="after")
    def _check_cut(self) -> Self:
        if self.cut_running and not (self.has_budget or self.tokens_per_day or self.tokens_per_month):
            raise ValueError(
                "'cut_running' needs a limit of tokens or costs of a day or a month, for which responses end"
            )
        return self

    @model_validator(mode="after")
    def _check_stored(self) -> Self:
        if self.stored_bytes is not None and (self.by == "model" or self.models != "*"):
            raise ValueError("'stored_bytes' is counted for all models: remove 'models', and 'by: model'")
        return self

    @property
    def label(self) -> str:
        """Its name in metrics."""
        return self.identity


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
        limits: what may be used; all that apply to a request count, and the limits of its key.
    """

    model_config = ConfigDict(extra="forbid")

    retention_days: float | None = Field(default=400.0, gt=0)
    metadata_key: str | None = Field(default=None, min_length=1, max_length=64)
    users: int = Field(default=10_000, ge=1)
    values_per_user: int = Field(default=100, ge=1)
    prices: list[Price] = Field(default_factory=list)
    currency: _Currency = "usd"
    limits: list[Limit] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_budgets(self) -> Self:
        if not self.prices and any(each.has_budget for each in self.limits):
            raise ValueError("a budget of 'limits' needs 'prices': without them, nothing costs anything")
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        # They would count together.
        for index, limit in enumerate(self.limits):
            for other in self.limits[:index]:
                if other.identity == limit.identity and (both := other.amounts.keys() & limit.amounts.keys()):
                    raise ValueError(
                        f"two of 'limits' are called '{limit.identity}' and have {min(both)!r}: give one of them "
                        "another 'name'"
                    )
        return self


def _nothing() -> Usage | None:
    return None


SETTINGS: Final = FeatureSettings("usage", Usage | None, default=_nothing)
"""Without them, nothing is counted."""
