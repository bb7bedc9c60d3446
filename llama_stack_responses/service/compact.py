"""The compaction endpoint: compacts a conversation without a response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ..admission import Admission
from ..core.errors import stopped
from ..core.ids import new_id
from ..core.types import Json
from ..generation.event_buffer import EventBuffer
from ..generation.factory import GenerationFactory
from ..generation.interruption import Interruption
from ..generation.model_round import ModelRound
from ..generation.response_log import log_ended
from ..inputs.history import Hold
from ..inputs.request_parser import RequestParser
from ..inputs.resolver import RequestResolver
from ..items.compaction import Summary, check_not_empty, open_message
from ..items.listed_items import listed
from ..requests.configuration_updates import without_updates
from ..store.archive import Archive
from ..store.ends import Ended
from ..stream.usage import usage_of
from .foreground_responses import ForegroundResponses
from .limited_requests import LimitedRequests

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
"""Fields of a response's request that compaction uses; the others are ignored."""


class Compaction:
    """Replaces a long conversation by the items from which it can continue.

    Args:
        factory: builds generations.
        resolver: resolves the history and the input.
        parser: parses the body of a request.
        running: counts the running foreground responses and compactions.
        archive: writes what a compaction has used.
        foreground: ends compactions when the server shuts down.
        limited: admits compactions.
    """

    def __init__(
        self,
        factory: GenerationFactory,
        resolver: RequestResolver,
        parser: RequestParser,
        running: Admission,
        archive: Archive,
        foreground: ForegroundResponses,
        limited: LimitedRequests,
    ) -> None:
        self._factory, self._foreground = factory, foreground
        self._archive, self._limited = archive, limited
        self._resolver = resolver
        self._parser = parser
        self._running = running
        self._fields = COMPACTED | parser.passthrough

    async def compact(self, body: Json, hold: Hold | None = None) -> Json:
        """Return the compacted conversation, in the form of `openai.types.responses.CompactedResponse`; store nothing.

        Args:
            body: the request's decoded JSON.
            hold: called with the number of stored bytes that are about to be held; it may raise.

        Raises:
            ApiError: the request is invalid, or refers to something that does not exist; 429 or 503, too many responses
                run here, or a limit of the user is reached; the model server failed.
        """
        parsed = await self._parser.parse({name: body[name] for name in self._fields & body.keys()})
        start = await self._resolver.resolve(parsed, adds=False, compacts=True, hold=hold)
        request = start.request
        large_work = self._factory.large_work
        sent = await large_work.run(partial(without_updates, start.items), start.items)
        check_not_empty(sent)
        response, telemetry = self._factory.begin(request), self._factory.telemetry
        context = self._factory.context(request, response, start.owner, start.opened)
        with (
            await self._limited.begin(request.model),
            self._running.reserve(start.owner).add(1),
            context.held() as held,
            telemetry.response(response) as whole,
            telemetry.round(request.model, whole) as operation,
        ):
            items = await context.model_items(sent, held)
            model_round = context.model_round(request, EventBuffer(wanted=False), held)
            running = _Running(model_round)
            with self._foreground.running_beside(running):
                summary = model_round.summarise(items, None, _ignore, operation)
                written = await running.interruption.within(summary)
            operation.ended(written.finish, ())
            response |= {"usage": usage_of(written.finish.usage), "status": "completed"}
            whole.ended(response, "completed", 1)
            log_ended(response, whole.seconds, what="compaction")
        await self._archive.ends.unstored(Ended(response, start.owner, None, self._archive.clock()))
        kept, question = await large_work.run(partial(_kept, sent, context.summaries.read), sent)
        seal = await context.summaries.sealed(Summary(written.text, question))
        return {
            "id": response["id"],
            "object": "response.compaction",
            "created_at": response["created_at"],
            "output": [*kept, {"id": new_id("cmp"), "type": "compaction", "encrypted_content": seal}],
            "usage": response["usage"],
        }


class _Running:
    """A compaction that runs.

    Attributes:
        interruption: ends it early.
    """

    def __init__(self, model_round: ModelRound) -> None:
        self._model_round, self.interruption = model_round, Interruption()

    def shut_down(self) -> None:
        """End it, because the server shuts down."""
        self.interruption.end(stopped(begun=self._model_round.asked))


def _kept(
    items: Sequence[Json], read_summary: Callable[[Json], Summary | None]
) -> tuple[list[Json], list[Json] | None]:
    """Return the user's messages as clients see them, and the content of the one that is not yet answered, if any."""
    messages = listed([item for item in items if item.get("role") == "user"])
    return messages, open_message(items, items, read_summary)


def _ignore() -> None:
    return
