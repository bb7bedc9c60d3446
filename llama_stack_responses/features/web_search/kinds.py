"""The declaration of the tool `web_search`, and the item of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...core.exchanges import exchange
from ...core.item_fields import CALL_STATUS, OWN_ID, TEXT
from ...core.shapes import Check, Location, array, boolean, object_of, one_of, schema_of, string, tagged, takes
from ...core.types import Json
from ...items.form import Details, ItemForm, stage_events
from ...items.kind import ItemKind, Kinds, OfferedTool, ToolType
from ...items.view import CallView, Link, Shown, objects

SEARCH_SERVICE: Final = "web_search"
"""The stack's tool that searches."""

_LOCATION: Final = object_of(
    {
        "type": one_of("approximate"),
        "city": string(),
        "country": string(0, 2),
        "region": string(),
        "timezone": string(),
    },
    defaults={"type": "approximate"},
)

_DOMAINS: Final = 100
"""Maximum allowed domains, as OpenAI documents: each result is compared with each of them."""

_WEB_SEARCH: Final = object_of(
    {
        "filters": object_of({"allowed_domains": array(string(1, 253), high=_DOMAINS)}),
        "search_content_types": array(one_of("text", "image")),
        "search_context_size": one_of("low", "medium", "high"),
        "user_location": _LOCATION,
        "external_web_access": boolean,
        "return_token_budget": one_of("default", "unlimited"),
    }
)

_SOURCES: Final = array(tagged({"url": object_of({"url": TEXT}, "url")}))

_WEB_SEARCH_ACTIONS: Final[Mapping[str, Check]] = {
    "search": object_of({"query": TEXT, "queries": array(TEXT), "sources": _SOURCES}),
    "open_page": object_of({"url": TEXT}),
    "find_in_page": object_of({"url": TEXT, "pattern": TEXT}, "url", "pattern"),
}

_ACTION: Final = tagged(_WEB_SEARCH_ACTIONS)
_ANY_SEARCH: Final = {"type": "search"}


@takes(schema_of(tagged({**_WEB_SEARCH_ACTIONS, "other": object_of({})})))
def _sent_action(value: Any, at: Location) -> Json:
    """Check an action. A client that did not know the action of a search sends `other`."""
    action: Json = _ACTION(_ANY_SEARCH if isinstance(value, dict) and value.get("type") == "other" else value, at)
    return action


_ITEM: Final = object_of(
    {"id": OWN_ID, "action": _sent_action, "status": CALL_STATUS}, defaults={"action": _ANY_SEARCH}
)


def _without_sources(action: Json) -> Json:
    """Return the action of a search before its results are known."""
    return {name: value for name, value in action.items() if name != "sources"}


def _no_events(_: int, __: Json, ___: int) -> list[Json]:
    return []


FORM: Final = ItemForm(
    "web_search_call",
    "ws",
    stages=stage_events("web_search_call", "in_progress", "searching", "completed"),
    late=("results",),
    details=Details("action", _without_sources, _no_events),
)


def _exchange(item: Json) -> Json:
    action = {name: value for name, value in item["action"].items() if name != "sources" and value is not None}
    sources = [source["url"] for source in item["action"].get("sources") or () if "url" in source]
    return exchange("web_search", action, "\n".join(sources) or "(The results are no longer available.)")


def _action(item: Shown) -> Mapping[str, Any]:
    action = item.get("action")
    return action if isinstance(action, dict) else {}


def _shown_action(item: Shown) -> Json:
    return _without_sources({**_action(item)})


def _summary(item: Shown) -> Any:
    action = _action(item)
    return action.get("query") or action.get("url") or action.get("pattern") or ""


def _links(item: Shown) -> Iterable[Link]:
    pages = [*objects(item.get("results")), *objects(_action(item).get("sources"))]
    return [Link(each.get("url"), each.get("title"), each.get("snippet")) for each in pages]


def _searches(item: Json) -> bool:
    return item.get("status") == "completed" and (item.get("action") or {}).get("type") == "search"


_SEARCH_CALL: Final = ItemKind(
    FORM,
    _ITEM,
    _exchange,
    CallView("web_search", arguments=_shown_action, summary=_summary, links=_links),
    written={"action": ("query", "queries", "url", "pattern")},
    includable=("web_search_call.results", "web_search_call.action.sources"),
    imported={"action": {"type": "search", "query": ""}},
    searches=_searches,
)

KINDS: Final = Kinds(
    items=(_SEARCH_CALL,), tools=(ToolType("web_search", _WEB_SEARCH, offered=OfferedTool("Web search")),)
)
