"""The content of the page about stored responses: views, events, chat requests, chains and conversations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

from ...concurrency.offloading import in_thread
from ...config import ResponsesConfig
from ...core.errors import ApiError, bad_request
from ...core.json_blocks import dumps
from ...core.statuses import UNFINISHED
from ...core.types import Json
from ...generation.dependencies import PageView
from ...generation.event_times import times_of
from ...inputs.history import Hold
from ...items.listed_items import Order
from ...service.responses import OpenAIResponsesImpl
from ...store.layout import chat_request
from ...store.list_rows import Row
from ...store.loaded_response import StoredResponse
from ...store.read_allowance import ReadAllowance
from ...store.running_response import RunningResponse
from ...stream.replay import replay
from .added_items import Summaries, answered_requests
from .blocks import Budget
from .item_views import ViewContext, answered_calls, call_names, item_views
from .lists import Lists
from .rendering import RENDER_SECONDS, Renderer
from .settings import SETTINGS
from .view import facts_of, instructions_of, items_of, owner_of, summary_of, timing_of

type Found = StoredResponse | RunningResponse
"""A response that is stored, or that runs in the foreground."""

_PAGE_BYTES: Final = 4 * 2**20
_MAX_CONTINUED: Final = 4
"""Maximum number of further responses that are read for the names of calls."""

_MAX_BRANCHES: Final = 50
_TURN_EVENTS: Final = 64
"""Events that are built before the thread lets others run."""


class Views:
    """Makes the views of responses for users who may read them.

    Args:
        impl: the responses.
        lists: knows the current status of branches.
        render_seconds: time limit of the Markdown of one view.
    """

    def __init__(self, impl: OpenAIResponsesImpl, lists: Lists, render_seconds: float = RENDER_SECONDS) -> None:
        self._impl, self._lists = impl, lists
        self._renderer = Renderer(impl.pool, render_seconds)
        self._summaries = Summaries(impl.sealer)

    async def response(self, response_id: str, hold: Hold | None = None) -> Json:
        """Return the view of a response, stored or running.

        Raises:
            ApiError: 404, the response is unknown, deleted, or another user's.
        """
        found = await self._impl.reader.find(response_id, "read", hold)
        stored, [inputs] = as_stored(found), await self._inputs([found])
        calls = await self._calls([stored], [inputs], hold)
        context = await self._view_context([*inputs, *stored.response["output"]], calls, hold)
        view = await in_thread(_view, stored, inputs, context)
        [view["summary"]] = await self._impl.archive.listing.unanswered(stored.owner, [view["summary"]])
        view["continued_by"] = await self.branches(response_id)
        view["score"] = await self._score(response_id)
        await self._renderer.render(view["items"])
        return view

    async def markdown(self, texts: Sequence[str]) -> Sequence[str] | None:
        """Return the HTML of texts in Markdown; None if that takes too long."""
        return await self._renderer.html(texts)

    async def own_input(self, response_id: str, hold: Hold | None = None) -> list[Json]:
        """Return a response's own input items, without the history that it continues.

        Raises:
            ApiError: 404, the response is unknown, deleted, or another user's.
        """
        [items] = await self._inputs([await self._impl.reader.find(response_id, "read", hold)])
        return items

    async def _score(self, response_id: str) -> Json | None:
        """Return the score of a response; None if it has none, or is not stored yet."""
        entry = await self._impl.archive.entry(response_id)
        score = await self._impl.archive.scores.find(entry) if entry else None
        return score.fields() if score else None

    async def branches(self, previous: str) -> list[Row]:
        """Return the caller's responses that continue a response, oldest first."""
        rows = await self._impl.archive.listing.branches(self._impl.access.current_user(), previous, _MAX_BRANCHES)
        names = ("id", "words", "status", "created_at")
        return [{name: row[name] for name in names} for row in await self._lists.current(rows)]

    async def turns(self, found: Sequence[Found], hold: Hold | None = None) -> list[Json]:
        """Return turns of a conversation: each with its row of the list, and its items."""
        stored, inputs = [as_stored(each) for each in found], await self._inputs(found)
        items = chain(*inputs, *(each.response["output"] for each in stored))
        context = await self._view_context(list(items), await self._calls(stored, inputs, hold), hold)
        turns = await in_thread(_turns, stored, inputs, context)
        for turn, each in zip(turns, stored, strict=True):
            [turn["summary"]] = await self._impl.archive.listing.unanswered(each.owner, [turn["summary"]])
        await self._renderer.render([item for turn in turns for item in turn["items"]])
        return turns

    async def conversation(
        self, conversation_id: str, after: str | None, limit: int, order: Order, hold: Hold | None = None
    ) -> Json:
        """Return a page of a conversation's items.

        Raises:
            ApiError: 400 or 404, as the conversation's own routes.
        """
        about = await self._impl.conversations.retrieve(conversation_id)
        page = await self._impl.conversations.list_items(
            conversation_id, limit=limit, after=after, order=order, hold=hold
        )
        context = await self._view_context(page.data, call_names(page.data), hold)
        items = await in_thread(item_views, page.data, context)
        await self._renderer.render(items)
        head = {name: about[name] for name in ("id", "created_at", "metadata")}
        last = page.data[-1]["id"] if page.data and page.has_more else None
        return {"object": "list", "conversation": head, "data": items, "has_more": page.has_more, "next": last}

    async def events(self, response_id: str, after: int, limit: int, hold: Hold | None = None) -> Json:
        """Return a page of the events of a response that has ended, with their times.

        Raises:
            ApiError: 404, as for `response`; 400, the response still runs.
        """
        stored = await self._ended(response_id, hold)
        # The last page of a long response takes seconds: one user must not fill the threads that all others use.
        return await self._impl.large_work.run_in_thread(partial(_events, stored, after, limit))

    async def requests(self, response_id: str, after: int, limit: int, hold: Hold | None = None) -> Json:
        """Return a page of the recorded chat requests of a response. It ends once they are large.

        Raises:
            ApiError: 404, as for `response`.
        """
        stored = as_stored(await self._impl.reader.find(response_id, "read", hold))
        numbers = range(after + 1, min(after + 1 + limit, stored.recorded))
        keys = [chat_request(response_id, number) for number in numbers]
        records = await self._impl.archive.read(keys, _PAGE_BYTES)
        read = [key for key in keys if key in records]
        values = [records[key].value for key in read]
        decoded = await self._impl.archive.decoder.decode_until(values, _PAGE_BYTES, ReadAllowance(hold=hold))
        data = [request for request, _ in decoded]
        last = numbers[len(data) - 1] if data else after
        more = bool(data) and last + 1 < stored.recorded
        return {
            "object": "list",
            "data": [{"attempt": 1, **each} for each in data],
            "recorded": bool(stored.recorded),
            "has_more": more,
            "next": last if more else None,
        }

    async def _ended(self, response_id: str, hold: Hold | None) -> StoredResponse:
        response = await self._impl.reader.find(response_id, "read", hold)
        if isinstance(response, RunningResponse) or response.response["status"] in UNFINISHED:
            raise bad_request(f"Response '{response_id}' is still in progress.", code="response_not_ready")
        return response

    async def _calls(
        self, stored: Sequence[StoredResponse], inputs: Sequence[Sequence[Json]], hold: Hold | None
    ) -> dict[str, str]:
        """Return the names of the calls that inputs answer, by the ids of the calls.

        A call that is not in these responses is looked up in the one that its answer continues, if that can be read.
        """
        calls = call_names(chain(*inputs, *(each.response["output"] for each in stored)))
        there = {each.response["id"] for each in stored}
        continued = [
            previous
            for each, items in zip(stored, inputs, strict=True)
            if (previous := each.response["previous_response_id"]) and answered_calls(items) - calls.keys()
        ]
        for response_id in [each for each in continued if each not in there][:_MAX_CONTINUED]:
            try:
                before = await self._impl.reader.find(response_id, "read", hold)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                calls |= call_names(before.response["output"])
        return calls

    async def _view_context(self, items: Sequence[Json], calls: Mapping[str, str], hold: Hold | None) -> ViewContext:
        """Return what the views of items share, with the summaries and requests that the viewer may read."""
        viewer = self._impl.access.current_user()
        summaries = await self._summaries.of(items, viewer, hold)
        requests = await answered_requests(self._impl.archive, items, viewer, hold)
        return ViewContext(Budget(), summaries=summaries, requests=requests, calls=calls)

    async def _inputs(self, found: Sequence[Found]) -> list[list[Json]]:
        """Return each response's own input; an empty list where it is too much to read."""
        read = iter(await self._impl.archive.own_inputs([one for one in found if isinstance(one, StoredResponse)]))
        return [list(one.input_items if isinstance(one, RunningResponse) else next(read, ())) for one in found]


