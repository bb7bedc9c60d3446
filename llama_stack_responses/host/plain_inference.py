"""The host's Inference API for requests that are not responses, as the host's own routes use it."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ValidationError

from ..concurrency.offloading import in_thread_if_large
from ..core.errors import ApiError, bad_request
from ..core.types import Json
from ..model_server.errors import no_model, to_api_error
from .platform import (
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    ModelNotFoundError,
    ModelTypeError,
    UnsupportedModelError,
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
    """

    def __init__(self, router: Any) -> None:
        self._router = router

    async def answer(self, endpoint: str, body: Json) -> Json:
        """Return the answer to a request of the current user, as `PlainInference` says."""
        kind, method = _CALLS[endpoint]
        try:
            request = await in_thread_if_large(lambda: kind(**body), body)
        except ValidationError as error:
            raise _refused(error) from error
        try:
            answer: BaseModel = await getattr(self._router, method)(request)
        except (ModelNotFoundError, UnsupportedModelError) as error:
            raise no_model(str(error)) from error
        except (ModelTypeError, ValueError, NotImplementedError) as error:
            raise ApiError(400, f"The inference provider does not accept this request: {error}") from error
        except Exception as error:
            raise to_api_error(error) from error
        shown: Json = answer.model_dump(mode="json", exclude_none=True)
        return shown


def _refused(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(each) for each in first["loc"][:3])
    return bad_request(f"Invalid '{place}': {first['msg']}.", place, "invalid_value")
