"""The audit log: what operators and leads of teams did with what belongs to others, and what was refused.

The row `al/<moment><number>` is an entry, in the order of time. It names who acted, and the object by its id; the owner
of the object is the hash that the keys of the store have, so that nothing names an owner whose data was deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..core.errors import ApiError
from ..core.ids import new_ordered_id
from ..core.owner import Owner
from ..core.types import Json
from . import codec
from .content_names import Hasher
from .records import Put, Records, after_prefix

_PREFIX: Final = "al/"
_ID_PREFIX: Final = "audit_"
_PAGE_ROWS: Final = 200
_ID_CHARACTERS: Final = 80
"""Characters of the id of an object that are kept: a client can send any."""
_SAME_MILLISECONDS: Final = 1_000
"""An earlier time than that of the last entry by more than this is another time, of a clock that was set back."""
_MAX_SCANNED: Final = 5_000
"""Entries that one page of a filtered list looks at."""

type Outcome = Literal["allowed", "refused"]


@dataclass(frozen=True, slots=True)
class Act:
    """An act, done or refused.

    Attributes:
        type: such as `response.deleted`.
        actor: who: a user of the API, or of the server's machine; see `wire/operators.py` and `commands/audited.py`.
        outcome: whether they had the right. An allowed act is written before it is done, and may still fail.
        object_id: the id of the object; empty for a list.
        owner: the owner of the object; None if that is not known.
    """

    type: str
    actor: Json
    outcome: Outcome
    object_id: str = ""
    owner: Owner | None = None


class AuditLog:
    """Writes and reads the entries.

    Args:
        records: the store.
        seconds: time for which an entry is kept.

    Every method raises `ApiError` 503 when the store is unavailable.
    """

    def __init__(self, records: Records, seconds: float) -> None:
        self._records = records
        self._seconds = seconds
        self._latest = 0  # milliseconds

    async def write(self, act: Act) -> None:
        """Write an entry."""
        now = await self._records.now()
        moment = int(now * 1000)
        if moment <= self._latest < moment + _SAME_MILLISECONDS:
            moment = self._latest + 1  # Entries of the same moment would have no order.
        self._latest = moment
        entry_id = new_ordered_id(_ID_PREFIX.removesuffix("_"), moment)
        value: Json = {
            "object": "audit_log",
            "id": entry_id,
            "type": act.type,
            "effective_at": int(now),
            "actor": act.actor,
            "outcome": act.outcome,
            "resource": {
                "id": act.object_id[:_ID_CHARACTERS] or None,
                "owner": Hasher(act.owner).owner if act.owner else None,
            },
        }
        deletes = act.type.endswith(".deleted")
        put = Put(_row(entry_id), codec.encode(value), now + self._seconds, uses_reserve=deletes)
        await self._records.commit([put])

    async def page(
        self, limit: int, after: str | None = None, wanted: Callable[[Json], bool] = lambda _: True
    ) -> tuple[list[Json], str | None]:
        """Return the newest entries, newest first, and the id after which the next page begins; None if there is none.

        Args:
            limit: maximum number of entries.
            after: the id of the entry after which the page begins.
            wanted: returns whether an entry is wanted. A page may have fewer than `limit`, though more follow.

        Raises:
            ApiError: also 400, `after` is no id of an entry.
        """
        end = after_prefix(_PREFIX) if after is None else _row(_checked(after))
        found: list[Json] = []
        for _ in range(_MAX_SCANNED // _PAGE_ROWS):
            rows = await self._records.range(_PREFIX, end, limit=_PAGE_ROWS, reverse=True)
            for key, record in rows:
                if wanted(entry := codec.decode(record.value)):
                    found.append(entry)
                if len(found) == limit:
                    return found, _id(key)
            if len(rows) < _PAGE_ROWS:
                return found, None
            end = rows[-1][0]
        return found, _id(end)

    async def entries(self, wanted: Callable[[Json], bool] = lambda _: True) -> AsyncIterator[Json]:
        """Yield all wanted entries, newest first."""
        after: str | None = None
        while True:
            page, after = await self.page(_PAGE_ROWS, after, wanted)
            for entry in page:
                yield entry
            if after is None:
                return


def wanted_entries(
    *,
    actor: str | None = None,
    act: str | None = None,
    object_id: str | None = None,
    owner: Owner | None = None,
    tenant: str | None = None,
) -> Callable[[Json], bool]:
    """Return what says whether an entry is wanted.

    Args:
        actor: only acts of the user with this name, of the API or of the server's machine.
        act: only acts of this type.
        object_id: only those with this object.
        owner: only those with an object of this owner.
        tenant: only acts of users of this tenant; those of commands are of the empty one.
    """
    name = Hasher(owner).owner if owner else None

    def is_wanted(entry: Json) -> bool:
        (who, whose), resource = name_of(entry["actor"]), entry["resource"]
        return (
            actor in (None, who)
            and tenant in (None, whose)
            and act in (None, entry["type"])
            and object_id in (None, resource["id"])
            and name in (None, resource["owner"])
        )

    return is_wanted


def name_of(actor: Json) -> tuple[str, str]:
    """Return the name and the tenant of an actor."""
    if actor["type"] == "command":
        return actor["command"]["user"], ""
    user = actor["session"]["user"]
    return user["id"], user.get("tenant", "")


def _row(entry_id: str) -> str:
    return f"{_PREFIX}{entry_id.removeprefix(_ID_PREFIX)}"


def _id(key: str) -> str:
    return f"{_ID_PREFIX}{key.removeprefix(_PREFIX)}"


def _checked(entry_id: str) -> str:
    digits = entry_id.removeprefix(_ID_PREFIX)
    if len(digits) != 24 or not all(each in "0123456789abcdef" for each in digits):
        raise ApiError(400, "Invalid 'after': it is no id of an entry of the audit log.", param="after")
    return entry_id


def user_actor(user: Owner, address: str, claimed: str, agent: str) -> Json:
    """Return a user of the API as an actor, in the form of OpenAI's audit logs.

    Args:
        address: the address of the connection.
        claimed: the addresses that a proxy has named, or the client: only a proxy of the operator makes them true.
        agent: the name of the client's program.
    """
    who: dict[str, Any] = {"id": user.principal, "email": None, **({"tenant": user.tenant} if user.tenant else {})}
    session = {"user": who, "ip_address": address, "forwarded_for": claimed or None, "user_agent": agent or None}
    key = {"api_key": {"id": user.key, "type": "user", "user": who}} if user.key else {}
    return {"type": "api_key" if key else "session", "session": session, **key}


def machine_actor(user: str, machine: str) -> Json:
    """Return a user of the server's machine as an actor, who runs a command."""
    return {"type": "command", "command": {"user": user, "machine": machine}}
