"""Limits and counts what clients ask of models through the host's own routes, such as `/v1/chat/completions`.

The routes stay the host's. If the user has limits, or usage is counted, a request is admitted first, and the usage is
read from the answer. A stream is asked for its usage; where the model server sends none, the tokens are estimated.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Any, Final

from fastapi import APIRouter
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from ..chat.estimate import estimated_bytes, tokens_of
from ..concurrency.offloading import in_thread
from ..core.errors import ApiError
from ..core.types import Json
from ..service.limited_requests import CountedRequest, LimitedRequests
from .plain_inference import failure_of
from .refusals import Refusal
from .replaced_routes import change_routes

_READ: Final = {"messages", "tools", "prompt"}
"""Fields of a request with a stream that the model reads."""
_USAGE: Final = '"usage":{'
"""Is in each frame that has a usage: the host writes its JSON without spaces."""

type Endpoint = Callable[..., Awaitable[Any]]


def limit_inference_routes(limited: LimitedRequests) -> None:
    """Make the host answer its routes for models within the limits of their users.

    Raises:
        RuntimeError: the host has no table of router factories.
    """

    def change(router: APIRouter) -> None:
        for route in router.routes:
            if isinstance(route, APIRoute) and "POST" in (route.methods or ()):
                # The route itself calls the second one; the host copies the first one to its application.
                route.endpoint = route.dependant.call = _limited(route.endpoint, limited)

    change_routes("inference", change)


def _limited(endpoint: Endpoint, limited: LimitedRequests) -> Endpoint:
    """Return an endpoint with the same parameter: the request, as the host has checked it."""

    @wraps(endpoint)
    async def answer(**parameters: Any) -> Any:
        [(name, request)] = parameters.items()
        try:
            counted = await limited.begin(request.model)
        except ApiError as error:
            return Refusal(error)
        if not counted.counts:
            counted.release()
            return await endpoint(**parameters)
        streams = getattr(request, "stream", None)
        wants_usage = not streams or bool((request.stream_options or {}).get("include_usage"))
        try:
            read = await in_thread(_read_tokens, request) if streams else 0
            result = await _answer(lambda asked: endpoint(**{name: asked}), request, wants_usage=wants_usage)
        except Exception as error:
            await counted.end(None, failure_of(error))
            raise
        except BaseException:
            counted.release()
            raise
        if isinstance(result, StreamingResponse):
            return _CountedStream(result, counted, read, wants_usage=wants_usage)
        shown = jsonable_encoder(result)
        await counted.end(shown.get("usage") if isinstance(shown, dict) else None)
        return JSONResponse(shown, headers=dict(counted.headers))

    return answer


async def _answer(ask: Callable[[Any], Awaitable[Any]], request: Any, *, wants_usage: bool) -> Any:
    """Return the host's answer; ask for the usage of a stream unless the model server refuses that."""
    if not wants_usage:
        options = {**(request.stream_options or {}), "include_usage": True}
        try:
            return await ask(request.model_copy(update={"stream_options": options}))
        except Exception as error:
            if "stream_options" not in str(error) and "include_usage" not in str(error):
                raise
    return await ask(request)


def _read_tokens(request: Any) -> int:
    """Return about how many tokens the model reads."""
    return tokens_of(estimated_bytes(request.model_dump(mode="json", include=_READ, exclude_none=True)))


class _CountedStream(StreamingResponse):
    """A stream of the host, of which the usage is counted at its end, also if the client goes away.

    Args:
        stream: the host's.
        counted: its request.
        read: about how many tokens the model reads.
        wants_usage: whether the client has asked for the usage.
    """

    def __init__(self, stream: StreamingResponse, counted: CountedRequest, read: int, *, wants_usage: bool) -> None:
        super().__init__(self._frames(stream.body_iterator), media_type=stream.media_type)
        self.headers.update(counted.headers)
        self._counted, self._read, self._wants_usage = counted, read, wants_usage
        self._written = 0
        self._usage: Json | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            estimated = {"prompt_tokens": self._read, "completion_tokens": self._written}
            await self._counted.end(self._usage or estimated)

    async def _frames(self, frames: AsyncIterable[Any]) -> AsyncGenerator[Any]:
        async for frame in frames:
            self._written += 1  # Servers send a chunk for each token.
            if _USAGE in frame and self._is_only_usage(frame) and not self._wants_usage:
                continue
            yield frame

    def _is_only_usage(self, frame: str) -> bool:
        """Note the usage of a frame, and return whether it has nothing else."""
        with suppress(ValueError):
            chunk = json.loads(frame.removeprefix("data: "))
            self._usage = chunk["usage"]
            return not chunk.get("choices")
        return False
