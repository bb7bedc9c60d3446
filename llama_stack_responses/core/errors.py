"""Errors in OpenAI's terms.

`ApiError` is the only exception that crosses the layers. The code that detects a problem chooses the HTTP status, type,
code and parameter that OpenAI would report; the wire layer writes them. Any other exception that reaches the wire layer
is a bug and becomes a 500, whose cause is logged and not shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, Literal

__all__ = ["ApiError", "bad_request", "not_found"]

_OF_HOST = re.compile(r"resp_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|conv_[0-9a-f]{48}")
"""Ids that the hosts' own providers create; those of this server are shorter."""

RESPONSE_ERROR_CODES: Final = frozenset(
    {
        "server_error",
        "rate_limit_exceeded",
        "invalid_prompt",
        "data_residency_mismatch",
        "bio_policy",
        "misalignment_policy_violation",
        "vector_store_timeout",
        "invalid_image",
        "invalid_image_format",
        "invalid_base64_image",
        "invalid_image_url",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_content_policy_violation",
        "invalid_image_mode",
        "image_file_too_large",
        "unsupported_image_media_type",
        "empty_image_file",
        "failed_to_download_image",
        "image_file_not_found",
        "context_length_exceeded",
    }
)
"""`response.error.code`: the closed list of `openai.types.responses.ResponseError`, and `context_length_exceeded`,
which OpenAI also sends and Codex handles.
"""


type Cause = Literal["connection", "stream", "credentials", "rate_limit", "server_error", "timeout", "invalid_answer"]
"""Why a model server failed: it cannot be reached, its answer was cut off, it refused its key, it was too busy, it
reported an error of its own, it did not answer in time, or it answered in another form."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The failure of a model server.

    Attributes:
        cause: what failed.
        status: the HTTP status that it answered with; None if there was none.
    """

    cause: Cause
    status: int | None = None


_MESSAGE_CHARACTERS: Final = 4096
"""Maximum characters of a message: text of model servers and tools that it quotes may have any length."""


