"""What one response has used, and whose it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...core.owner import Owner
from ...core.types import Json
from ...feature import Ended
from ...generation.timeline import round_fields
from ...items.registry import ITEM_KINDS
from .histograms import DURATION, FIRST_TOKEN, bin_of

OTHER: Final = "other"
"""Stands for the values of a dimension beyond those that are counted by their names."""
_CHARACTERS: Final = 200
"""Maximum characters of a value of a dimension."""
_CONTAINERS: Final = {name: kind.container for name, kind in ITEM_KINDS.items() if kind.container}
_MADE: Final = {name: kind.makes for name, kind in ITEM_KINDS.items() if kind.makes}

_OF_ROUNDS: Final = ("input_tokens", "output_tokens", "cached_tokens")
"""The tokens that are recorded of each round."""

type Counts = dict[str, int]
"""What was used, by the name of what is counted."""


class Dimensions(NamedTuple):
    """Whose usage it is. An empty value means that there is none.

    Attributes:
        tenant, user: the owner.
        team, key: the owner's team, and the id of the key of the request.
        model: the model.
        metadata: the value of the configured key of the request's metadata.
    """

    tenant: str
    user: str
    team: str
    key: str
    model: str
    metadata: str


def dimensions_of(ended: Ended, metadata_key: str | None) -> Dimensions:
    """Return whose response it was."""
    owner, response = ended.owner, ended.response
    metadata = (response.get("metadata") or {}).get(metadata_key, "") if metadata_key else ""
    values = (owner.tenant, owner.principal, owner.team, owner.key, response["model"], metadata)
    return Dimensions(*(str(value)[:_CHARACTERS] for value in values))


def counted_identity(owner: Owner) -> tuple[str, str]:
    """Return the tenant and the name of a user as `Dimensions` has them."""
    return owner.tenant[:_CHARACTERS], owner.principal[:_CHARACTERS]


def counts_of(ended: Ended) -> Counts:
    """Return what a response has used.

    Returns:
        `requests`, `status.<status>`, `errors.<code>`, tokens, `tools.<type of the item>`, what calls made, such as
        `images`, `sessions` of containers, and `sandbox_ms`, those that are not 0; and the bins of its times,
        `first_token_ms.<bin>` and `duration_ms.<bin>`.
    """
    response = ended.response
    counts: Counts = {"requests": 1, f"status.{response['status']}": 1}
    if error := response.get("error"):
        counts[f"errors.{error['code']}"] = 1
    if usage := response.get("usage"):
        counts |= _tokens(usage)
    elif ended.timing:
        counts |= _tokens_of_rounds(ended.timing.get("rounds") or ())
    if output := response.get("output"):
        counts |= _tools(output)
    if ended.timing:
        counts |= _times(ended.timing)
    if ended.timing and (tools := ended.timing.get("tools")):
        counts["sandbox_ms"] = sum(end - start for start, end, _, kind, *_ in tools if kind in _CONTAINERS)
    return {name: count for name, count in counts.items() if count > 0}


def _tokens(usage: Mapping[str, Any]) -> Counts:
    inputs, outputs = usage.get("input_tokens_details") or {}, usage.get("output_tokens_details") or {}
    return {
        "input_tokens": usage["input_tokens"],
        "cached_tokens": inputs.get("cached_tokens", 0),
        "cache_write_tokens": inputs.get("cache_write_tokens", 0),
        "output_tokens": usage["output_tokens"],
        "reasoning_tokens": outputs.get("reasoning_tokens", 0),
    }


def _tokens_of_rounds(rounds: Sequence[Sequence[Any]]) -> Counts:
    """Return the tokens that are known of a response of which others are not known."""
    fields = [round_fields(each) for each in rounds]
    return {name: sum(each.get(name) or 0 for each in fields) for name in _OF_ROUNDS}


def _times(timing: Json) -> Counts:
    """Return the bins of the time to the first token and of the whole time, as far as they are known."""
    first = next((each[1] for each in timing.get("rounds", ()) if each[1] is not None), None)
    known = {FIRST_TOKEN: first, DURATION: timing.get("total_ms")}
    return {bin_of(name, milliseconds): 1 for name, milliseconds in known.items() if milliseconds is not None}


def _tools(output: Sequence[Json]) -> Counts:
    calls = Counter(item["type"] for item in output if item["type"].endswith("_call"))
    if not calls:
        return {}
    made = Counter(
        _MADE[item["type"]] for item in output if item["type"] in _MADE and item.get("status") == "completed"
    )
    return {
        **{f"tools.{kind}": count for kind, count in calls.items()},
        **made,
        "sessions": len(set(filter(None, map(_container_of, output)))),
    }


def _container_of(item: Json) -> str | None:
    find = _CONTAINERS.get(item["type"])
    return find(item) if find else None


def add(to: Counts, more: Mapping[str, int]) -> None:
    """Add counts to others."""
    for name, count in more.items():
        to[name] = to.get(name, 0) + count
