"""Conversations made short on their own, without a response."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from ..core.compaction import Summary, check_not_empty, open_message
from ..core.ids import new_id
from ..core.listing import listed
from ..core.schema.request import CreateRequest
from ..core.stream.response import usage_of
from ..generation.event_buffer import Outbox
from ..generation.factory import Workshop
from ..inputs.resolver import Intake

Json = dict[str, Any]

COMPACTED: Final = frozenset(
    {
        "conversation",
        "image",
        "input",
        "instructions",
        "model",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "service_tier",
    }
)
"""Fields of a response that have a part in it; the others are ignored."""


class Compaction:
    """Makes the items from which a long conversation can go on.

    Args:
        parse: makes a request of its body.
        passthrough: fields that OpenAI does not have and that go to the model server.
    """

    def __init__(
        self, workshop: Workshop, intake: Intake, parse: Callable[[Json], CreateRequest], passthrough: Iterable[str]
    ) -> None:
        self._workshop = workshop
        self._intake = intake
        self._parse = parse
        self._fields = COMPACTED | frozenset(passthrough)

    async def compact(self, body: Json) -> Json:
        """The compacted conversation, as `openai.types.responses.CompactedResponse` has it. Nothing is stored.

        Raises:
            ApiError: the request is wrong, or names what is not there; the provider failed.
        """
        asked = self._parse({name: body[name] for name in self._fields & body.keys()})
        start = await self._intake.take(asked, adds=False)
        request = start.request
        check_not_empty(start.items)
        response, telemetry = self._workshop.begin(request), self._workshop.telemetry
        bench = self._workshop.bench(request, response, start.owner)
        shown = await bench.shown(start.items)
        with telemetry.response(response) as whole, telemetry.round(request.model, whole) as told:
            written = await bench.asking(Outbox(wanted=False)).summarise(shown, None, _nobody_hears, told)
            told.ended(written.finish, ())
            whole.ended(response | {"usage": usage_of(written.finish.usage)}, "completed", 1)
        summary = Summary(written.text, open_message(start.items, start.items, bench.summaries.read))
        said = [item for item in start.items if item.get("role") == "user"]
        item = {"id": new_id("cmp"), "type": "compaction", "encrypted_content": bench.summaries.seal(summary)}
        return {
            "id": response["id"],
            "object": "response.compaction",
            "created_at": response["created_at"],
            "output": [*listed(said), item],
            "usage": usage_of(written.finish.usage),
        }


def _nobody_hears() -> None:
    return