class ApiError(Exception):
    """An error that is reported to the client.

    Args:
        status: the HTTP status, used if no byte of the answer has been sent.
        message: one sentence that states the problem and the remedy.
        type: OpenAI's error type; defaults to that of `status`.
        code: OpenAI's error code, or None.
        param: the request field that caused the error, such as `input[3].type`, or None.
        retry_after: seconds after which a retry may succeed, or None.
        headers: further headers of the answer.
        upstream: the failure of a model server that caused it, or None.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,  # noqa: A002 (OpenAI's name)
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
        upstream: Upstream | None = None,
    ) -> None:
        message = message if len(message) <= _MESSAGE_CHARACTERS else f"{message[:_MESSAGE_CHARACTERS]}..."
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or _type_of(status)
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.headers = headers or {}
        self.upstream = upstream

    @property
    def retry_headers(self) -> dict[str, str]:
        """The headers that say when to retry: whole seconds, as HTTP has it, and milliseconds if they are not whole."""
        if self.retry_after is None:
            return {}
        seconds = {"retry-after": f"{ceil(self.retry_after)}"}
        return seconds if self.retry_after % 1 == 0 else seconds | {"retry-after-ms": f"{self.retry_after * 1000:.0f}"}

    def body(self) -> dict[str, Any]:
        """Return the HTTP body: `{"error": {"message", "type", "param", "code"}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def with_status(self, status: int) -> ApiError:
        """Return what the error says, with another HTTP status."""
        said = {"type": self.type, "code": self.code, "param": self.param}
        return ApiError(
            status, self.message, retry_after=self.retry_after, headers=self.headers, upstream=self.upstream, **said
        )

    def response_error(self) -> dict[str, str]:
        """Return the `error` of a failed response: a code of the closed list, the message, and the field at fault."""
        fields = {"code": self._response_code(), "message": self.message}
        return fields | {"param": self.param} if self.param else fields

    def _response_code(self) -> str:
        if self.code in RESPONSE_ERROR_CODES:
            return str(self.code)
        if self.status == 429:
            return "rate_limit_exceeded"
        # Clients retry errors of the server.
        return "invalid_prompt" if self.type == "invalid_request_error" else "server_error"


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error that is kept, and of those that led to it.

    Their frames refer to what keeps the error: the whole request would stay in memory until the garbage collector
    visits old objects.
    """
    errors: list[BaseException | None] = [error]
    seen = set[int]()
    while errors:
        each = errors.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            errors += (each.__cause__, each.__context__)


class NotBegunError(ApiError):
    """The 421 of a request that a server refuses while it shuts down, before it has done anything for it.

    No other answer has this status, so a load balancer may send the request to another server, whatever its method.
    """

    def __init__(self) -> None:
        message = "The server is shutting down and has not begun to work on the request. Send it again."
        # OpenAI's clients retry a 421 only because of this header.
        headers = {"x-should-retry": "true"}
        super().__init__(421, message, type="server_error", code="server_stopping", retry_after=1, headers=headers)


def stopped(*, begun: bool) -> ApiError:
    """Return the error of a request that a server gives up while it shuts down.

    Args:
        begun: whether something was done for it, so that another server must not repeat it.
    """
    return ApiError(503, "The server is shutting down. Try again.", retry_after=1) if begun else NotBegunError()


def refused_credentials(status: int) -> ApiError:
    """Return the error of a model server that refuses the operator's key. Its words may quote the key."""
    return ApiError(
        502,
        f"The inference provider refused the credentials it was given ({status}). "
        "Check the provider's API key in the stack's configuration.",
        upstream=Upstream("credentials", status),
    )


def cut_off(error: ApiError) -> ApiError:
    """Return the error of a connection to a model server, after it had begun to answer."""
    if error.upstream and error.upstream.cause == "connection":
        error.upstream = Upstream("stream")
    return error


class OutcomeUnknown(ApiError):  # noqa: N818 (a kind of 503)
    """The 503 of a change whose outcome is unknown: the store did not confirm in time whether it was applied.

    Args:
        message: what is unknown, and how to find out.
    """

    def __init__(self, message: str) -> None:
        super().__init__(503, message, code="outcome_unknown")


class UnusableAnswerError(ApiError):
    """The error of a response whose model gave no usable answer, however often it was asked.

    Its client gets the failed response, with status 200 if it does not stream: a retry would ask the model again.

    Args:
        message: what the answer lacks, and what to do.
    """

    def __init__(self, message: str) -> None:
        super().__init__(502, message)


class MalformedCallError(UnusableAnswerError):
    """The error of a model that has written a call of a tool which its model server could not read.

    Args:
        message: as for `UnusableAnswerError`.
        words: what is wrong with the call.
        written: what the model wrote, as far as the server says it.
        of_stream: whether the server may read the same output if it is not streamed.

    Attributes:
        by_words: whether only its words say so, which in a request without tools are about the request.
        refusal: the error that it is in a request without tools; None if its code says so.
    """

    def __init__(self, message: str, words: str, written: str, *, of_stream: bool = False) -> None:
        super().__init__(message)
        self.words = words
        self.written = written
        self.of_stream = of_stream
        self.by_words = False
        self.refusal: ApiError | None = None


class ConnectionFailedError(ApiError):
    """The 502 of a connection to a model server that could not be opened, or that broke.

    Args:
        message: why, and what to do.
    """

    def __init__(self, message: str) -> None:
        super().__init__(502, message, upstream=Upstream("connection"))


class TooLongError(ApiError):
    """The 400 of a request that exceeds its model's context.

    Args:
        message: the provider's message.
        length: the model's context in tokens, if the provider reports it.
        tokens: the request's size in tokens, if the provider reports it.
    """

    def __init__(self, message: str, *, length: int | None = None, tokens: int | None = None) -> None:
        super().__init__(400, message, param="input", code="context_length_exceeded")
        self.length = length
        self.tokens = tokens


def _type_of(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 400 whose `param` names the field that caused it."""
    return ApiError(400, message, param=param, code=code)


def not_in_list(after: str) -> ApiError:
    """Return the 400 of a page of a list that is asked for after an id which the list does not have."""
    return bad_request(f"Nothing with the id '{after}' is in this list.", "after", "invalid_value")


def too_many_open(what: str, retry_after: float) -> ApiError:
    """Return the 429 of a user who has too many of a resource open, such as "streams"."""
    message = f"You have too many {what} open at the same time. Finish some of them, then try again."
    return ApiError(429, message, code="rate_limit_exceeded", retry_after=retry_after)


def import_hint(value: str) -> str:
    """Return a hint for an error message if the id has the form of a host's own provider."""
    if not _OF_HOST.fullmatch(value):
        return ""
    return (
        " Ids of this form come from the host's builtin provider: 'llama-stack-responses import CONFIG' brings "
        "the responses and conversations that it stored."
    )


def not_found(response_id: str) -> ApiError:
    """Return the 404 of a response that is unknown, deleted, or another user's."""
    return ApiError(404, f"Response with id '{response_id}' not found.{import_hint(response_id)}", param="response_id")
