"""The settings of the page."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ...core.feature_settings import FeatureSettings


class BuiltInPage(BaseModel):
    """The built-in page at `/ui`, and the routes below `/v1/ui` that it reads.

    Attributes:
        enabled: whether there are the page and its routes; `ui: false` is the same as `ui: {enabled: false}`.
        record_requests: whether the chat requests that model servers get are stored with each stored response, under
            the same owner and retention. They repeat the whole conversation in each round.
        search: whether whole questions, answers, tool calls and errors of stored responses can be searched. SQLite and
            PostgreSQL then have an index with their words beside the responses, from the first search on until nobody
            has searched for 28 days. `false` removes the index; the first words are searched still. All servers of a
            store have the same value.
        refused_days: days for which the page lists requests that were refused, so that there is no response.
        refused_per_user: how many of them are kept of each user, the newest; 0 keeps none.
        link_days: the longest time, in days, for which a user can make a link with which anyone reads one response
            without signing in; 0 for no links.
    """

    model_config = ConfigDict(extra="forbid")

    enabled: bool = True
    record_requests: bool = False
    search: bool = True
    refused_days: float = Field(default=7.0, gt=0)
    refused_per_user: int = Field(default=1000, ge=0)
    link_days: float = Field(default=7.0, ge=0, le=365)

    @property
    def link_seconds(self) -> int:
        """The longest time for which a link holds; 0 for no links."""
        return int(self.link_days * 86_400)


def _on_or_off(given: Any) -> Any:
    """Return the entry, where `true` and `false` stand for an entry that only turns the page on or off."""
    return {"enabled": given} if isinstance(given, bool) else given


SETTINGS: Final = FeatureSettings("ui", Annotated[BuiltInPage, BeforeValidator(_on_or_off)], default=BuiltInPage)
"""`false` turns the page off."""
