"""The host's inference providers, and the mapping of their errors to API errors."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol, runtime_checkable
from urllib.parse import urlsplit

import httpx2
import openai
from pydantic import BaseModel

from llama_stack_openai_chat.errors import from_answer, reported, status_in, words_of

from ..chat.adaptation.refusal import Refusal, RefusedError, places_of, plain
from ..chat.context_errors import says_too_long, too_long
from ..chat.inference import Extender, ModelServer, Receive
from ..core.errors import ApiError, TooLongError, UnusableAnswerError
from ..core.types import Json
from ..logs import get_logger
from .chat_routing import ChatRouting
from .chat_store import unstored
from .model_lookups import ModelLookups
from .platform import ChatRequest, ModelNotFoundError, ModelTypeError, UnsupportedModelError

logger = get_logger(__name__)

_INVALID_ANSWER: Final = "invalid_answer"
"""The code with which `remote::openai-chat` reports an answer of another kind than it asked for."""

_OTHER_REASONS: Final = frozenset({401, 403, 404, 408, 429})
"""Statuses that are never about the length of a request."""

_NOT_OF_REQUEST: Final = frozenset({401, 402, 403, 408, 429, 502, 503, 504})
"""Statuses that no change of a request helps against."""

_UNREADABLE_OUTPUT: Final = ("Invalid diff: ", "Failed to parse input at pos ")
"""The starts of llama.cpp's errors for an output that its parser first read in another way, or not at all; they quote
it."""

_UNREADABLE: Final = (
    "llama.cpp could not read the model's output, which does not keep to the form of its chat template. Try again, "
    "without tools or without 'text.format', or use a larger model."
)

_SHOWN_CHARACTERS: Final = 1_000
"""Characters of the text of a failure that are passed on."""

_RETRY_AFTER_CHARACTERS: Final = 64
"""Characters of a retry-after header that are read."""

_SUGGESTIONS: Final = 3
_NOT_THERE: Final = (
    "The inference provider does not know this model, or its URL in the stack's configuration is wrong: "
    "its answer is '{}'."
)


@dataclass(frozen=True, slots=True)
class _Choice:
    delta: Any
    finish_reason: str | None
    logprobs: Any


@dataclass(frozen=True, slots=True)
class _Chunk:
    id: str
    model: str
    choices: list[_Choice]
    usage: Any
    timings: Any
    service_tier: str | None


@runtime_checkable
class CountsTokens(Protocol):
    """A provider whose model server counts tokens, such as `remote::openai-chat`."""

    async def count_chat_tokens(self, params: Any) -> int | None:
        """Return the prompt tokens of a chat request, or None if the model server does not report them.

        Args:
            params: a chat request with the provider's name of the model.
        """
        ...


class HostInference:
    """Chat completions through the host's router.

    Args:
        router: the host's implementation of its Inference API.
        store_chat_completions: whether the router may record requests in the host's inference store.
        shortcuts: whether it is remembered which models the host does not list.
        refresh: lists the models of providers again before a model is refused; it returns whether it did.
    """

    def __init__(
        self,
        router: Any,
        *,
        store_chat_completions: bool,
        shortcuts: bool = True,
        refresh: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._refresh = refresh
        self._router = router if store_chat_completions else unstored(router)
        self._routing = ChatRouting(self._router, ModelLookups() if shortcuts else None)

    async def open_stream(
        self, request: dict[str, Any], receive: Receive | None = None, extender: Extender | None = None
    ) -> AsyncGenerator[Any]:
        """Send the request. Return when the provider has answered; for a stream, when its status line has arrived.

        The request is not validated again: the host's models accept fewer values than OpenAI's clients send. Chunks
        that a provider passes to `receive` or `extender` go past the router.
        """
        try:
            answer: Any = await self._routed(request, receive, extender)
        except (ModelNotFoundError, UnsupportedModelError) as error:
            raise _no_model(await self._similar(request["model"]) or str(error)) from error
        except (ModelTypeError, ValueError, NotImplementedError) as error:
            refused = ApiError(400, f"The inference provider does not accept this request: {error}")
            raise RefusedError(refused, Refusal(400, str(error))) from error
        except Exception as error:
            raise self.to_api_error(error) from error
        chunks: AsyncGenerator[Any] = answer if request["stream"] else _in_one(answer)
        return chunks

    async def _routed(self, request: Json, receive: Receive | None, extender: Extender | None) -> Any:
        try:
            return await self._routing.route(request, receive, extender)
        except ModelNotFoundError:
            if self._refresh is None or not await self._refresh():
                raise
        return await self._routing.route(request, receive, extender)

    async def check_model(self, model: str) -> None:
        """Refuse a model that the router would refuse: an unlisted name without a provider's prefix."""
        table = getattr(self._router, "routing_table", None)
        provider, slash, _ = model.partition("/")
        if table is None or (slash and provider in table.impls_by_provider_id):
            return
        try:
            known = await table.get_object_by_identifier("model", model)
            if known is None and self._refresh is not None and await self._refresh():
                known = await table.get_object_by_identifier("model", model)
        except Exception:
            logger.exception("could not list models")
            return
        if known is None:
            raise _no_model(await self._similar(model) or str(ModelNotFoundError(model)))

    async def _similar(self, model: str) -> str | None:
        """Return an error with the models that have this name at their providers; None if there are none."""
        try:
            listed = await self._router.routing_table.get_all_with_type("model")
        except Exception:  # noqa: BLE001 - a stack that cannot list them has no suggestion
            return None
        same = sorted(each.identifier for each in listed if each.provider_resource_id == model)[:_SUGGESTIONS]
        names = " or ".join(f"'{each}'" for each in same if each != model)
        return f"Model '{model}' not found. Did you mean {names}?" if names else None

    async def count_tokens(self, request: dict[str, Any]) -> int | None:
        """Return the tokens of a request's prompt, or None if the model's provider cannot count them."""
        try:
            model = await self._listed(request["model"])
            if model is None:
                return None
            provider = self._router.routing_table.impls_by_provider_id.get(model.provider_id)
            if not isinstance(provider, CountsTokens):
                return None
            return await provider.count_chat_tokens(
                ChatRequest.model_construct(**{**request, "model": model.provider_resource_id})
            )
        except Exception as error:  # noqa: BLE001 - the count is an estimate then
            logger.warning("could not count the tokens of a request: %s", self.to_api_error(error))
            return None

    async def context_length(self, model: str) -> int | None:
        """Return the model's context length that the provider reported to the host, or None."""
        try:
            listed = await self._listed(model)
        except Exception:
            logger.exception("could not list models")
            return None
        length = listed.metadata.get("context_length") if listed else None
        return length if isinstance(length, int) and length > 0 else None

    async def server_of(self, model: str) -> ModelServer | None:
        """Return the model server of a model, as the configuration of its provider has it."""
        try:
            listed = await self._listed(model)
        except Exception:
            logger.exception("could not list models")
            listed = None
        table = getattr(self._router, "routing_table", None)
        name = listed.provider_id if listed else model.partition("/")[0]
        provider = table and table.impls_by_provider_id.get(name)
        return _server(name, provider) if provider else None

    async def is_reachable(self) -> bool | None:
        """Return whether the model server of at least one provider answers; None if no provider reports it."""
        table = getattr(self._router, "routing_table", None)
        providers = table.impls_by_provider_id.values() if table else ()
        tasks = [asyncio.create_task(_is_healthy(each)) for each in providers if hasattr(each, "health")]
        states: set[bool | None] = set()
        try:
            for done in asyncio.as_completed(tasks):
                states.add(await done)
                if True in states:
                    return True
        finally:
            for task in tasks:
                task.cancel()
        return False if False in states else None

    async def _listed(self, name: str) -> Any | None:
        """Return the host's entry of a model that this user may access."""
        table = getattr(self._router, "routing_table", None)
        return table and await table.get_object_by_identifier("model", name)

    def to_api_error(self, error: Exception) -> ApiError:
        """Return the API error for a provider's error: never a bare 500, never a secret of the provider."""
        match error:
            case ApiError():
                return error
            case openai.APIError() if _message(error).startswith(_UNREADABLE_OUTPUT):
                return UnusableAnswerError(_UNREADABLE)
            case openai.APIStatusError():
                return _refused(_from_status(error), error, error.status_code)
            case openai.APITimeoutError() | TimeoutError():
                return ApiError(504, "The inference provider did not answer in time. Try again, or raise its timeout.")
            case openai.APIConnectionError() | ConnectionError():
                return _unreachable(error)
            case openai.APIError():
                return _refused(_from_event(error), error, status_in(error.body) or 400)
            case ValueError():
                return ApiError(502, "The inference provider sent an event that is not JSON.")
        return _of_transport(error)


