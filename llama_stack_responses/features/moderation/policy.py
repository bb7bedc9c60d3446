"""The moderation or the guardrails that a request selects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...core.moderation_results import Kind, Side
from ...requests.request import CreateRequest

Mode = Literal["score", "block"]


@dataclass(frozen=True, slots=True)
class Policy:
    """The checks that a request selects.

    Attributes:
        kind: the request's field: `moderation` checks with models, `guardrails` with those of the stack.
        names: the checks to run, all of them; None is the stack's default one.
        input, output: whether flagged text is only reported (`score`) or held back (`block`).
    """

    kind: Kind
    names: Sequence[str | None]
    input: Mode
    output: Mode


def policy_of(request: CreateRequest) -> Policy | None:
    """Return the request's policy; None if nothing is to be checked."""
    if request.guardrails:
        return Policy("guardrails", request.guardrails, "block", "block")
    if not request.moderation:
        return None
    modes = request.moderation.get("policy") or {}
    mode_of: dict[Side, Mode] = {side: modes.get(side, {}).get("mode", "score") for side in ("input", "output")}
    return Policy("moderation", [request.moderation["model"]], **mode_of)
