"""A server on azure-ai-agentserver-responses, which brings the API and leaves the model to its handler.

    python agentserver_app.py PORT MODEL_SERVER       # in the environment of that package; the address ends with /v1

It runs in that environment, which has nothing of this project. Its telemetry, which prints each log line as JSON, is
turned off.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from azure.ai.agentserver.responses import ResponsesAgentServerHost, ResponsesServerOptions, TextResponse

PORT, MODEL_SERVER = int(sys.argv[1]), sys.argv[2]
OPTIONS = ResponsesServerOptions(resilient_background=True)
app = ResponsesAgentServerHost(prefix="/v1", options=OPTIONS, configure_observability=None)
sessions: list[aiohttp.ClientSession] = []


async def said(model: str, messages: list[dict[str, str]]) -> AsyncIterator[str]:
    """Yield what the model says."""
    if not sessions:
        sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 20))
    body = {"model": model, "stream": True, "messages": messages}
    async with sessions[0].post(f"{MODEL_SERVER}/chat/completions", json=body) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line[6:])["choices"]
            if choices and (content := choices[0]["delta"].get("content")):
                yield content


@app.response_handler
async def handle(request: Any, context: Any, _cancellation: asyncio.Event) -> TextResponse:
    """Answer with what the model says to the input."""
    text = await context.get_input_text()
    return TextResponse(context, request, text=said(request["model"], [{"role": "user", "content": text}]))


if __name__ == "__main__":
    app.run(host="127.0.0.1", port=PORT)
