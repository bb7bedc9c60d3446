"""An MCP server on stdin and stdout with one tool, `lookup`, for a client that starts such servers itself."""

import json
import sys

TOOL = {
    "name": "lookup",
    "description": "Looks a word up.",
    "inputSchema": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}


def result(method: str, params: dict) -> dict:
    """What a request is answered with."""
    if method == "initialize":
        server = {"name": "dictionary", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        word = params["arguments"]["word"]
        return {"content": [{"type": "text", "text": f"{word} is a word of {len(word)} letters."}], "isError": False}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result(message["method"], message.get("params", {}))}
        print(json.dumps(answer), flush=True)
