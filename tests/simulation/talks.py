"""The clients of a conversation: responses that join it, items that are added and deleted, at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from llama_stack_responses.core.owner import Owner
from tests.simulation.ledger import Prompt
from tests.simulation.model import numbers_of
from tests.simulation.server import Server
from tests.simulation.workload import Clients

type Json = dict[str, Any]

_JOINS: Final = ("completed", "incomplete")
"""Statuses of responses that join their conversation."""


@dataclass(slots=True)
class Talk:
    """A conversation, as its clients know it.

    Attributes:
        id: its id.
        owner: its owner.
        joined: the ids of the items that are known to have been added, by the number of their text.
        deleting: the ids of the items whose deletion was begun.
        deleted: the numbers of texts whose deletion was acknowledged.
    """

    id: str
    owner: Owner
    joined: dict[int, list[str]] = field(default_factory=dict)
    deleting: set[str] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)


class Talks:
    """Holds conversations.

    Args:
        clients: send the requests.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients, self._random = clients, clients.cluster.world.random
        self._ledger = clients.ledger

    async def hold(self, owner: Owner, lanes: int, turns: int) -> None:
        """Hold a conversation: some clients take some turns each, at the same time; then check what it has.

        In most conversations, another client deletes new items meanwhile.
        """
        made = await self._clients.once(owner, lambda server: server.impl.conversations.create({}))
        if made is None:
            return
        talk = Talk(made["id"], owner)
        self._clients.promises.conversations[talk.id] = owner
        talking = asyncio.gather(*(self._lane(talk, turns) for _ in range(lanes)))
        prunes = self._random.random() < 0.7
        while prunes and not talking.done():
            await asyncio.sleep(self._random.uniform(0.0, 1.5))
            await self._delete_one(talk)
        await talking
        await self._check(talk)

    async def _lane(self, talk: Talk, turns: int) -> None:
        for _ in range(turns):
            chance = self._random.random()
            if chance < 0.2:
                await self._add(talk)
            elif chance < 0.45:
                await self._background(talk)
            else:
                await self._foreground(talk, store=chance < 0.6)
            if self._random.random() < 0.5:
                await self._delete_one(talk)
            await asyncio.sleep(self._random.choice((0.0, 0.0, 3.0)))

    def _turn(self, talk: Talk, **fields: Any) -> tuple[int, Json]:
        """Return the number and the body of a turn, whose model has to see all that has joined by now."""
        body = self._clients.body(conversation=talk.id, **fields)
        [number] = numbers_of(body["input"])
        seen = {each: ids[0] for each, ids in talk.joined.items()}
        self._ledger.prompts[number] = Prompt(seen, talk.deleting, frozenset(talk.deleted))
        return number, body

    async def _background(self, talk: Talk) -> None:
        number, body = self._turn(talk, background=True)
        after = self._last(talk)
        response_id = await self._clients.created(talk.owner, body)
        if response_id is None:
            return
        if self._random.random() < 0.2:
            await asyncio.sleep(self._random.uniform(0.0, 8.0))
            await self._clients.settled(talk.owner, lambda server: server.impl.cancel(response_id))
        if await self._clients.ended(talk.owner, response_id):
            self._joins(talk, number, self._clients.promises.final[response_id], after)

    async def _foreground(self, talk: Talk, *, store: bool) -> None:
        number, body = self._turn(talk, background=False, store=store)
        after = self._last(talk)
        final = await self._clients.finished(talk.owner, body)
        if final is None:
            return
        if store:
            self._clients.promise(talk.owner, final)
        self._joins(talk, number, final, after)

    async def _add(self, talk: Talk) -> None:
        number, text = self._clients.text(1, 0)
        items = {"items": [{"type": "message", "role": "user", "content": text}]}
        after = self._last(talk)
        added = await self._clients.once(talk.owner, lambda server: server.impl.conversations.add_items(talk.id, items))
        if added is not None:
            self._clients.log(f"the item of job {number} is acknowledged")
            self._joined(talk, number, [each["id"] for each in added], after)

    def _joins(self, talk: Talk, number: int, response: Json, after: int) -> None:
        """Note that a response has ended, and joined the conversation unless it failed."""
        if response["status"] not in _JOINS:
            return
        own = self._ledger.inputs.get((talk.id, number))
        if own is None:
            self._ledger.fail(f"{response['id']} has not joined {talk.id}, although it ended {response['status']}")
            return
        self._joined(talk, number, [own, *(each["id"] for each in response["output"])], after)

    def _joined(self, talk: Talk, number: int, ids: list[str], after: int) -> None:
        """Note that items were added, and check that they were, in this order, behind those that came before."""
        added: dict[str, int] = self._ledger.items.get(talk.id) or {}
        positions = [added.get(each, -1) for each in ids]
        if positions != sorted(positions) or positions[0] <= after:
            self._ledger.fail(f"the turn of job {number} is in {talk.id} at {positions}, not all behind {after}")
        talk.joined[number] = ids

    def _last(self, talk: Talk) -> int:
        """Return the last position of the items that are known to have been added; -1 if there are none."""
        added: dict[str, int] = self._ledger.items.get(talk.id) or {}
        return max((added[ids[-1]] for ids in talk.joined.values() if ids[-1] in added), default=-1)

    async def _delete_one(self, talk: Talk) -> None:
        """Delete an item, perhaps that of another client which has just been added."""
        if not (listed := await self._clients.once(talk.owner, self._listed(talk, None))) or not listed.data:
            return
        item = self._random.choice(listed.data[-4:])
        talk.deleting.add(item["id"])
        self._ledger.deleting.add(item["id"])
        item_id: str = item["id"]
        deletes = self._clients.settled(
            talk.owner, lambda server: server.impl.conversations.delete_item(talk.id, item_id)
        )
        if not await deletes:
            return  # It may have been listed before replicas had it, been lost, and be added again.
        self._clients.log(f"{item['id']} of {talk.id} is deleted")
        talk.deleted.update(numbers_of(str(item.get("content"))) if item.get("role") == "user" else ())

    async def _check(self, talk: Talk) -> None:
        """Check that the conversation has all that was added and not deleted, in order."""
        ids, after, more = list[str](), None, True
        while more:
            page = await self._clients.call(talk.owner, self._listed(talk, after))
            ids += [each["id"] for each in page.data]
            after, more = page.data[-1]["id"] if page.data else None, page.has_more
        wanted = {each for ids in talk.joined.values() for each in ids}
        if lost := wanted - talk.deleting - set(ids):
            self._ledger.fail(f"items of {talk.id} are lost: {', '.join(sorted(lost))}")
        positions = [self._ledger.items[talk.id][each] for each in ids]
        if positions != sorted(set(positions)):
            self._ledger.fail(f"{talk.id} lists its items out of order: {positions}")

    def _listed(self, talk: Talk, after: str | None) -> Callable[[Server], Awaitable[Any]]:
        return lambda server: server.impl.conversations.list_items(talk.id, limit=100, after=after, order="asc")
