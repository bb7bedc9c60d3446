"""Items of responses and conversations as people read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...core.types import Json
from ...items.program_calls import mark_in
from ...items.registry import ITEM_KINDS, REPLIES
from ...items.view import (
    ApprovalReplyView,
    ApprovalView,
    CallView,
    MessageView,
    OutputView,
    Printed,
    ReasoningView,
    SummaryView,
    ToolListView,
    View,
    objects,
)
from ...sealing.sealer import SEALED
from . import blocks
from .blocks import Budget

MAX_ITEMS: Final = 1000
"""Maximum number of items of a view's input, and of its output."""

_TITLE_CHARACTERS: Final = 160
_ERROR_CHARACTERS: Final = 2000

type Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ViewContext:
    """What the views of all items share.

    Attributes:
        budget: the characters that are left.
        structured: whether messages of the assistant are JSON.
        durations: milliseconds that tools ran, by the id of their item.
        failed: ids of calls that failed, also of those whose item says `completed`.
        summaries: the texts of opened summaries, by the seals of their items.
        requests: the requests for approval that are answered, by their ids.
        calls: the names of answered calls, by the ids of the calls.
    """

    budget: Budget
    structured: bool = False
    durations: Mapping[str, float] = field(default_factory=dict)
    failed: Collection[str] = ()
    summaries: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, Item] = field(default_factory=dict)
    calls: Mapping[str, str] = field(default_factory=dict)


def item_views(items: Sequence[Item], context: ViewContext) -> list[Json]:
    """Return the first items as a page shows them. Markdown is not rendered yet."""
    return [_item_view(item, context) for item in items[:MAX_ITEMS]]


def shown_as(view: View | None) -> str:
    """Return the `kind` of an item with this view on the page."""
    kind, _ = _MAKERS[type(view)]
    return kind


def call_names(items: Iterable[Item]) -> dict[str, str]:
    """Return the names of the calls among items, by the ids of the calls."""
    calls = (item for item in items if isinstance(_view_of(item), CallView) and item.get("call_id"))
    return {str(each["call_id"]): str(each.get("name") or each["type"].removesuffix("_call")) for each in calls}


def answered_calls(items: Iterable[Item]) -> set[str]:
    """Return the ids of the calls whose outputs are among items."""
    return {str(item.get("call_id")) for item in items if isinstance(_view_of(item), OutputView)}


def markdown_blocks(items: Sequence[Json]) -> Iterator[Json]:
    """Yield the blocks whose Markdown is to be rendered."""
    for item in items:
        for block in (*item.get("blocks", ()), *item.get("results", ())):
            if block["kind"] == "markdown":
                yield block


def _view_of(item: Item) -> View | None:
    kind = ITEM_KINDS.get(item["type"])
    return kind.view if kind else None


def _item_view(item: Item, context: ViewContext) -> Json:
    view = _view_of(item)
    kind, make = _MAKERS[type(view)]
    head = {"type": item["type"], "id": blocks.short(item.get("id")), "kind": kind}
    return {**head, "status": blocks.short(item.get("status")), **make(view, item, context)}


def _message(view: MessageView, item: Item, context: ViewContext) -> Json:
    structured = context.structured and item.get("role") == "assistant"
    views = [_part(part, context.budget, structured=structured) for part in view.parts(item)]
    return {"role": blocks.short(item.get("role")), "phase": blocks.short(item.get("phase")), "blocks": views}


def _part(part: Item, budget: Budget, *, structured: bool) -> Json:
    text = part.get("text")
    match part.get("type"):
        case "refusal":
            return {**blocks.plain(str(part.get("refusal", "")), budget), "kind": "refusal"}
        case "input_image" | "computer_screenshot":
            return blocks.image(part.get("image_url"), part.get("file_id"), part.get("detail"), budget)
        case "input_file":
            return blocks.file(part)
        case "input_audio" | "output_audio":
            return {**blocks.plain(str(part.get("transcript") or ""), budget), "kind": "audio"}
        case _ if isinstance(text, str) and structured and blocks.is_json(text):
            return blocks.as_json(text, budget, "json")
        case _ if isinstance(text, str):
            return blocks.words(text, budget, blocks.citations(part.get("annotations")))
    return blocks.as_json(part, budget)


def _reasoning(view: ReasoningView, item: Item, context: ViewContext) -> Json:
    views = [_part(part, context.budget, structured=False) for part in view.parts(item)]
    return {"blocks": views, "sealed": not views and bool(item.get(view.sealed))}


def _tool(view: CallView, item: Item, context: ViewContext) -> Json:
    """Return a call of a tool, run by the client or the server."""
    parts = _call(view, item, context.budget)
    arguments, error = parts.get("arguments"), _error(item)
    name = str(parts.get("name") or item["type"].removesuffix("_call"))[:_TITLE_CHARACTERS]
    summary = _flat(str(parts.get("summary", arguments["text"] if arguments else "")))
    return {
        "title": f"{name} {summary}"[:_TITLE_CHARACTERS],
        "name": name,
        "server": blocks.short(item.get("server_label")),
        "run_by": parts.get("run_by", "server"),
        "arguments": arguments,
        "results": parts.get("results", []),
        "failed": item.get("status") == "failed" or error is not None or str(item.get("id")) in context.failed,
        "error": error,
        "duration_ms": context.durations.get(str(item.get("id"))),
        "call_id": blocks.short(item.get("call_id")),
        "by_program": mark_in(item) is not None,
    }


def _flat(text: str) -> str:
    """Return the beginning of a text on one line; JSON as if it had no indents."""
    return re.sub(r"(?<=[{[]) | (?=[}\]])", "", " ".join(text[:1000].split()))


