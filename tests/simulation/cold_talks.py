"""What clients do with conversations in a schedule of servers that pack what is idle, and what they must find."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.conversation_store import Conversation
from tests.contract.conversations import Json, user
from tests.simulation.world import World

_MOST: Final = 6
"""Items that are added at once, at most."""


class _Server(Protocol):
    @property
    def archive(self) -> Archive: ...


type Later[Server] = Callable[[float, Callable[[Server], Awaitable[None]]], None]
"""Has a server do something after some seconds."""


@dataclass(slots=True)
class Talk:
    """A conversation, and the ids of its items.

    Attributes:
        adding: those whose addition was begun.
        sure: those whose addition was acknowledged.
        removing: those whose removal was begun.
        gone: those whose removal was acknowledged.
        is_deleting, is_deleted: whether its deletion was begun, and acknowledged.
    """

    made: Conversation
    adding: set[str] = field(default_factory=set)
    sure: set[str] = field(default_factory=set)
    removing: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    is_deleting: bool = False
    is_deleted: bool = False


class ColdTalks[Server: _Server]:
    """The conversations of a schedule.

    Args:
        later: has a server do something.
        found: gets what must not be.
    """

    def __init__(self, world: World, later: Later[Server], found: list[str]) -> None:
        self._world, self._later, self._found = world, later, found
        self.known = dict[str, Talk]()

    def disturb(self) -> None:
        """Change a conversation in the next seconds: it may be one that is just being packed."""
        random = self._world.random
        if talks := [each for each in self.known.values() if not each.is_deleting]:
            talk = random.choice(talks)
            change = random.choice((partial(self._remove, talk), partial(self._remove, talk), self._addition(talk)))
            self._later(random.uniform(0.0, 2.0), change)

    def _addition(self, talk: Talk) -> Callable[[Server], Awaitable[None]]:
        items = [self._item(talk.made, f"more {self._world.now}") for _ in range(self._world.random.randint(1, _MOST))]
        return partial(self._add, talk, items)

    async def client(self, owner: Owner, seconds: float, server: Server) -> None:
        """Store a conversation, and change and read it within some seconds."""
        random = self._world.random
        now = int(self._world.now)
        made = Conversation(new_id("conv", random.randrange(1, 4096)), owner, now, {}, used_at=now)
        items = [self._item(made, text) for text in "abcdefghijkl"[: random.randint(1, 12)]]
        await server.archive.conversations.create(made, items)
        talk = self.known[made.id] = Talk(made, sure={each["id"] for each in items})
        talk.adding |= talk.sure
        for _ in range(random.randint(1, 5)):
            wait = random.uniform(0.0, seconds)
            match random.randrange(8):
                case 0 | 1:
                    self._later(wait, self._addition(talk))
                case 2 | 3:
                    self._later(wait, partial(self._remove, talk))
                case 4:
                    self._later(wait, partial(self.delete, talk))
                case _:
                    self._later(wait, partial(self.check, talk))

    @staticmethod
    def _item(made: Conversation, text: str) -> Json:
        return user(f"{made.id} {text} " * 9)

    async def _add(self, talk: Talk, items: list[Json], server: Server) -> None:
        ids = {each["id"] for each in items}
        talk.adding |= ids
        try:
            is_there = await server.archive.conversations.add(talk.made, items)
        except ApiError as error:
            if error.status != 400:
                raise
            is_there = True  # An earlier try was applied.
        if is_there:
            talk.sure |= ids
        elif not talk.is_deleting:
            self._found.append(f"{talk.made.id} is lost")

    async def _remove(self, talk: Talk, server: Server) -> None:
        if left := sorted(talk.sure - talk.removing):
            one = self._world.random.choice(left)
            talk.removing.add(one)
            await server.archive.conversations.remove(talk.made, one)
            talk.gone.add(one)

    async def check(self, talk: Talk, server: Server) -> None:
        """Read a conversation in one of the ways to do so, and compare."""
        sure, gone, is_deleted = set(talk.sure), set(talk.gone), talk.is_deleted
        there = await server.archive.conversations.load(talk.made.id)
        if there is None or is_deleted:
            if not talk.is_deleting or (there and is_deleted):
                self._found.append(f"{talk.made.id} is {'there although it was deleted' if there else 'lost'}")
            return
        ids = await self._read(there, server)
        if talk.is_deleting:
            return
        if len(set(ids)) < len(ids) or gone.intersection(ids) or not talk.adding.issuperset(ids):
            self._found.append(f"{talk.made.id} has items that it must not have: {ids}")
        if sure - talk.removing - set(ids):
            self._found.append(f"{talk.made.id} lacks items: {ids}")

    async def _read(self, there: Conversation, server: Server) -> list[str]:
        store, way = server.archive.conversations, self._world.random.randrange(3)
        if way == 0:
            return [each["id"] for each in await store.items(there.id, there.end)]
        ids, after, has_more = list[str](), None, True
        while has_more:
            try:
                page, has_more = await store.page(there, limit=2, after=after, order="asc" if way == 1 else "desc")
            except ApiError as error:
                if error.status != 400:
                    raise
                return await self._read(there, server)  # That item was removed meanwhile.
            ids += [each["id"] for each in page]
            after = ids[-1] if ids else None
        return ids

    async def delete(self, talk: Talk, server: Server) -> None:
        """Delete a conversation."""
        talk.is_deleting = True
        await server.archive.conversations.delete(talk.made.id)
        talk.is_deleted = True