def _server(name: str, provider: Any) -> ModelServer:
    """Return what the configuration of a provider says about its model server."""
    config = getattr(provider, "__provider_config__", None) or getattr(provider, "config", None)
    url = str(getattr(config, "base_url", None) or getattr(config, "url", None) or "")
    spec = getattr(provider, "__provider_spec__", None)
    # Secrets are masked in this form of it.
    shown = config.model_dump_json() if isinstance(config, BaseModel) else repr(type(provider))
    return ModelServer(
        name,
        str(getattr(spec, "provider_type", "")),
        _address(url),
        hashlib.sha256(shown.encode()).hexdigest()[:16],
    )


def _address(url: str) -> str:
    """Return the host and port of a URL; empty if it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return ""
    return f"{parts.hostname}:{port}" if parts.hostname else ""


async def _is_healthy(provider: Any) -> bool | None:
    """Return whether a provider reports that its model server answers; None if it does not report that."""
    try:
        status = str((await provider.health())["status"])
    except NotImplementedError:
        return None
    except Exception as error:  # noqa: BLE001 - any error means an unhealthy provider
        logger.debug("the health of a provider cannot be read: %s", error)
        return False
    return None if status == "Not Implemented" else status == "OK"


async def _in_one(completion: Any) -> AsyncGenerator[Any]:
    """Yield a completion as the single chunk of a stream."""
    if not completion.choices and (error := reported(completion.to_dict())):
        raise from_answer(httpx2.Request("POST", ""), error)
    if not completion.choices:
        raise ApiError(502, "The inference provider's answer has no choices.")
    choices = [_Choice(each.message, each.finish_reason, each.logprobs) for each in completion.choices]
    timings, tier = (getattr(completion, name, None) for name in ("timings", "service_tier"))
    yield _Chunk(completion.id, completion.model, choices, completion.usage, timings, tier)


def _refused(result: ApiError, error: openai.APIError, status: int) -> ApiError:
    """Return the error with what the model server said, if a change of the request may help."""
    if isinstance(result, TooLongError) or status in _NOT_OF_REQUEST or error.code == _INVALID_ANSWER:
        return result
    code = next((str(each) for each in (error.code, error.type) if each), "")
    places = places_of(error.body, words_of(error.body) or error.message)
    return RefusedError(result, Refusal(status, _shown(_message(error)), code, places))


def _from_status(error: openai.APIStatusError) -> ApiError:
    message = _message(error)
    if error.status_code not in _OTHER_REASONS and error.code != _INVALID_ANSWER and _is_too_long(error):
        return too_long(message)
    match error.status_code:
        case 401 | 403:
            # The provider's text may quote the key.
            return ApiError(
                502,
                f"The inference provider refused the credentials it was given ({error.status_code}). "
                "Check the provider's API key in the stack's configuration.",
            )
        case 404:
            return _no_model(message if "model" in message.lower() else _NOT_THERE.format(message))
        case 408:
            return ApiError(504, f"The inference provider timed out: {message}")
        case 402 | 429 as status:
            usual = "insufficient_quota" if status == 402 else "rate_limit_exceeded"
            return ApiError(429, message, code=_code(error) or usual, retry_after=_retry_after(error))
        case status if status >= 500 and error.code == _INVALID_ANSWER:
            return ApiError(502, message)
        case status if status >= 500:
            why = _shown(message)
            return ApiError(502, f"The inference provider failed ({status}): {why}", retry_after=_retry_after(error))
    return ApiError(400, message, code=_code(error))


def _from_event(error: openai.APIError) -> ApiError:
    """Return the API error for an error event in the provider's stream."""
    message = _message(error)
    if error.code == "rate_limit_exceeded" or str(error.type).startswith("rate_limit") or status_in(error.body) == 429:
        return ApiError(429, message, code="rate_limit_exceeded")
    if _is_too_long(error):
        return too_long(message)
    return ApiError(502, f"The inference provider failed in the middle of its answer: {_shown(message)}")


