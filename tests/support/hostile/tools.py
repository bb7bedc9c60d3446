"""Requests whose tools, or what names them, multiply: each is small, and the work is their product."""

import json
from typing import Any, Final

from .attacker import Attacker, Attacks, client_error

ATTACKS: Final = Attacks()
MOST: Final = 20_000
SERVER: Final = "http://127.0.0.1:1/mcp"


def function(number: int) -> dict[str, Any]:
    """Return a function."""
    return {"type": "function", "name": f"f{number}"}


def listed(label: str, count: int) -> dict[str, Any]:
    """Return the list of an MCP server's tools, as a client sends it back."""
    tools = [{"name": f"tool-{number:06}", "input_schema": {}} for number in range(count)]
    return {"type": "mcp_list_tools", "server_label": label, "tools": tools}


def mcp(label: str, **more: Any) -> dict[str, Any]:
    """Return an MCP server that cannot be reached."""
    return {"type": "mcp", "server_label": label, "server_url": SERVER, **more}


NAMES: Final = [f"name-{number:06}" for number in range(MOST)]
QUESTION: Final = {"role": "user", "content": "x"}
CHOICE: Final = {"mode": "auto", "tools": [function(number % 1_024) for number in range(MOST)]}
REQUEST: Final = {"type": "mcp_approval_request", "server_label": "other", "name": "n", "arguments": "{}"}


@ATTACKS.add(
    allowed_functions={
        "tools": [function(number) for number in range(1_024)],
        "tool_choice": {"type": "allowed_tools", **CHOICE},
    },
    allowed_members={
        "tools": [{"type": "namespace", "name": "n", "description": "", "tools": [*map(function, range(1_024))]}],
        "tool_choice": {"type": "allowed_tools", **CHOICE},
    },
    approved_names={
        "input": [listed("a", 2_048), QUESTION],
        "tools": [mcp("a", require_approval={"never": {"tool_names": NAMES}, "always": {"tool_names": NAMES}})],
    },
    description={
        "input": [listed("a", 2_048), QUESTION],
        "tools": [mcp("a", server_description="x" * 500_000)],
    },
    domains={"tools": [{"type": "web_search", "filters": {"allowed_domains": [f"{each}.example" for each in NAMES]}}]},
    listed_tools={"input": [listed("a", MOST), QUESTION], "tools": [mcp("a")]},
    approvals={
        "input": [
            *(listed(f"a{number}", 1) for number in range(32)),
            *({**REQUEST, "id": f"mcpr_{number}"} for number in range(MOST - 33)),
            QUESTION,
        ],
        "tools": [mcp(f"a{number}") for number in range(32)],
    },
    hosted={"tools": [{"type": "web_search"}] * 1_024},
    members={
        "tools": [
            {"type": "namespace", "name": f"n{each}", "description": "", "tools": [*map(function, range(MOST))]}
            for each in range(5)
        ]
    },
    tool_searches={
        "input": [
            *(
                {"type": "additional_tools", "tools": [{"type": "tool_search", "description": str(number)}]}
                for number in range(500)
            ),
            QUESTION,
        ],
        "tools": [{**function(1), "description": "x" * 5_000_000, "defer_loading": True}],
    },
    headers={"tools": [mcp("a", headers={f"x-{number}": "x" for number in range(MOST)})]},
)
def tools_that_multiply(at: Attacker, case: dict[str, Any]) -> None:
    body = json.dumps({"model": "local/done", "input": "x", **case})
    client_error(at.wire.http.post("/responses", content=body, headers={"content-type": "application/json"}))
    at.others_turn()
