"""The interface of moderation backends."""

from __future__ import annotations

from typing import Protocol

from ..core.errors import bad_request
from ..core.moderation_policy import Kind
from ..core.moderation_results import Side
from ..core.types import Json


class Moderator(Protocol):
    """Checks texts."""

    async def check(self, kind: Kind, name: str | None, text: str, side: Side) -> Json:
        """Return the result for a text: a `moderation_result` of OpenAI's response.

        Args:
            kind: whether `name` is that of a model, or of a guardrail.
            name: the model or guardrail; None for the default one.
            side: whether the text is input or output.

        Raises:
            ApiError: it does not exist, or the check failed.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class NoModerator:
    """The moderator of a stack without moderation."""

    async def check(self, kind: Kind, _name: str | None, _text: str, _side: Side) -> Json:
        """Raise a 400."""
        raise bad_request(
            f"Unsupported parameter: '{kind}' needs a moderation provider, and this stack has none. Its operator can "
            "add a safety provider, or set 'moderation.url' in the configuration of the responses provider.",
            kind,
            "unsupported_parameter",
        )

    async def close(self) -> None:
        """Do nothing."""
