"""Import of another server's stored responses into the archive."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..core.errors import ApiError
from ..core.ids import check_response_id, tag_of
from ..core.owner import Owner
from ..core.shapes import RequestLimits
from ..core.types import Json
from ..requests.request import FIELDS, CreateRequest, parse_create
from ..store.archive import Archive
from ..store.loaded_response import StoredResponse
from ..store.records import Condition, Conflict, VersionIs
from ..stream.response import new_response
from ..stream.usage import Usage, usage_of
from .conversation_import import ImportImpossible, ImportReport, read_items

_ENDED: Final = ("completed", "failed", "incomplete", "cancelled")
_ECHOED: Final = sorted(FIELDS - {"conversation", "input", "model", "store", "stream", "stream_options", "tool_choice"})
"""Fields of a request that its response repeats, if the other server stores them."""
_OPAQUE: Final = frozenset({"metadata", "parameters", "schema"})
"""Fields in which a null is part of the client's data and must be kept."""
_MAX_CHAIN: Final = 10_000
"""Maximum number of responses of one chain that are read for the history of a response."""


@dataclass(frozen=True, slots=True)
class FoundResponse:
    """A response of the other server.

    Attributes:
        body: the response object, including its `output`.
        input: its input items after those of the response that it continues.
        continues: the id of the response whose input and output come before `input`; None if `input` is complete.
    """

    id: str
    owner: Owner
    created_at: int
    body: Mapping[str, Any]
    input: Sequence[Any]
    continues: str | None

    @property
    def output(self) -> Sequence[Any]:
        """The output items."""
        output = self.body.get("output")
        return output if isinstance(output, list) else []


class ImportSource(Protocol):
    """The other server's stored responses."""

    def pages(self) -> AsyncIterable[Sequence[FoundResponse]]:
        """Yield all responses in pages, oldest first."""

    async def find(self, response_id: str) -> FoundResponse | None:
        """Return the response with this id; None if there is none."""


async def import_responses(
    archive: Archive, source: ImportSource, limits: RequestLimits, report: ImportReport, oldest: float | None
) -> None:
    """Store each response in one commit, unless it exists or was imported before.

    Args:
        archive: stores the responses.
        source: the responses of the other server.
        limits: limits on a request.
        report: receives the counts.
        oldest: responses created before this time, in seconds since the epoch, are skipped; None for no such bound.

    Raises:
        ImportImpossible: the store is unavailable. What was written stays, and the next import continues from there.
    """
    importing = _Importer(archive, source, limits, report)
    async for page in source.pages():
        try:
            there = await archive.stored_or_imported([each.id for each in page])
            for each in page:
                if each.id in there:
                    report.there += 1
                elif oldest is not None and each.created_at < oldest:
                    report.expired += 1
                elif each.body.get("status") not in _ENDED:
                    report.unfinished += 1
                else:
                    await importing.import_one(each)
        except ApiError as error:
            raise ImportImpossible(str(error)) from error
        report.count_read(len(page))


class _Importer:
    """Imports single responses."""

    def __init__(self, archive: Archive, source: ImportSource, limits: RequestLimits, report: ImportReport) -> None:
        self._archive = archive
        self._source = source
        self._limits = limits
        self._report = report

    async def import_one(self, source: FoundResponse) -> None:
        """Store a response with its history.

        Raises:
            ApiError: 503, the store is unavailable.
        """
        output, unread = read_items(_with_ids(source.output), self._limits)
        try:
            check_response_id(source.id, "id")
            response = _response(source, output, self._limits)
        except ApiError:
            self._report.left_out.append(source.id)
            return
        while True:
            base, items = await self._before(source)
            read, left_out = read_items(_with_ids([*items, *source.input]), self._limits)
            try:
                new = await self._archive.import_response(
                    response,
                    owner=source.owner,
                    base=base.history if base else None,
                    input_items=read,
                    conditions=_unchanged(base, source.id),
                )
            except Conflict:
                # The response that it continues was changed or deleted meanwhile.
                continue
            break
        self._report.responses += new
        self._report.there += not new
        self._report.left_out += [*left_out, *unread]

    async def _before(self, response: FoundResponse) -> tuple[StoredResponse | None, list[Any]]:
        """Return the nearest earlier response that is stored here, and the other server's items since then.

        Without such a response, return None and all earlier items.
        """
        chain: list[FoundResponse] = []
        seen = {response.id}
        above, base = response.continues, None
        while above and above not in seen and len(chain) < _MAX_CHAIN:
            base = await self._archive.load(above)
            if base and base.owner.identity == response.owner.identity:
                break
            base, parent = None, await self._source.find(above)
            if parent is None:
                break
            seen.add(above)
            chain.append(parent)
            above = parent.continues
        return base, [item for each in reversed(chain) for item in (*each.input, *each.output)]


