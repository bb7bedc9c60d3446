"""Who checks a text."""

from __future__ import annotations

from typing import Any, Protocol

from llama_stack_responses.core.errors import bad_request
from llama_stack_responses.core.moderation import Kind, Side

Json = dict[str, Any]


class Moderator(Protocol):
    """Checks texts."""

    async def check(self, kind: Kind, name: str | None, text: str, side: Side) -> Json:
        """What one of its models or guardrails says of a text: a `moderation_result` of OpenAI's response.

        Args:
            kind: whether `name` is that of a model, or of a guardrail.
            name: who checks; None for the default one.
            side: whether a user says the text or a model.

        Raises:
            ApiError: there is none of this name, or the check failed.
        """
        ...

    async def close(self) -> None:
        """Closes its connections."""
        ...


class NoModerator:
    """A stack where nobody checks."""

    async def check(self, kind: Kind, _name: str | None, _text: str, _side: Side) -> Json:
        """Refuses to."""
        raise bad_request(
            f"Unsupported parameter: '{kind}' needs somebody who checks, and this stack has nobody. Its operator can "
            "add a safety provider, or set 'moderation.url' in the configuration of the responses provider.",
            kind,
            "unsupported_parameter",
        )

    async def close(self) -> None:
        """There is nothing to close."""
