"""A moderator in this process: it flags what says `bad`, and fails when it is asked by a name of an error."""

from typing import Any

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.moderation import Kind, Side, result
from llama_stack_responses.moderation.checks import Checks

type Json = dict[str, Any]


class FakeModerator:
    """Checks at once.

    Args:
        failing: what the check number N, counted from 0, raises.

    Attributes:
        checked: the texts, in order.
        asked: (kind, name, side) of each check.
    """

    def __init__(self, failing: dict[int, Exception] | None = None) -> None:
        self.checked: list[str] = []
        self.asked: list[tuple[Kind, str | None, Side]] = []
        self.closed = False
        self._failing = failing or {}

    async def check(self, kind: Kind, name: str | None, text: str, side: Side) -> Json:
        """How much of the text is `bad`."""
        self.checked.append(text)
        self.asked.append((kind, name, side))
        if error := self._failing.get(len(self.checked) - 1):
            raise error
        flagged = "bad" in text
        return result(name or "default", {"badness": 0.9 if flagged else 0.1}, flagged, ["badness"] if flagged else [])

    async def close(self) -> None:
        """It says so."""
        self.closed = True


AWAY = ApiError(502, "The moderator is away.")


def checks(moderator: FakeModerator | None = None, held: int = 10) -> Checks:
    """Checks by a moderator in this process."""
    return Checks(moderator or FakeModerator(), 30.0, held)
