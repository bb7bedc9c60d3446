"""Sessions of a user: conversations, and chains of responses that continue each other, each as one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...core.owner import Owner
from ...core.statuses import UNFINISHED
from ...core.types import Json
from ...store.archive import Archive
from ...store.list_row_pages import Span, cursor_text, parsed_cursor
from ...store.list_rows import Row
from .lists import Lists

_WINDOW_ROWS: Final = 2_000
"""Responses of which one page has the sessions."""
_MODELS: Final = 4
"""Models that a session names."""


class Sessions:
    """Reads the sessions of users.

    Args:
        archive: the stored responses.
        lists: knows the current status of rows.
    """

    def __init__(self, archive: Archive, lists: Lists) -> None:
        self._archive, self._lists = archive, lists

    async def page(self, owner: Owner, after: str | None) -> Json:
        """Return the sessions of the newest responses, or of those after a cursor, last active first.

        Raises:
            ApiError: 400, `after` is not a cursor.
        """
        span = Span(after=parsed_cursor(after) if after else None)
        page = await self._archive.listing.page(owner, span, _WINDOW_ROWS)
        sessions = sessions_of(await self._lists.current(page.rows))
        return {
            "object": "list",
            "data": sessions,
            "responses": len(page.rows),
            "has_more": page.next is not None,
            "next": cursor_text(page.next),
        }


def sessions_of(rows: Sequence[Row]) -> list[Json]:
    """Return the sessions of these rows, which are newest first; a chain has at least two responses."""
    groups: dict[str, list[Row]] = {}
    group_of: dict[str, str] = {}
    for row in reversed(rows):
        previous = row["previous_response_id"]
        group: str = row["conversation"] or group_of.get(previous or "") or previous or row["id"]
        group_of[row["id"]] = group
        groups.setdefault(group, []).append(row)
    known = [_session(each, group_of) for each in groups.values() if each[0]["conversation"] or _is_chain(each)]
    return sorted(known, key=lambda each: (each["last_at"], each["id"]), reverse=True)


def _is_chain(rows: Sequence[Row]) -> bool:
    return len(rows) > 1 or rows[0]["previous_response_id"] is not None


def _session(rows: Sequence[Row], known: dict[str, str]) -> Json:
    """Return what a list shows of a session, of which these are the rows, oldest first."""
    first, last = rows[0], rows[-1]
    previous = first["previous_response_id"]
    return {
        "id": first["conversation"] or last["id"],
        "kind": "conversation" if first["conversation"] else "chain",
        "words": next((row["words"] for row in rows if row["words"]), ""),
        "answer": last["answer"],
        "turns": len(rows),
        "earlier": not first["conversation"] and previous is not None and previous not in known,
        "input_tokens": sum(row["input_tokens"] or 0 for row in rows),
        "output_tokens": sum(row["output_tokens"] or 0 for row in rows),
        "seconds": round(sum(row["seconds"] or 0.0 for row in rows), 3),
        "errors": sum(row["status"] == "failed" for row in rows),
        "running": sum(row["status"] in UNFINISHED for row in rows),
        "models": list(dict.fromkeys(row["model"] for row in reversed(rows)))[:_MODELS],
        "started_at": first["created_at"],
        "last_at": max(row["created_at"] + (row["seconds"] or 0.0) for row in rows),
    }
