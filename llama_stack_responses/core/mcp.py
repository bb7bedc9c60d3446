"""MCP servers in a conversation: function names, the echoed tools, and approvals of calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, Literal
from urllib.parse import urlsplit

from .errors import bad_request
from .types import Json

Approval = Literal["always", "never"]

_LONGEST: Final = 64
"""Maximum characters of a function name that every model server accepts."""

_SECRETS: Final = ("authorization", "headers")

_PLAIN_PATH: Final = re.compile(r"(/([a-z][a-z_.-]{0,15}|v\d{1,2}))*/?")
"""Words and versions, such as `/api/v1/mcp`. Any other path may contain a secret that gives access to the server."""

_SAID: Final = frozenset({"reasoning", "function_call", "mcp_call", "mcp_approval_request"})
"""Items that come from the model, except messages."""


def qualified_name(server_label: str, name: str) -> str:
    """Return the name by which the model calls a server's tool: unique and stable.

    It is `label__name` if that is a valid, unambiguous function name; otherwise as much of it as fits, followed by a
    digest.
    """
    plain = f"{server_label}__{name}"
    fitting = re.sub("[^a-zA-Z0-9_-]", "_", plain)
    unambiguous = "__" not in server_label and not server_label.endswith("_")
    if fitting == plain and len(plain) <= _LONGEST and unambiguous:
        return plain
    digest = sha256(f"{server_label}\0{name}".encode()).hexdigest()[:10]
    return f"{fitting[: _LONGEST - len(digest) - 1]}-{digest}"


def echoed(tool: Json, require_approval: Approval = "always") -> Json:
    """Return a request's tool as the response repeats it.

    A function has a `description`, which may be null. An MCP server has its address without the path, and no secret.
    """
    if tool["type"] == "function":
        return {"description": None, **tool}
    if tool["type"] != "mcp":
        return tool
    shown = {name: value for name, value in tool.items() if name not in _SECRETS}
    if "server_url" in shown:
        shown["server_url"] = _without_path(shown["server_url"])
    return {"allowed_tools": None, "headers": None, "require_approval": require_approval, **shown}


def holds_secrets(tool: Json) -> bool:
    """Return whether a request's tool contains, or may contain, secrets, which must not be stored in plain text."""
    if tool["type"] != "mcp":
        return False
    url = urlsplit(tool.get("server_url") or "")
    return any(tool.get(name) for name in _SECRETS) or bool(url.query) or not _PLAIN_PATH.fullmatch(url.path)


def secrets_apart(tools: Sequence[Json]) -> tuple[list[Json], dict[str, Json]]:
    """Split the secrets of MCP servers from the tools, by position in the list; `secrets_back` is the inverse."""
    hidden = (*_SECRETS, "server_url")
    mcp = {str(position): tool for position, tool in enumerate(tools) if tool["type"] == "mcp"}
    secrets = {position: {name: tool[name] for name in hidden if name in tool} for position, tool in mcp.items()}
    left = [{name: tool[name] for name in tool if tool["type"] != "mcp" or name not in hidden} for tool in tools]
    return left, {position: secret for position, secret in secrets.items() if secret}


def secrets_back(tools: Sequence[Json], secrets: Mapping[str, Json]) -> list[Json]:
    """Return the tools with their secrets restored."""
    return [tool | secrets.get(str(position), {}) for position, tool in enumerate(tools)]


def _without_path(url: str) -> str:
    """Return the URL with the part after the host redacted, since it often grants access."""
    parts = urlsplit(url)
    rest = "/<redacted>" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{rest}"


def error_text(error: Json) -> str:
    """Return the text of the `error` of an `mcp_call`, for the model."""
    if error["type"] != "mcp_tool_execution_error":
        return str(error["message"])
    content = error["content"]
    parts = content if isinstance(content, list) else [content]
    return "\n".join(str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in parts)


class Approvals:
    """The calls that needed approval, and their outcome.

    Args:
        items: the conversation, oldest first.
    """

    def __init__(self, items: Sequence[Json]) -> None:
        self._requests = {item["id"]: item for item in items if item["type"] == "mcp_approval_request"}
        answers = [item for item in items if item["type"] == "mcp_approval_response"]
        self._answers: Mapping[str, Json] = {item["approval_request_id"]: item for item in answers}
        self._made = {
            item.get("approval_request_id") for item in items if item["type"] in ("mcp_call", "function_call")
        }
        self._fresh = {item["approval_request_id"] for item in _since_the_model(items)}

    def to_make(self) -> list[Json]:
        """Return the requests that were approved since the model's last item, in the order of the requests."""
        return [request for request in self._requests.values() if self._is_to_be_made(request["id"])]

    def refusal(self, request: Json) -> str | None:
        """Return what the model is shown for a call that was not made; None if its result is elsewhere."""
        answer = self._answers.get(request["id"])
        if answer is None:
            return "The user has not approved or refused this call, so it was not made."
        if not answer["approve"]:
            reason = f" The reason given: {answer['reason']}" if answer.get("reason") else ""
            return f"The user did not approve this call, so it was not made.{reason}"
        if request["id"] in self._made or self._is_to_be_made(request["id"]):
            return None
        return "The user approved this call, but it was interrupted and its result is lost."

    def _is_to_be_made(self, request_id: str) -> bool:
        answer = self._answers.get(request_id)
        return bool(answer and answer["approve"]) and request_id in self._fresh and request_id not in self._made


def _since_the_model(items: Sequence[Json]) -> Iterable[Json]:
    """Return the approval responses after the last item that comes from the model."""
    for item in reversed(items):
        if item["type"] == "mcp_approval_response":
            yield item
        elif item["type"] in _SAID or (item["type"] == "message" and item["role"] == "assistant"):
            return


def check_approvals(items: Sequence[Json], tools: Iterable[Json]) -> None:
    """Raise a 400 unless each approval response follows its request, and the server of each approved call is declared.

    Args:
        items: the whole conversation, oldest first: the history and the new input.
        tools: the tools of the request.
    """
    asked: set[str] = set()
    answered: set[str] = set()
    for item in items:
        if item["type"] == "mcp_approval_request":
            asked.add(item["id"])
        elif item["type"] == "mcp_approval_response":
            request_id = item["approval_request_id"]
            if request_id not in asked:
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
