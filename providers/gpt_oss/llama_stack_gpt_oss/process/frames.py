"""The protocol between the engine process and its clients. Each line is a JSON object with one of these shapes:

to the engine
    {"generate": {"ids", "prompt", "params", "grammar"}}     see Request
    {"cancel": [id, ...]}
    {"metrics": tag}
from the engine
    {"loading": {"bytes_done", "bytes_total", "layers_done", "layers_total",
                 "warm_up_steps_done", "warm_up_steps_total"}}
    {"ready": {"pid", "context", "pages"}}
    {"failed": sentence}                                      it cannot serve, and ends
    {"updates": [[id, token, logprob, top, finish, cached], ...]}
    {"refused": {"ids", "kind", "message"}}                   kind: queue_full, request
    {"metrics": {...}, "tag"}                                 see Metrics
"""

import json
from dataclasses import asdict
from typing import Any, Final

from ..engine.engine import Request, Update
from ..engine.sequence import Params, Sampled

QUEUE_FULL: Final = "queue_full"
BAD_REQUEST: Final = "request"


def line(frame: dict[str, Any]) -> bytes:
    """Encode a frame."""
    return json.dumps(frame, separators=(",", ":")).encode() + b"\n"


def pack_request(request: Request) -> dict[str, Any]:
    params = {**asdict(request.params), "stop_ids": sorted(request.params.stop_ids)}
    return {"ids": request.ids, "prompt": request.prompt, "params": params, "grammar": request.grammar}


def unpack_request(raw: dict[str, Any]) -> Request:
    params = Params(**{**raw["params"], "stop_ids": frozenset(raw["params"]["stop_ids"])})
    return Request(tuple(raw["ids"]), raw["prompt"], params, raw["grammar"])


def pack_update(update: Update) -> list[Any]:
    sampled = update.sampled
    return [update.id, sampled.token, sampled.logprob, sampled.top, update.finish, update.cached]


def unpack_update(raw: list[Any]) -> Update:
    name, token, logprob, top, finish, cached = raw
    return Update(name, Sampled(token, logprob, tuple((int(i), float(p)) for i, p in top)), finish, cached)
