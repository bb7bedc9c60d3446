"""The host's inference providers, and the mapping of their errors to API errors."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Protocol, runtime_checkable
from urllib.parse import urlsplit

from pydantic import BaseModel

from ..chat.adaptation.refusal import Refusal, RefusedError
from ..chat.inference import Extender, ModelServer, Receive
from ..core.errors import ApiError
from ..core.types import Json
from ..logs import get_logger
from ..model_server.errors import no_model, to_api_error
from ..model_server.whole_answer import in_one
from .allowed_models import may_use
from .chat_routing import ChatRouting
from .chat_store import unstored
from .model_lookups import ModelLookups
from .platform import ChatRequest, ModelNotFoundError, ModelTypeError, UnsupportedModelError

logger = get_logger(__name__)

_SUGGESTIONS: Final = 3


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
            raise no_model(await self._similar(request["model"]) or str(error)) from error
        except (ModelTypeError, ValueError, NotImplementedError) as error:
            refused = ApiError(400, f"The inference provider does not accept this request: {error}")
            raise RefusedError(refused, Refusal(400, str(error))) from error
        except Exception as error:
            raise self.to_api_error(error) from error
        chunks: AsyncGenerator[Any] = answer if request["stream"] else in_one(answer)
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
        if not may_use(table, model):
            raise no_model(str(ModelNotFoundError(model)))
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
            raise no_model(await self._similar(model) or str(ModelNotFoundError(model)))

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

    async def models(self) -> list[str]:
        """Return the names of the models that this user may ask, in order; none if the host cannot list them."""
        table = getattr(self._router, "routing_table", None)
        try:
            listed = await table.get_all_with_type("model") if table else []
        except Exception:
            logger.exception("could not list models")
            return []
        return sorted(each.identifier for each in listed if str(each.model_type) == "llm")

    async def health(self, seconds: float, /) -> dict[str, bool | None]:
        """Return by provider whether its model server answers in time; None if it does not report that."""
        table = getattr(self._router, "routing_table", None)
        providers = table.impls_by_provider_id if table else {}
        reporting = {name: each for name, each in providers.items() if hasattr(each, "health")}
        states = await asyncio.gather(*(_in_time(each, seconds) for each in reporting.values()))
        return dict(zip(reporting, states, strict=True))

    async def _listed(self, name: str) -> Any | None:
        """Return the host's entry of a model that this user may access."""
        table = getattr(self._router, "routing_table", None)
        return table and await table.get_object_by_identifier("model", name)

    def to_api_error(self, error: Exception) -> ApiError:
        """Return the API error for a provider's error: never a bare 500, never a secret of the provider."""
        return to_api_error(error)


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


async def _in_time(provider: Any, seconds: float) -> bool | None:
    try:
        async with asyncio.timeout(seconds):
            return await _is_healthy(provider)
    except TimeoutError:
        return False


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
