"""Requests within the limits that hold as many items, parts and tools as they may."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tests.support.wire import Json

from .attacker import Attacker, Attacks, client_error

ATTACKS: Final = Attacks()
ITEMS: Final = 20_000


def call(number: int) -> list[Json]:
    """Return a call and its output."""
    function_call = {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}
    return [function_call, {"type": "function_call_output", "call_id": f"c{number}", "output": "x"}]


PARTS: Final = [{"type": "input_text", "text": "x"}] * 100
MESSAGES: Final = [{"role": "user", "content": [{"type": "input_text", "text": "x" * 30}]}] * ITEMS
CALLS: Final = [item for number in range(ITEMS // 2) for item in call(number)]
ANSWERS: Final = [{"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]}] * ITEMS
REASONING: Final = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}] * 2}] * ITEMS
MANY_PARTS: Final = [{"role": "user", "content": PARTS}] * 400
PROPERTIES: Final = {f"p{number}": {"type": "string"} for number in range(900)}
TOOLS: Final = [
    {"type": "function", "name": f"f{number}", "parameters": {"type": "object", "properties": PROPERTIES}}
    for number in range(100)
]


@ATTACKS.add(
    messages=("/responses", {"input": MESSAGES}, 2),
    calls=("/responses", {"input": CALLS}, 1),
    answers=("/responses", {"input": ANSWERS}, 1),
    reasoning=("/responses", {"input": REASONING}, 1),
    parts=("/responses", {"input": MANY_PARTS}, 1),
    tools=("/responses", {"input": "x", "tools": TOOLS}, 1),
    counted=("/responses/input_tokens", {"input": MESSAGES}, 1),
    compacted=("/responses/compact", {"input": MESSAGES}, 1),
    conversation=("/conversations", {"items": MANY_PARTS[:20]}, 2),
    invalid=("/responses", {"input": [*MESSAGES[1:], {"type": "unknown"}]}, 1),
)
def large_requests(at: Attacker, case: tuple[str, dict[str, Any], int]) -> None:
    """The third part of a case is how many are sent at a time."""
    path, body, count = case
    sent = json.dumps({"model": "local/done", **body} if path != "/conversations" else body)
    headers = {"content-type": "application/json"}
    with ThreadPoolExecutor(count) as users:
        asking = [users.submit(at.wire.http.post, path, content=sent, headers=headers) for _ in range(count)]
        at.others_turn()
        for each in asking:
            client_error(each.result())
