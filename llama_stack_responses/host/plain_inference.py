"""The host's Inference API for requests that are not responses, as the host's own routes use it."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ValidationError

from ..concurrency.offloading import in_thread_if_large
from ..core.errors import ApiError, bad_request
from ..core.types import Json
from ..model_server.errors import no_model, to_api_error
from ..service.limited_requests import LimitedRequests
from .chat_store import unstored
from .platform import (
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    ModelNotFoundError,
    ModelTypeError,
    UnsupportedModelError,
    translate_exception,
)

_CALLS: Final[dict[str, tuple[type[BaseModel], str]]] = {
    "/v1/chat/completions": (ChatRequest, "openai_chat_completion"),
    "/v1/completions": (CompletionRequest, "openai_completion"),
    "/v1/embeddings": (EmbeddingsRequest, "openai_embeddings"),
}
"""By endpoint, the host's model of the request, and the method that answers it."""


class HostPlainInference:
    """Answers requests through the host's router, which checks which models the user may use.

    Args:
        router: the host's implementation of its Inference API.
        store_chat_completions: whether the router may record requests in the host's inference store.
    """

    _limited: LimitedRequests

    def __init__(self, router: Any, *, store_chat_completions: bool) -> None:
        self._router = router if store_chat_completions else unstored(router)

    def limit(self, limited: LimitedRequests) -> None:
        """Have the requests admitted and counted. Called before the first one."""
        self._limited = limited

    async def answer(self, endpoint: str, body: Json) -> Json:
        """Return the answer to a request of the current user, as `PlainInference` says."""
        kind, method = _CALLS[endpoint]
        try:
            request: Any = await in_thread_if_large(lambda: kind(**body), body)
        except ValidationError as error:
            raise _refused(error) from error
        with await self._limited.begin(request.model) as counted:
            try:
                answer: BaseModel = await getattr(self._router, method)(request)
            except Exception as error:
                failure = failure_of(error)
                await counted.end(None, failure)
                if failure is not error:  # it has the status of the host's own route
                    failure = failure.with_status(translate_exception(error).status_code)
                raise failure from error
            shown: Json = answer.model_dump(mode="json", exclude_none=True)
            await counted.end(shown.get("usage"))
            return shown


def failure_of(error: Exception) -> ApiError:
    """Return what an error of the host's Inference API means."""
    if isinstance(error, ModelNotFoundError | UnsupportedModelError):
        return no_model(str(error))
    if isinstance(error, ModelTypeError | ValueError | NotImplementedError):
        return ApiError(400, f"The inference provider does not accept this request: {error}")
    return to_api_error(error)


def _refused(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(each) for each in first["loc"][:3])
    return bad_request(f"Invalid '{place}': {first['msg']}.", place, "invalid_value")
