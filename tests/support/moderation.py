"""A moderator in this process that flags texts with `bad`, and can raise errors."""

from typing import Any

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.moderation_results import Kind, Side, result
from llama_stack_responses.features.moderation.checks import Checks

type Json = dict[str, Any]


class FakeModerator:
    """A moderator without delay.

    Args:
        failing: errors to raise, by the number of the check, from 0.

    Attributes:
        checked: the texts, in order.
        checks: (kind, name, side) of each check.
    """

    def __init__(self, failing: dict[int, Exception] | None = None) -> None:
        self.checked: list[str] = []
        self.checks: list[tuple[Kind, str | None, Side]] = []
        self.closed = False
        self._failing = failing or {}

    async def check(self, kind: Kind, name: str | None, text: str, side: Side) -> Json:
        """Flag the text if it contains `bad`."""
        self.checked.append(text)
        self.checks.append((kind, name, side))
        if error := self._failing.get(len(self.checked) - 1):
            raise error
        flagged = "bad" in text
        return result(name or "default", {"badness": 0.9 if flagged else 0.1}, flagged, ["badness"] if flagged else [])

    async def close(self) -> None:
        """Record the call."""
        self.closed = True


AWAY = ApiError(502, "The moderator is away.")


def checks(moderator: FakeModerator | None = None, held: int = 10) -> Checks:
    """Return checks with a moderator in this process."""
    return Checks(moderator or FakeModerator(), 30.0, held)