def _of_transport(error: Exception) -> ApiError:
    """Return the API error for an error of a provider's HTTP library, identified by the names of its base classes."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "TimeoutException" in names:
        return ApiError(504, "The inference provider did not answer in time.")
    if names & {"TransportError", "HTTPError", "ClientError"}:
        return _unreachable(error)
    logger.error("unexpected error from the inference provider", exc_info=error)
    return ApiError(502, f"The inference provider failed ({type(error).__name__}). The server's log has the details.")


def _unreachable(error: Exception) -> ApiError:
    cause = error.__cause__ or error
    return ApiError(
        502,
        f"The connection to the inference provider failed ({type(cause).__name__}). "
        "Check that the model server is running and that the stack's configuration has its URL.",
    )


def _no_model(message: str) -> ApiError:
    return ApiError(404, message, param="model", code="model_not_found")


def _is_too_long(error: openai.APIError) -> bool:
    return says_too_long(_message(error), error.code, error.type)


def _message(error: openai.APIError) -> str:
    return plain(words_of(error.body) or error.message)


def _shown(message: str) -> str:
    """Return what a client reads of the text of a failure."""
    return message if len(message) <= _SHOWN_CHARACTERS else f"{message[:_SHOWN_CHARACTERS]}..."


def _code(error: openai.APIError) -> str | None:
    """Return the provider's code if it is a word, like OpenAI's; many servers repeat the status there."""
    return error.code if isinstance(error.code, str) and re.fullmatch("[a-z_]+", error.code) else None


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Return the retry-after header in seconds. It may hold a date instead (RFC 9110, section 10.2.3)."""
    milliseconds = error.response.headers.get("retry-after-ms", "")[:_RETRY_AFTER_CHARACTERS]
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]+)?", milliseconds):
        return float(milliseconds) / 1000
    value = error.response.headers.get("retry-after", "")[:_RETRY_AFTER_CHARACTERS]
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", value):
        return float(value)
    try:
        moment = parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return float(max(0, math.ceil(moment - time.time())))
