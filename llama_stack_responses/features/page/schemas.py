"""The answers of the routes below `/v1/ui`, for the OpenAPI description."""

from __future__ import annotations

from typing import Final

from ...core.shapes import Schema, or_null
from ...wire.openapi import TEXT, WHOLE, YES_OR_NO, array_of, constant, whole

_OBJECT: Final[Schema] = {"type": "object"}
_NUMBER: Final[Schema] = {"type": "number"}
_COUNT: Final = or_null(WHOLE)
_TEXTS: Final[Schema] = {"type": "object", "additionalProperties": TEXT}
_NAME: Final = whole(name=TEXT, tenant=TEXT)

SESSION: Final = whole(
    object=constant("ui.session"),
    owner=whole(name=TEXT, tenant=TEXT, anonymous=YES_OR_NO),
    operator=YES_OR_NO,
    version=TEXT,
    retention_days=or_null(_NUMBER),
    record_requests=YES_OR_NO,
    background=YES_OR_NO,
    limits=whole(image_bytes=WHOLE, file_bytes=WHOLE),
    link_seconds=WHOLE,
    views=array_of(whole(name=TEXT, title=TEXT, icon=TEXT, key=TEXT, options=_OBJECT)),
)

TOOLS: Final = whole(object=constant("ui.tools"), available=array_of(TEXT), details=_TEXTS)

_SECTION: Final = whole(
    title=TEXT,
    at=_NUMBER,
    facts=array_of(TEXT),
    trouble=or_null(TEXT),
    columns=array_of(TEXT),
    rows=array_of(array_of(TEXT)),
    entry=or_null(_OBJECT),
)
_CARD: Final = whole(title=TEXT, sections=array_of(_SECTION), refreshable=YES_OR_NO)
CARDS: Final = whole(
    object=constant("ui.cards"),
    data=array_of(_CARD),
)

_BUCKET: Final = whole(
    at=_NUMBER,
    seconds=_NUMBER,
    running=WHOLE,
    requests=WHOLE,
    failed=WHOLE,
    output_tokens=WHOLE,
    events=WHOLE,
    first_token_ms=whole(count=WHOLE, sum=_NUMBER),
)
HISTORY: Final = whole(object=constant("ui.history"), at=_NUMBER, server=TEXT, since=_NUMBER, buckets=array_of(_BUCKET))

ROW: Final = whole(
    id=TEXT,
    status=TEXT,
    model=TEXT,
    created_at=_NUMBER,
    seconds=or_null(_NUMBER),
    words=TEXT,
    answer=TEXT,
    input_tokens=_COUNT,
    output_tokens=_COUNT,
    cached_tokens=_COUNT,
    reasoning_tokens=_COUNT,
    tool_calls=WHOLE,
    failed_tool_calls=WHOLE,
    tools=array_of(TEXT),
    waits_for=or_null(TEXT),
    error=or_null(TEXT),
    conversation=or_null(TEXT),
    previous_response_id=or_null(TEXT),
    background=YES_OR_NO,
    metadata=_OBJECT,
    version=WHOLE,
)

REFUSED: Final = whole(
    object=constant("ui.refused"),
    id=TEXT,
    created_at=_NUMBER,
    http_status=WHOLE,
    error=TEXT,
    message=TEXT,
    param=or_null(TEXT),
    model=TEXT,
    words=TEXT,
    metadata=_OBJECT,
    request_id=TEXT,
)

_ITEM: Final = whole(type=TEXT, id=or_null(TEXT), kind=TEXT, status=or_null(TEXT))


def _list(data: Schema, after: Schema, **more: Schema) -> Schema:
    pages = whole(data=array_of(data), has_more=YES_OR_NO, next=or_null(after))
    fields = {"object": constant("list"), **pages["properties"], **more}
    return whole(**fields)


_SCORE: Final = or_null(whole(score=or_null(_NUMBER), note=TEXT, by=TEXT, at=WHOLE))
_FOUND: Final = whole(**ROW["properties"], score=_SCORE, snippet=array_of(whole(text=TEXT, match=YES_OR_NO)))
_READ: Final[dict[str, Schema]] = {
    "read_to": _COUNT,
    "search": or_null(whole(covers=TEXT, indexed=_COUNT, waiting=WHOLE)),
}
ROWS: Final = _list(_FOUND, TEXT, **_READ)
OWNED_ROWS: Final = _list(whole(**_FOUND["properties"], owner=_NAME), TEXT, **_READ)

_ASKED: Final = whole(
    id=TEXT,
    model=TEXT,
    created_at=_NUMBER,
    status=TEXT,
    input=array_of(_OBJECT),
    score=or_null(_NUMBER),
    note=TEXT,
)
_SAMPLE: Final = whole(model=TEXT, output_text=TEXT, output=array_of(_OBJECT), usage=or_null(_OBJECT))
LINES: Final = _list(whole(item=_ASKED, sample=_SAMPLE), TEXT)

_SESSION: Final = whole(
    id=TEXT,
    kind=TEXT,
    words=TEXT,
    answer=TEXT,
    turns=WHOLE,
    earlier=YES_OR_NO,
    input_tokens=WHOLE,
    output_tokens=WHOLE,
    seconds=_NUMBER,
    errors=WHOLE,
    running=WHOLE,
    models=array_of(TEXT),
    started_at=_NUMBER,
    last_at=_NUMBER,
)
SESSIONS: Final = _list(_SESSION, TEXT, responses=WHOLE)

_BRANCH: Final = whole(id=TEXT, words=TEXT, status=TEXT, created_at=_NUMBER)

VIEW: Final = whole(
    object=constant("ui.response"),
    summary=ROW,
    continued_by=array_of(_BRANCH),
    score=_SCORE,
    owner=_NAME,
    instructions=or_null(whole(text=TEXT, truncated=YES_OR_NO)),
    items=array_of(_ITEM),
    output_from=WHOLE,
    items_left_out=WHOLE,
    facts=whole(status=TEXT, model=TEXT, usage=or_null(_OBJECT), settings=_OBJECT, tools=array_of(_OBJECT)),
    timing=or_null(_OBJECT),
    requests=WHOLE,
    replayable=YES_OR_NO,
)

INPUT: Final = whole(object=constant("ui.input"), data=array_of(_OBJECT))
MARKDOWN: Final = whole(texts=array_of(TEXT))
HTML: Final = whole(object=constant("ui.html"), html=or_null(array_of(TEXT)))

EVENT_PAGE: Final = _list(whole(at_ms=or_null(_NUMBER), event=_OBJECT), WHOLE, timed=YES_OR_NO)

_REQUEST: Final = whole(
    round=WHOLE,
    attempt=WHOLE,
    at_ms=_NUMBER,
    kind=TEXT,
    bytes=WHOLE,
    truncated=YES_OR_NO,
    request=or_null(_OBJECT),
)
REQUESTS: Final = _list(_REQUEST, WHOLE, recorded=YES_OR_NO)

_TURN: Final = whole(
    id=TEXT,
    summary=ROW,
    items=array_of(_ITEM),
    output_from=WHOLE,
    items_left_out=WHOLE,
    compacted=YES_OR_NO,
    branches=array_of(_BRANCH),
)
CHAIN: Final = _list(_TURN, TEXT, children=array_of(_BRANCH), gone=or_null(TEXT))

CONVERSATION: Final = _list(_ITEM, TEXT, conversation=whole(id=TEXT, created_at=_NUMBER, metadata=_OBJECT))
