"""Approvals of calls of MCP servers: which calls may be run, and which were refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from ..core.errors import bad_request
from ..core.types import Json

Approval = Literal["always", "never"]

_OF_MODEL: Final = frozenset({"reasoning", "function_call", "mcp_call", "mcp_approval_request"})
"""Items that come from the model, except messages."""


class Approvals:
    """The calls that needed approval, and their outcome.

    Args:
        items: the conversation, oldest first.
    """

    def __init__(self, items: Sequence[Json]) -> None:
        self._requests = {item["id"]: item for item in items if item["type"] == "mcp_approval_request"}
        answers = [item for item in items if item["type"] == "mcp_approval_response"]
        self._answers: Mapping[str, Json] = {item["approval_request_id"]: item for item in answers}
        self._answered = {
            item.get("approval_request_id") for item in items if item["type"] in ("mcp_call", "function_call")
        }
        self._fresh = {item["approval_request_id"] for item in _since_the_model(items)}

    def to_make(self) -> list[Json]:
        """Return the requests that were approved since the model's last item, in the order of the requests."""
        return [request for request in self._requests.values() if self._is_due(request["id"])]

    def refusal(self, request: Json) -> str | None:
        """Return what the model sees for a call that was not run; None if its result is elsewhere."""
        answer = self._answers.get(request["id"])
        if answer is None:
            return "The user has not approved or refused this call, so it was not made."
        if not answer["approve"]:
            reason = f" The reason given: {answer['reason']}" if answer.get("reason") else ""
            return f"The user did not approve this call, so it was not made.{reason}"
        if request["id"] in self._answered or self._is_due(request["id"]):
            return None
        return "The user approved this call, but it was interrupted and its result is lost."

    def _is_due(self, request_id: str) -> bool:
        answer = self._answers.get(request_id)
        return bool(answer and answer["approve"]) and request_id in self._fresh and request_id not in self._answered


def _since_the_model(items: Sequence[Json]) -> Iterable[Json]:
    """Return the approval responses after the last item that comes from the model."""
    for item in reversed(items):
        if item["type"] == "mcp_approval_response":
            yield item
        elif item["type"] in _OF_MODEL or (item["type"] == "message" and item["role"] == "assistant"):
            return


def check_approvals(items: Sequence[Json], tools: Iterable[Json]) -> None:
    """Raise a 400 unless each approval response follows its request, and the server of each approved call is declared.

    Args:
        items: the whole conversation, oldest first: the history and the new input.
        tools: the tools of the request.
    """
    requested: set[str] = set()
    answered: set[str] = set()
    for item in items:
        if item["type"] == "mcp_approval_request":
            requested.add(item["id"])
        elif item["type"] == "mcp_approval_response":
            request_id = item["approval_request_id"]
            if request_id not in requested:
                raise bad_request(f"No approval request found with id '{request_id}' before its answer.", "input")
            if request_id in answered:
                raise bad_request(f"The approval request '{request_id}' has been answered already.", "input")
            answered.add(request_id)
    labels = {tool["server_label"] for tool in tools if tool["type"] == "mcp"}
    for request in Approvals(items).to_make():
        if request["server_label"] not in labels:
            message = (
                f"A call of the MCP server '{request['server_label']}' was approved, but the request does not declare "
                "that server: send its tool again, with its authorization."
            )
            raise bad_request(message, "tools")
