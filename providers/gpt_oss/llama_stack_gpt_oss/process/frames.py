"""The protocol between the engine process and its clients. Each line is a JSON object with one of these shapes:

to the engine
    {"generate": {"ids", "prompt", "params", "grammar"}}     see Request; params: without those that have their default
    {"cancel": [id, ...]}
    {"metrics": tag}
from the engine
    {"loading": {...}}                                        see Progress
    {"ready": {"pid", "context", "pages"}}                      pages: number of blocks of the KV cache
    {"failed": sentence}                                      it cannot serve, or no longer, and ends
    {"updates": [[id, token, logprob, top, finish, cached], ...]}
    {"refused": {"ids", "kind", "message"}}                   kind: queue_full, request
    {"metrics": {...}, "tag"}                                 see Metrics

A client and the engine that it finds may be of different versions, around an upgrade. So a default never changes, a
request is refused only if it uses a parameter that the engine does not know, and unknown metrics and parts of the
progress are ignored.
"""

import json
from dataclasses import fields
from typing import Any, Final

from ..engine.engine import Metrics, Request, Update
from ..engine.errors import RequestError
from ..engine.progress import Progress
from ..engine.sampling_params import SamplingParams
from ..engine.sequence import Sampled

QUEUE_FULL: Final = "queue_full"
BAD_REQUEST: Final = "request"
DEFAULTS: Final = {field.name: field.default for field in fields(SamplingParams) if field.init}
PROGRESS: Final = {field.name for field in fields(Progress)}
METRICS: Final = {field.name for field in fields(Metrics)}


def line(frame: dict[str, Any]) -> bytes:
    """Encode a frame."""
    return json.dumps(frame, separators=(",", ":")).encode() + b"\n"


def pack_request(request: Request) -> dict[str, Any]:
    params = {name: value for name in DEFAULTS if (value := getattr(request.params, name)) != DEFAULTS[name]}
    params["stop_ids"] = sorted(request.params.stop_ids)
    if request.params.unpenalised:
        params["unpenalised"] = sorted(request.params.unpenalised)
    return {"ids": request.ids, "prompt": request.prompt, "params": params, "grammar": request.grammar}


def unpack_request(raw: dict[str, Any]) -> Request:
    """Raise RequestError if a parameter is unknown."""
    if unknown := sorted(raw["params"].keys() - DEFAULTS):
        names = ", ".join(unknown)
        raise RequestError(
            f"The gpt-oss engine is of an older version and does not know {names}: restart all servers that share it"
        )
    params = dict(raw["params"])
    params |= {name: frozenset(params.get(name, ())) for name in ("stop_ids", "unpenalised")}
    params["logit_bias"] = tuple((token, bias) for token, bias in params.get("logit_bias", ()))
    return Request(tuple(raw["ids"]), raw["prompt"], SamplingParams(**params), raw["grammar"])


def pack_update(update: Update) -> list[Any]:
    sampled = update.sampled
    return [update.id, sampled.token, sampled.logprob, sampled.top, update.finish, update.cached]


def unpack_update(raw: list[Any]) -> Update:
    name, token, logprob, top, finish, cached = raw
    return Update(name, Sampled(token, logprob, tuple((int(i), float(p)) for i, p in top)), finish, cached)


def unpack_metrics(raw: dict[str, Any]) -> Metrics:
    return Metrics(**{name: value for name, value in raw.items() if name in METRICS})


def unpack_progress(raw: dict[str, Any]) -> Progress:
    return Progress(**{name: value for name, value in raw.items() if name in PROGRESS})
