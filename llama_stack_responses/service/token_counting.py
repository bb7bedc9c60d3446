"""How many tokens the input of a request has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..core.errors import bad_request
from ..core.schema.request import CreateRequest
from ..generation.factory import Workshop
from ..inputs.resolver import Intake

Json = dict[str, Any]

NOT_COUNTED: Final = frozenset(
    {
        "background",
        "guardrails",
        "include",
        "max_output_tokens",
        "metadata",
        "moderation",
        "store",
        "stream",
        "stream_options",
    }
)
"""Fields of a response that have no part in its input."""


class Counting:
    """Counts what a model would read, without asking it.

    Args:
        parse: makes a request of its body.
    """

    def __init__(self, workshop: Workshop, intake: Intake, parse: Callable[[Json], CreateRequest]) -> None:
        self._workshop = workshop
        self._intake = intake
        self._parse = parse

    async def count(self, body: Json) -> Json:
        """The count, as `openai.types.responses.InputTokenCountResponse` has it.

        The model server's tokenizer counts where it can be asked, else the profile's; else it is an estimate.

        Raises:
            ApiError: the request is wrong, or names what is not there.
        """
        if body.get("personality") is not None:
            message = "Unsupported parameter: 'personality' is not supported by this server."
            raise bad_request(message, "personality", "unsupported_parameter")
        asked = self._parse({name: value for name, value in body.items() if name not in NOT_COUNTED})
        await self._workshop.inference.check_model(asked.model)
        start = await self._intake.take(asked, adds=False)
        bench = self._workshop.bench(start.request, self._workshop.begin(start.request), start.owner)
        chat = await bench.chat(start.items)
        return {"object": "response.input_tokens", "input_tokens": await self._workshop.counts.of(chat)}