def _unchanged(base: StoredResponse | None, response_id: str) -> Sequence[Condition]:
    """Return the condition that the base is unchanged; none of one with another tag, which is stored again."""
    if base is None or tag_of(base.response["id"]) != tag_of(response_id):
        return []
    return [VersionIs(f"r/{base.response['id']}", base.version)]


def _with_ids(items: Sequence[Any]) -> list[tuple[str | None, Any]]:
    """Return each item with its id, or None if it has none."""
    numbered = [(item.get("id") if isinstance(item, dict) else None, item) for item in items]
    return [(item_id if isinstance(item_id, str) else None, item) for item_id, item in numbered]


def _response(source: FoundResponse, output: Sequence[Json], limits: RequestLimits) -> Json:
    """Return the response in its stored form.

    Raises:
        ApiError: the response has no valid model.
    """
    body = source.body
    response = new_response(_request(body, limits), id=source.id, created_at=source.created_at)
    ended = body.get("completed_at")
    return response | {
        "status": body["status"],
        "completed_at": ended if isinstance(ended, int) else None,
        "error": _error(body.get("error")) if body["status"] == "failed" else None,
        "incomplete_details": _details(body) if body["status"] == "incomplete" else None,
        "output": list(output),
        "usage": _usage(body.get("usage")),
    }


def _request(body: Mapping[str, Any], limits: RequestLimits) -> CreateRequest:
    """Return the request that the response repeats, without the fields and tools that this server does not accept."""
    request: Json = {"model": body.get("model"), "input": "-"}
    parse_create(request, limits=limits)
    for name in [*_ECHOED, "tool_choice"]:
        value = _without_nulls(body.get(name))
        if name == "tools" and isinstance(value, list):
            value = [tool for tool in value if _takes(request | {"tools": [tool]}, limits)]
        if value is not None and _takes(request | {name: value}, limits):
            request[name] = value
    return parse_create(request, limits=limits)


def _takes(body: Json, limits: RequestLimits) -> bool:
    try:
        parse_create(body, limits=limits)
    except ApiError:
        return False
    return True


def _without_nulls(value: Any) -> Any:
    """Return the value without null fields, which the other server writes for omitted ones, except in opaque fields."""
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: each if name in _OPAQUE else _without_nulls(each) for name, each in value.items() if each is not None}


def _error(error: Any) -> Json:
    message = error.get("message") if isinstance(error, dict) else None
    return {"code": "server_error", "message": message if isinstance(message, str) else "The response failed."}


def _details(body: Mapping[str, Any]) -> Json:
    details = body.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return {"reason": reason if reason == "content_filter" else "max_output_tokens"}


def _usage(usage: Any) -> Json | None:
    if not isinstance(usage, dict):
        return None

    def tokens(name: str, of: Any = usage) -> int:
        number = of.get(name) if isinstance(of, dict) else None
        return number if isinstance(number, int) else 0

    return usage_of(
        Usage(
            input_tokens=tokens("input_tokens"),
            output_tokens=tokens("output_tokens"),
            cached_tokens=tokens("cached_tokens", usage.get("input_tokens_details")),
            reasoning_tokens=tokens("reasoning_tokens", usage.get("output_tokens_details")),
        )
    )
