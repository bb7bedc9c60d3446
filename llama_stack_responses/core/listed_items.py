"""Input items as the API lists them, with an id and a status, which clients may omit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from .errors import bad_request
from .exchanges import without_exchange
from .ids import Seeded, new_seed
from .program_names import PROGRAM
from .schema.items import CONFIGURATION
from .stream.calls import FORMS
from .stream.shell import with_limits
from .types import Json

Order = Literal["asc", "desc"]

_ID_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
    "local_shell_call_output": "lsho",
    "shell_call_output": "sho",
    "apply_patch_call_output": "apco",
    "computer_call_output": "cuo",
    "additional_tools": "at",
    CONFIGURATION: "cfg",
    "mcp_approval_response": "mcpa",
    **{form.type: form.id_prefix for form in FORMS.values()},
}

_WITHOUT_STATUS: Final = frozenset(
    {
        "additional_tools",
        "compaction",
        CONFIGURATION,
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        PROGRAM,
    }
)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list as OpenAI's API returns it.

    Attributes:
        data: the objects.
        has_more: whether more may follow.
        last: the id after which the next page begins, if it is not that of the last object.
    """

    data: list[Json]
    has_more: bool
    last: str | None = None


def page_after(objects: list[Json], after: str | None, limit: int) -> Page:
    """Return the page of at most `limit` objects that follow the one with the id `after`; the first page for None.

    Raises:
        ApiError: 400, no object has this id.
    """
    first = 0
    if after is not None:
        ids = [each["id"] for each in objects]
        if after not in ids:
            raise bad_request(f"Nothing with the id '{after}' is in this list.", "after", "invalid_value")
        first = ids.index(after) + 1
    return Page(objects[first : first + limit], len(objects) > first + limit)


def with_ids(items: Iterable[Json]) -> list[Json]:
    """Return the items, each with its own id or a new one. The new ids share a seed."""
    seed = new_seed()
    return [
        item if "id" in item else {"id": id_of_seed(item, Seeded(seed, index)), **item}
        for index, item in enumerate(items)
    ]


def id_of_seed(item: Json, seeded: Seeded) -> str:
    """Return the id that `with_ids` makes of this seed and index."""
    return seeded.id(_ID_PREFIXES.get(item["type"], "item"))


def listed(items: Iterable[Json]) -> list[Json]:
    """Return the items in the form of `openai.types.responses.ResponseItem`."""
    return [without_exchange(_whole(item)) for item in items]


def _whole(item: Json) -> Json:
    """Return the item with the fields that a client may omit, and a listed item has."""
    if item["type"] in _WITHOUT_STATUS:
        return item
    whole = {**item, "status": item.get("status", "completed")}
    if item["type"] == "shell_call":
        whole |= {"action": with_limits(item["action"]), "environment": item.get("environment")}
    return whole