def as_stored(response: Found) -> StoredResponse:
    """Return a running foreground response as if it was stored."""
    if isinstance(response, RunningResponse):
        return StoredResponse(response.response, response.owner, None, None, 0)
    return response


def _view(stored: StoredResponse, inputs: list[Json], context: ViewContext) -> Json:
    response = stored.response
    return {
        "object": "ui.response",
        "summary": summary_of(stored, inputs),
        "owner": owner_of(stored.owner),
        "instructions": instructions_of(response, context.budget),
        **items_of(stored, inputs, context),
        "facts": facts_of(response),
        "timing": timing_of(stored.timing),
        "requests": stored.recorded,
        "replayable": stored.transcript is not None,
    }


def _turns(stored: Sequence[StoredResponse], inputs: Sequence[list[Json]], context: ViewContext) -> list[Json]:
    return [
        {
            "id": each.response["id"],
            "summary": summary_of(each, turn_input),
            **items_of(each, turn_input, context),
            "compacted": any(item["type"] == "compaction" for item in (*turn_input, *each.response["output"])),
        }
        for each, turn_input in zip(stored, inputs, strict=True)
    ]


def _events(stored: StoredResponse, after: int, limit: int) -> Json:
    """Return a page of events. It runs in a thread: the events before the page are built too."""
    times = (stored.timing or {}).get("events")
    clock = times_of(times) if times else None
    data: list[Json] = []
    size, more = 0, False
    for number, event in enumerate(replay(stored.response, stored.transcript)):
        if number % _TURN_EVENTS == 0:
            time.sleep(0)
        at = clock(number) if clock else None
        if number <= after:
            continue
        size += len(dumps(event))
        if len(data) == limit or (data and size > _PAGE_BYTES):
            more = True
            break
        data.append({"at_ms": at, "event": event})
    last = data[-1]["event"]["sequence_number"] if more else None
    return {"object": "list", "data": data, "timed": clock is not None, "has_more": more, "next": last}


def settings_of(impl: OpenAIResponsesImpl, version: str) -> Json:
    """Return what the page has to know of the server and of the user."""
    owner, config = impl.access.current_user(), impl.config
    settings, operator = SETTINGS.of(config), config.roles.is_operator(owner)
    return {
        "object": "ui.session",
        "owner": {**owner_of(owner), "anonymous": owner.is_anonymous},
        "operator": operator,
        "version": version,
        "retention_days": config.retention_days,
        "record_requests": settings.record_requests,
        "background": impl.archive.transactional,
        "limits": {"image_bytes": _image_bytes(config), "file_bytes": config.files.max_bytes},
        "link_seconds": settings.link_seconds,
        "views": [_offered(view) for view in impl.views if operator or not view.of_operators],
    }


def _offered(view: PageView) -> Json:
    return {name: getattr(view, name) for name in ("name", "title", "icon", "key", "options")}


def _image_bytes(config: ResponsesConfig) -> int:
    """Return how large an image may be that is in a request, as base64 beside other fields."""
    return min(config.files.max_bytes, config.limits.request_bytes // 2)
