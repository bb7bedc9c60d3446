"""Storing of finished foreground responses, also when the answer to a commit is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.errors import ApiError, OutcomeUnknown
from ..core.stream.transcript import Transcript
from ..core.types import Json
from ..inputs.resolver import StoredInput
from ..intervals import DEFAULT, Intervals
from ..jobs.foreground_leases import ForegroundLeases, server_died_error
from ..store.archive import NOTHING_RECORDED, Archive
from ..store.commit_outcome import until_known
from ..store.records import Conflict, VersionIs
from ..store.saving import Recording


@dataclass(frozen=True, slots=True)
class ResponseExtras:
    """The data that is stored with a response.

    Attributes:
        exchanges: as for `Archive.save`.
        recording: the record of its course.
    """

    exchanges: Mapping[str, Json]
    recording: Recording = NOTHING_RECORDED


class ResponseWriter:
    """Stores finished foreground responses.

    Every method raises `OutcomeUnknown` if the store did not confirm in time whether the response is stored.

    Args:
        archive: stores the responses.
        leases: the leases of streamed responses, which end with the commit that stores the response.
        intervals: how often and how long to ask the store for the outcome of a commit.
    """

    def __init__(self, archive: Archive, leases: ForegroundLeases, intervals: Intervals = DEFAULT) -> None:
        self._archive = archive
        self._leases = leases
        self._intervals = intervals

    async def write(self, final: Json, stored: StoredInput, extras: ResponseExtras) -> None:
        """Store a response that was not streamed; it has no lease, since no client knows its id before it is stored."""
        response_id = final["id"]

        async def save(again: bool) -> None:
            conditions = [VersionIs(f"r/{response_id}", None)] if again else []
            try:
                await self._archive.save(
                    final, **stored, exchanges=extras.exchanges, recording=extras.recording, conditions=conditions
                )
            except Conflict:
                # The id is new, so the conflict means that an earlier call has stored it.
                if not again:
                    raise

        await until_known(save, _unknown(final), self._intervals)

    async def write_streamed(
        self, final: Json, transcript: Transcript, stored: StoredInput, extras: ResponseExtras
    ) -> None:
        """Store a response that was streamed.

        Raises:
            ApiError: the response is not stored. It will be stored as failed once the store can be written, unless it
                was deleted.
        """
        extra_ops, conditions = self._leases.completion_ops(final["id"])
        marks = transcript.marks()

        async def save(again: bool) -> None:
            try:
                await self._archive.save(
                    final,
                    **stored,
                    exchanges=extras.exchanges,
                    recording=extras.recording,
                    transcript=marks,
                    extra_ops=extra_ops,
                    conditions=conditions,
                )
            except Conflict as conflict:
                if again and await self._is_stored(final):
                    return
                raise await self._lost(final["id"]) from conflict

        try:
            await until_known(save, _unknown(final), self._intervals)
        except OutcomeUnknown:
            self._leases.mark_unstored(final["id"], ApiError(503, "The response could not be stored."))
            raise
        except ApiError as error:
            self._leases.mark_unstored(final["id"], error)
            raise
        except Exception:
            self._leases.mark_unstored(final["id"], ApiError(500, "The response could not be stored."))
            raise

    async def join(self, final: Json, stored: StoredInput, exchanges: Mapping[str, Json]) -> None:
        """Append the items of a response that is not stored itself to its conversation."""
        items, owner = stored["input_items"], stored["owner"]
        conversation_id = final["conversation"]["id"]
        await until_known(
            # A retry is safe: items that are in the conversation already are not added again.
            lambda _: self._archive.join(final, owner=owner, input_items=items, exchanges=exchanges),
            f"The response was generated, and the response store did not confirm whether it is part of conversation "
            f"'{conversation_id}'. List the items of the conversation before you send the request again.",
            self._intervals,
        )

    async def _is_stored(self, final: Json) -> bool:
        """Return whether an earlier call stored this outcome: another server may have stored the response as failed."""
        entry = await self._archive.entry(final["id"])
        return entry is not None and all(entry.response[name] == final[name] for name in ("status", "error"))

    async def _lost(self, response_id: str) -> ApiError:
        """Return the error of a response that cannot be stored because its lease is lost."""
        if await self._archive.entry(response_id):
            return server_died_error()
        return ApiError(500, "The response was deleted while it was generated.")


def _unknown(final: Json) -> str:
    return (
        f"The response was generated, and the response store did not confirm whether it is stored. Retrieve response "
        f"'{final['id']}' before you send the request again: a 404 means that it is not stored."
    )
