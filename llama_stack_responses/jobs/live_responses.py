"""Shows users the responses that run now on any server of the store, while a user watches them on the built-in page.

    uw/<owner>/<response>   the owner watches this response; the row is like the next one
    uw/<owner>              the owner looks; the value is the owner; it expires after `_LIFETIME_SECONDS`
    ul/<owner>/<server>     what this server runs for that owner; it expires too

A server reads `uw/` rows only while it runs responses, and writes `ul/` rows only for owners who look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from ..concurrency.offloading import in_thread
from ..concurrency.tasks import LoopTask
from ..core.errors import ApiError
from ..core.json_values import is_large
from ..core.owner import Owner
from ..core.types import Json
from ..generation.activity import Activity, Running
from ..intervals import DEFAULT, Intervals
from ..store import codec
from ..store.decoder import Decoder
from ..store.list_rows import first_words
from ..store.records import Op, Put, Records, after_prefix
from .job import name_of

_LIFETIME_SECONDS: Final = 6.0
"""Seconds for which a row is kept."""

_MAX_RESPONSES: Final = 200
"""Maximum number of responses of one owner that one server shows."""

_MAX_WATCHERS: Final = 200
_MAX_SERVERS: Final = 100
_TAIL_CHARACTERS: Final = 300
_RECENT_ITEMS: Final = 50
_TEXT_CHARACTERS: Final = 20_000
_OUTPUT_BYTES: Final = 200_000


class LiveResponses:
    """The running responses of all servers.

    Args:
        records: the store.
        decoder: decodes the rows of other servers.
        activity: what this server runs.
        server: the name of this server.
        intervals: how often the rows are written.
    """

    def __init__(
        self,
        records: Records,
        decoder: Decoder,
        activity: Activity,
        server: str,
        intervals: Intervals = DEFAULT,
    ) -> None:
        self._decoder = decoder
        self._records = records
        self._activity = activity
        self.server = server
        self._intervals = intervals
        self._published: set[str] = set()
        self._task = LoopTask(self._publish)

    def start(self) -> None:
        """Show this server's responses to owners who use another one."""
        self._task.start()

    async def stop(self) -> None:
        """End the task."""
        await self._task.stop()

    async def watch(self, owner: Owner, response_id: str | None = None) -> None:
        """Have all servers show this owner's running responses, for a few seconds; `response_id` is shown in detail."""
        value, key, expiry = codec.encode([owner.tenant, owner.principal]), f"uw/{name_of(owner)}", await self._expiry()
        keys = [key, f"{key}/{response_id}"] if response_id else [key]
        await self._records.commit([Put(each, value, expires_at=expiry) for each in keys])

    def here(self, owner: Owner, response_id: str | None = None) -> dict[str, Json]:
        """Return the running responses of the owner on this server, by id; `response_id` is shown in detail."""
        running = list(self._activity.running.get(owner.identity, {}).items())[:_MAX_RESPONSES]
        return {each: {**_visible_state(one, near=each == response_id), "server": self.server} for each, one in running}

    async def elsewhere(self, owner: Owner) -> Mapping[str, Mapping[str, Json]]:
        """Return the running responses of the owner on other servers, by server and id."""
        prefix = f"ul/{name_of(owner)}/"
        rows = await self._records.range(prefix, after_prefix(prefix), limit=_MAX_SERVERS)
        others = [(key.removeprefix(prefix), record) for key, record in rows if not key.endswith(f"/{self.server}")]
        return dict(
            zip((name for name, _ in others), await self._decoder.decode([row.value for _, row in others]), strict=True)
        )

    async def _publish(self) -> None:
        while True:
            intervals = self._intervals
            await asyncio.sleep(intervals.watch_seconds if self._published else intervals.watcher_poll_seconds)
            if self._activity.running or self._published:
                with suppress(ApiError):
                    await self._write()

    async def _write(self) -> None:
        """Write the responses that run here for each watching owner, and once more when the last one has ended."""
        rows = await self._records.range("uw/", after_prefix("uw/"), limit=_MAX_WATCHERS)
        expiry, ops, published = await self._expiry(), list[Op](), set[str]()
        near = {key for key, _ in rows}
        for key, record in rows:
            of, identity = key.removeprefix("uw/"), tuple(codec.decode(record.value))
            if "/" in of:
                continue
            running = self._activity.running.get((identity[0], identity[1]), {})
            some = [(each, one) for each, one in list(running.items())[:_MAX_RESPONSES] if one.stored]
            states = {each: _visible_state(one, near=f"{key}/{each}" in near) for each, one in some}
            if states or of in self._published:
                value = await in_thread(codec.encode, states)
                ops.append(Put(f"ul/{of}/{self.server}", value, expires_at=expiry))
            if states:
                published.add(of)
        if ops:
            await self._records.commit(ops)
        self._published = published

    async def _expiry(self) -> float:
        return await self._records.now() + _LIFETIME_SECONDS


def _visible_state(running: Running, *, near: bool = False) -> Json:
    """Return the visible state of a running response; with `near`, in detail."""
    assembler = running.assembler
    response = assembler.response
    doing, tail = assembler.tail(_TAIL_CHARACTERS)
    started = doing or response["output"]
    return {
        "id": response["id"],
        "status": "in_progress",
        "model": response["model"],
        "words": first_words(running.items[-_RECENT_ITEMS:]),
        "created_at": response["created_at"],
        "background": bool(response["background"]),
        "streamed": running.streamed,
        "events": assembler.numbered,
        "quiet_since": running.quiet_since,
        "output_items": len(response["output"]),
        "tail": tail,
        "doing": doing or (response["output"][-1]["type"] if started else "model"),
        **(_detail(running, doing) if near else {}),
    }


def _detail(running: Running, doing: str | None) -> Json:
    """Return the end of the text that is being written, and the items before it unless they are too large."""
    output = running.assembler.response["output"]
    done = [item for item in output if not (item["type"] == doing and item.get("status") == "in_progress")]
    return {
        "text": running.assembler.tail(_TEXT_CHARACTERS)[1],
        "output": None if is_large(done, _OUTPUT_BYTES) else done,
    }