def _error(item: Item) -> str | None:
    error = item.get("error")
    if isinstance(error, dict):
        return (
            blocks.short(error.get("message"))
            or _texts(error.get("content"))
            or blocks.indented(error)[:_TITLE_CHARACTERS]
        )
    return str(error)[:_ERROR_CHARACTERS] if error else None


def _texts(content: Any) -> str:
    """Return the texts of the content with which a tool of an MCP server failed."""
    parts = content if isinstance(content, list) else []
    texts = (str(part.get("text", ""))[:_ERROR_CHARACTERS] for part in parts[:16] if isinstance(part, dict))
    return "\n".join(filter(None, texts))[:_ERROR_CHARACTERS]


def _call(view: CallView, item: Item, budget: Budget) -> Json:
    """Return the parts of a call as the kind of its item says."""
    image = item.get(view.image) if view.image else None
    results = [blocks.generated_image(image, item.get("output_format"), budget)] if image else []
    results += [blocks.link(found, budget) for found in (view.links(item) if view.links else ())]
    results += [_of_code(each, budget) for each in (view.printed(item) if view.printed else ())]
    if view.answer and isinstance(answer := item.get(view.answer), str) and answer:
        results.append(_result(answer, budget))
    if view.arguments:
        arguments = _arguments(view.arguments(item), budget)
    else:
        text = view.written(item) if view.written else str(item.get(view.text or "") or "")
        arguments = _of(blocks.code(text, view.language, budget))
    summary = {"summary": view.summary(item)} if view.summary else {}
    name = view.name or item.get("name")
    return {"name": name, "arguments": arguments, "results": results, "run_by": view.run_by, **summary}


def _of_code(each: Printed, budget: Budget) -> Json:
    if each.image_url is not None:
        return blocks.image(each.image_url, None, None, budget)
    return blocks.code(str(each.text or ""), "text", budget)


def _output(view: OutputView, item: Item, context: ViewContext) -> Json:
    """Return the output of a call, as an item of its own."""
    output, budget = view.value(item), context.budget
    if isinstance(output, str):
        results = [_result(output, budget)]
    elif isinstance(output, dict):
        results = [_part(output, budget, structured=False)]
    else:
        results = [_printed(part, budget) for part in objects(output)]
    call_id = blocks.short(item.get("call_id"))
    return {
        "call_id": call_id,
        "name": context.calls.get(str(call_id)),
        "results": results,
        "failed": view.failed_status is not None and item.get("status") == view.failed_status,
    }


def _printed(part: Item, budget: Budget) -> Json:
    if "stdout" in part:
        return blocks.code(f"{part.get('stdout') or ''}{part.get('stderr') or ''}", "text", budget)
    if isinstance(text := part.get("text"), str):
        return _result(text, budget)
    return _part(part, budget, structured=False)


def _result(text: str, budget: Budget) -> Json:
    return blocks.as_json(text, budget) if blocks.is_json(text) else blocks.code(text, "text", budget)


def _arguments(value: Any, budget: Budget) -> Json:
    return _of(blocks.as_json({} if value is None else value, budget))


def _of(block: Json) -> Json:
    return {name: block[name] for name in ("text", "language", "truncated")}


def _summary(view: SummaryView, item: Item, context: ViewContext) -> Json:
    seal = item.get(SEALED)
    text = context.summaries.get(str(seal))
    return {
        "title": view.title,
        "blocks": [blocks.words(text, context.budget)] if text else [],
        "sealed": bool(seal) and not text,
    }


def _listed_tools(view: ToolListView, item: Item, _: ViewContext) -> Json:
    names = [str(tool.get("name", ""))[:_TITLE_CHARACTERS] for tool in view.tools(item)]
    title = f"{item.get(view.source) or 'tools'}: {len(names)} {'tool' if len(names) == 1 else 'tools'}"
    return {"title": title[:_TITLE_CHARACTERS], "names": names, "error": _error(item)}


def _approval(_: ApprovalView, item: Item, context: ViewContext) -> Json:
    """Return a request for approval."""
    arguments = _arguments(item.get("arguments"), context.budget)
    return {
        **_approved_call("Approval requested", item, arguments),
        "arguments": arguments,
        "approve": None,
        "request_id": None,
    }


def _approval_reply(view: ApprovalReplyView, item: Item, context: ViewContext) -> Json:
    """Return the answer to a request for approval; it names the call if the request is known."""
    approved = view.approved(item)
    answer = "Approved" if approved else "Refused"
    request_id = blocks.short(item.get(REPLIES[item["type"]].names))
    request = context.requests.get(str(request_id))
    call = {"title": answer, "name": None, "server": None}
    if request:
        call = _approved_call(answer, request, _arguments(request.get("arguments"), Budget()))
    return {**call, "arguments": None, "approve": approved, "request_id": request_id}


def _approved_call(what: str, request: Item, arguments: Json) -> Json:
    return {
        "title": f"{what}: {request.get('name') or ''} {_flat(arguments['text'])}"[:_TITLE_CHARACTERS],
        "name": blocks.short(request.get("name")),
        "server": blocks.short(request.get("server_label")),
    }


def _other(_: None, item: Item, context: ViewContext) -> Json:
    return {"json": _of(blocks.as_json(dict(item), context.budget))}


_MAKERS: Final[Mapping[type, tuple[str, Callable[[Any, Item, ViewContext], Json]]]] = {
    MessageView: ("message", _message),
    ReasoningView: ("reasoning", _reasoning),
    SummaryView: ("compaction", _summary),
    CallView: ("tool", _tool),
    OutputView: ("tool_output", _output),
    ToolListView: ("tools", _listed_tools),
    ApprovalView: ("approval", _approval),
    ApprovalReplyView: ("approval", _approval_reply),
    type(None): ("other", _other),
}
"""The kind of an item on the page, and what makes its fields, by the class of its view."""
