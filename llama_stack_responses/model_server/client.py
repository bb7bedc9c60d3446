"""A model server that is asked by its URL, without a host."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletion
from pydantic import ValidationError

from llama_stack_openai_chat.chunks import chat_chunk, whole
from llama_stack_openai_chat.config import OpenAIChatConfig as Access
from llama_stack_openai_chat.config import check_header
from llama_stack_openai_chat.errors import NoAnswerError
from llama_stack_openai_chat.json_encoding import dumps
from llama_stack_openai_chat.moderation import is_of_content
from llama_stack_openai_chat.pool import Pool
from llama_stack_openai_chat.upstream import Upstream

from ..core.errors import ApiError
from ..core.types import Json
from .errors import to_api_error
from .whole_answer import in_one

__all__ = ["WAIT", "Access", "ModelServerClient", "access_of"]

_CHAT: Final = "/chat/completions"
WAIT: Final = "if it loads a model or is slow, wait, or raise the time limit"
"""What is said of an answer that takes too long."""
_CHECK_URL: Final = "check the URL, which usually ends in /v1"


def access_of(settings: Mapping[str, Any]) -> Access:
    """Return the URL, the key and the network settings of a model server.

    Raises:
        ValueError: one of them is invalid; the message says which.
    """
    try:
        access = Access(**settings)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ValueError(first["msg"].removeprefix("Value error, ")) from None
    if access.api_key:
        check_header(access.api_key.get_secret_value())
    return access


class ModelServerClient:
    """A client of one model server, which asks as the provider `remote::openai-chat` does.

    Args:
        access: its URL, key and network settings.
        key_advice: what to do if it refuses the key, as the end of a sentence.

    Attributes:
        url: its URL, up to /v1.
    """

    def __init__(self, access: Access, key_advice: str) -> None:
        self.url = access.base_url
        self._seconds = access.network.timeout.read
        self._key_advice = key_advice
        self._upstream = Upstream(access, Pool(access))

    async def models(self) -> dict[str, int | None]:
        """Return the models that the server lists, with the tokens of their contexts as far as it says them.

        Raises:
            ApiError: it lists none; the message is one sentence that says what to do.
        """
        try:
            return await self._upstream.models()
        except (openai.APIError, ValueError) as error:
            raise self.to_api_error(error) from error

    async def open_stream(self, request: Json) -> AsyncGenerator[Any]:
        """Send a chat request, and return the chunks of its answer, as `Inference` of `chat/inference.py`.

        The stream of a streamed answer has `done`: whether the server has ended it with `[DONE]`.
        """
        body = dumps(request)
        try:
            if request["stream"]:
                return await self._upstream.open_stream(_CHAT, body, chat_chunk)
            return in_one(await self._upstream.post(_CHAT, body, build=partial(whole, ChatCompletion)))
        except (openai.APIError, ValueError) as error:
            raise self.to_api_error(error) from error

    def to_api_error(self, error: Exception) -> ApiError:
        """Return an error as `chat/inference.py` has it, with what to do about a server that cannot be asked."""
        why = self._trouble(error)
        return ApiError(502, why) if why else to_api_error(error)

    async def close(self) -> None:
        """Close the connections."""
        await self._upstream.close()
        # The event loop closes an aborted connection in its next turn, and one with TLS in the one after.
        for _ in range(2):
            await asyncio.sleep(0)

    def _trouble(self, error: Exception) -> str | None:
        """Return why the server cannot be asked anything; None if this error is about one request."""
        match error:
            case openai.AuthenticationError() | openai.PermissionDeniedError() if not is_of_content(error):
                return f"The model server at {self.url} refuses the key ({error.status_code}): {self._key_advice}."
            case NoAnswerError():
                return f"{error.message.partition(': check ')[0].rstrip('.')}: {_CHECK_URL}."
            case openai.NotFoundError() if "model" not in str(error.message).lower():
                return f"There is no chat API at {self.url} (status 404): {_CHECK_URL}."
            case openai.APITimeoutError():
                tls = ", or check whether the URL begins with http://" if self.url.startswith("https:") else ""
                return f"The model server at {self.url} does not answer within {self._seconds:g} seconds: {WAIT}{tls}."
            case openai.APIConnectionError():
                return self._unreachable(error.__cause__ or error)
        return None

    def _unreachable(self, cause: BaseException) -> str:
        address = urlsplit(self.url).netloc
        match cause:
            case ssl.SSLCertVerificationError():
                why = f"The certificate of {address} is not valid ({cause.verify_message})"
                return f"{why}: name the file with its authority with --ca, or 'network.tls.verify' of the provider."
            case ssl.SSLError():
                return f"There is no TLS at {address} ({cause.reason}): check whether the URL begins with http://."
            case socket.gaierror():
                return f"The name of {address} cannot be found: check the URL."
            case ConnectionRefusedError():
                return f"Nothing answers at {address}: start the model server, or check the URL."
        return f"The connection to {address} failed ({_words(cause)}): check the URL, and that the server runs."


def _words(cause: BaseException) -> str:
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return " ".join(str(text).split())[:200]
