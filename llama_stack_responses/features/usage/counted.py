"""What one response has used, and whose it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
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
_HASH_BYTES: Final = 16
_CONTAINERS: Final = {name: kind.container for name, kind in ITEM_KINDS.items() if kind.container}
_MADE: Final = {name: kind.makes for name, kind in ITEM_KINDS.items() if kind.makes}

_OF_ROUNDS: Final = ("input_tokens", "output_tokens", "cached_tokens")
"""The tokens that are recorded of each round."""

_ESTIMATED: Final = ("input_tokens", "output_tokens")
"""The tokens that are estimated of a round of which none were reported, which then has more fields than others."""

_REPORTED_FIELDS: Final = 7

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
    values = owner.tenant, owner.principal, owner.team, owner.key, response["model"], metadata
    return Dimensions(*map(counted_value, values))


def counted_value(value: str) -> str:
    """Return a value as `Dimensions` has it: a long one is cut, with a hash, so that it differs from others like it."""
    if len(value) <= _CHARACTERS:
        return value
    end = f"~{blake2b(value.encode(), digest_size=_HASH_BYTES).hexdigest()}"
    return value[: _CHARACTERS - len(end)] + end


def counted_identity(owner: Owner) -> tuple[str, str]:
    """Return the tenant and the name of a user as `Dimensions` has them."""
    return counted_value(owner.tenant), counted_value(owner.principal)


def counts_of(ended: Ended) -> Counts:
    """Return what a response has used.

    Returns:
        `requests`, `status.<status>`, `errors.<code>`, tokens, `tools.<type of the item>`, what calls made, such as
        `images`, `sessions` of containers, and `sandbox_ms`, those that are not 0; and the bins of its times,
        `first_token_ms.<bin>` and `duration_ms.<bin>`.
    """
    # It is part of the commit of each response, so it takes few steps for one without tools.
    response, timing = ended.response, ended.timing
    counts: Counts = {"requests": 1, f"status.{response['status']}": 1}
    if error := response.get("error"):
        counts[f"errors.{error['code']}"] = 1
    if usage := response.get("usage"):
        _add_tokens(counts, usage)
    elif timing:
        _add_tokens_of_rounds(counts, timing.get("rounds") or ())
    if timing:
        _add_estimates(counts, timing.get("rounds") or ())
    if calls := [item for item in response.get("output") or () if item["type"].endswith("_call")]:
        _add_tools(counts, calls)
    if timing:
        _add_times(counts, timing)
    return counts


def _add_tokens(counts: Counts, usage: Mapping[str, Any]) -> None:
    _add_known(counts, "input_tokens", usage["input_tokens"])
    _add_known(counts, "output_tokens", usage["output_tokens"])
    if inputs := usage.get("input_tokens_details"):
        _add_known(counts, "cached_tokens", inputs.get("cached_tokens"))
        _add_known(counts, "cache_write_tokens", inputs.get("cache_write_tokens"))
    if outputs := usage.get("output_tokens_details"):
        _add_known(counts, "reasoning_tokens", outputs.get("reasoning_tokens"))


def _add_tokens_of_rounds(counts: Counts, rounds: Sequence[Sequence[Any]]) -> None:
    """Add the tokens that are known of a response of which others are not known."""
    fields = [round_fields(each) for each in rounds]
    for name in _OF_ROUNDS:
        _add_known(counts, name, sum(each.get(name) or 0 for each in fields))


def _add_estimates(counts: Counts, rounds: Sequence[Sequence[Any]]) -> None:
    """Add the approximate tokens of rounds of which none were reported: a client that disconnects uses them too."""
    for each in rounds:
        if len(each) > _REPORTED_FIELDS:
            fields = round_fields(each)
            add(counts, {name: fields[f"estimated_{name}"] for name in _ESTIMATED})


def _add_known(counts: Counts, name: str, count: int | None) -> None:
    if count and count > 0:
        counts[name] = count


def _add_times(counts: Counts, timing: Json) -> None:
    """Add the bins of the time to the first token and of the whole time, and the time in containers, if known."""
    for each in timing.get("rounds") or ():
        if each[1] is not None:
            counts[bin_of(FIRST_TOKEN, each[1])] = 1
            break
    total = timing.get("total_ms")
    if total is not None:
        counts[bin_of(DURATION, total)] = 1
    if tools := timing.get("tools"):
        _add_known(counts, "sandbox_ms", sum(end - start for start, end, _, kind, *_ in tools if kind in _CONTAINERS))


def _add_tools(counts: Counts, calls: Sequence[Json]) -> None:
    add(counts, Counter(f"tools.{item['type']}" for item in calls))
    add(
        counts,
        Counter(_MADE[each["type"]] for each in calls if each["type"] in _MADE and each["status"] == "completed"),
    )
    _add_known(counts, "sessions", len(set(filter(None, map(_container_of, calls)))))


def _container_of(item: Json) -> str | None:
    find = _CONTAINERS.get(item["type"])
    return find(item) if find else None


def add(to: Counts, more: Mapping[str, int]) -> None:
    """Add counts to others."""
    for name, count in more.items():
        to[name] = to.get(name, 0) + count
