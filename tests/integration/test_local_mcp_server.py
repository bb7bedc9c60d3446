"""MCP servers of this machine, with the starter template as it is: allowed by one variable, and refused without it."""

from pathlib import Path

import pytest

from tests.support.mcp_server import McpServers
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.wire import Json, Wire, error_of, output_text

# The settings are read in the same way on both hosts: test_settings.py.
pytestmark = [pytest.mark.live, pytest.mark.one_host]

CALL = [reply(tool_call(0, "c1", "mcp__echo", '{"text": "from here"}')), reply(text("Done."))]


@pytest.mark.extended
@pytest.mark.parametrize("variable", [{"ALLOWED_NETWORKS": "loopback"}, {}], ids=["allowed", "refused"])
def test_starter_reaches_mcp_servers_of_this_machine_by_one_variable(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    upstream: Upstream,
    mcp: McpServers,
    tmp_path: Path,
    variable: dict[str, str],
) -> None:
    upstream.script("caller", CALL)
    tool = {"type": "mcp", "server_label": "mcp", "server_url": mcp.url(), "require_approval": "never"}
    request: Json = {"model": "local/caller", "input": "Call it.", "tools": [tool]}
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url, "ALLOWED_NETWORKS": "", **variable}
    with LiveStack(STARTER, env, tmp_path, host=host) as live, Wire(live) as wire:
        if not variable:
            error = error_of(wire.post(request), 424)
            assert "'fetch.allowed_networks'" in error["message"]
            assert "ALLOWED_NETWORKS" in error["message"]
            assert upstream.requests("caller") == []
            return
        response = wire.create(**request)
        [call] = [item for item in response["output"] if item["type"] == "mcp_call"]
        assert (call["status"], call["error"]) == ("completed", None)
        assert "from here" in call["output"]
        assert output_text(response) == "Done."
