"""Stores what a foreground response comes to, and finds out whether it is stored where the store does not say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import ApiError, OutcomeUnknown
from ..core.stream.transcript import Transcript
from ..inputs.resolver import Stored
from ..jobs.foreground_leases import ended
from ..jobs.worker import Crew
from ..store.archive import Archive
from ..store.outcome import certain
from ..store.records import Conflict, VersionIs

Json = dict[str, Any]


class Keeper:
    """Stores finished responses that a client waits for.

    Every method raises `OutcomeUnknown` if the store did not say in time whether it took the response.

    Args:
        crew: keeps the rows that vouch for streamed responses while they are made.
    """

    def __init__(self, archive: Archive, crew: Crew) -> None:
        self._archive = archive
        self._crew = crew

    async def keep(self, final: Json, stored: Stored, exchanges: Mapping[str, Json]) -> None:
        """Stores a response that was not streamed: nobody knows its id before that."""
        response_id = final["id"]

        async def save(again: bool) -> None:
            conditions = [VersionIs(f"r/{response_id}", None)] if again else []
            try:
                await self._archive.save(final, **stored, exchanges=exchanges, conditions=conditions)
            except Conflict:
                # The id is new: an earlier try stored it.
                if not again:
                    raise

        await certain(save, _unknown(final))

    async def keep_vouched(
        self, final: Json, transcript: Transcript, stored: Stored, exchanges: Mapping[str, Json]
    ) -> None:
        """Stores a response that was streamed.

        Raises:
            ApiError: it is not stored. Once the store can be written, it is stored as failed, unless it was deleted.
        """
        beside, conditions = self._crew.settled(final["id"])
        marks = transcript.marks()

        async def save(again: bool) -> None:
            try:
                await self._archive.save(
                    final, **stored, exchanges=exchanges, transcript=marks, beside=beside, conditions=conditions
                )
            except Conflict as conflict:
                if again and await self._is_stored(final):
                    return
                raise await self._lost(final["id"]) from conflict

        try:
            await certain(save, _unknown(final))
        except OutcomeUnknown:
            self._crew.give_up(final["id"], ApiError(503, "The response could not be stored."))
            raise
        except ApiError as error:
            self._crew.give_up(final["id"], error)
            raise
        except Exception:
            self._crew.give_up(final["id"], ApiError(500, "The response could not be stored."))
            raise

    async def join(self, final: Json, stored: Stored, exchanges: Mapping[str, Json]) -> None:
        """Has a response that is not stored itself become part of its conversation."""
        items, owner = stored["input_items"], stored["owner"]
        conversation_id = final["conversation"]["id"]
        await certain(
            # An item that is there already stays where it is.
            lambda _: self._archive.join(final, owner=owner, input_items=items, exchanges=exchanges),
            f"The response was made, and the response store did not say whether it is part of conversation "
            f"'{conversation_id}'. List the items of the conversation before you send the request again.",
        )

    async def _is_stored(self, final: Json) -> bool:
        """Whether an earlier try stored the response: another server may have stored it as failed instead."""
        entry = await self._archive.entry(final["id"])
        return entry is not None and all(entry.response[name] == final[name] for name in ("status", "error"))

    async def _lost(self, response_id: str) -> ApiError:
        """Why a response cannot be stored for which nobody vouches any more."""
        if await self._archive.entry(response_id):
            return ended()
        return ApiError(500, "The response was deleted while it was made.")


def _unknown(final: Json) -> str:
    return (
        f"The response was made, and the response store did not say whether it is stored. Retrieve response "
        f"'{final['id']}' before you send the request again: a 404 says that it is not stored."
    )
