"""What can go wrong, in OpenAI's terms.

`ApiError` is the one exception that crosses the layers: whoever notices a
problem says there which HTTP status, type, code and parameter OpenAI would
report, and the wire prints it. Anything else that reaches the wire is a bug
and becomes a 500 whose cause is logged and not shown.
"""

from __future__ import annotations

import re
from typing import Any, Final

_OF_HOST = re.compile(r"resp_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|conv_[0-9a-f]{48}")
"""The ids that the hosts' own providers make; ours are shorter."""

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
"""`response.error.code`: the closed list of `openai.types.responses.ResponseError`, and
`context_length_exceeded`, which OpenAI sends too and Codex acts on."""


_LONGEST: Final = 4096
"""Characters of a message: model servers and tools, whose words it may repeat, send any length."""


class ApiError(Exception):
    """An error that the client is told about.

    Args:
        status: the HTTP status, used when no byte of the answer has gone out yet.
        message: one sentence that says what is wrong and what to do.
        type: OpenAI's error type; by default the one that goes with `status`.
        code: OpenAI's error code, or None.
        param: the request's field at fault, such as `input[3].type`, or None.
        retry_after: seconds after which a retry may succeed, or None.
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
    ) -> None:
        message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or _type_of(status)
        self.code = code
        self.param = param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The HTTP body: `{"error": {"message", "type", "param", "code"}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response_error(self) -> dict[str, str]:
        """The `error` of a failed response: a code of the types' closed list, the message, and the field at fault."""
        told = {"code": self._response_code(), "message": self.message}
        return told | {"param": self.param} if self.param else told

    def _response_code(self) -> str:
        if self.code in RESPONSE_ERROR_CODES:
            return str(self.code)
        if self.status == 429:
            return "rate_limit_exceeded"
        # Clients try again what failed on the server's side.
        return "invalid_prompt" if self.type == "invalid_request_error" else "server_error"


class OutcomeUnknown(ApiError):  # noqa: N818 (a kind of 503)
    """The 503 of a change that may have been made or not: the store did not say so in time.

    Args:
        message: what is unknown, and how to find out.
    """

    def __init__(self, message: str) -> None:
        super().__init__(503, message, code="outcome_unknown")


class TooLongError(ApiError):
    """The 400 of a request that is longer than its model's context.

    Args:
        message: what the provider says.
        length: the tokens that the context has, if it says so.
        tokens: the tokens that the request has, if it says so.
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
    """A 400 whose `param` names the field at fault."""
    return ApiError(400, message, param=param, code=code)


def import_hint(value: str) -> str:
    """What an error adds where the id is one that a host's own provider makes."""
    if not _OF_HOST.fullmatch(value):
        return ""
    return (
        " Ids of this form come from the host's builtin provider: 'llama-stack-responses import CONFIG' brings "
        "the responses and conversations that it stored."
    )


def not_found(response_id: str) -> ApiError:
    """The 404 of a response that is unknown, deleted, or another user's."""
    return ApiError(404, f"Response with id '{response_id}' not found.{import_hint(response_id)}", param="response_id")
