"""Conversion of a model server's failures to errors of the `openai` package, which the hosts handle."""

from __future__ import annotations

import re
from ast import literal_eval
from http import HTTPStatus
from itertools import islice
from typing import Any, Final

import httpx2
import openai

from .connection import Head
from .json_encoding import dumps, loads

_KINDS: Final[dict[int, type[openai.APIStatusError]]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
}


def from_status(request: httpx2.Request, head: Head, content: bytes) -> openai.APIStatusError:
    """Convert a response with an error status."""
    return _from_content(httpx2.Response(head.status, headers=_readable(head), content=content, request=request))


def whole(error: Exception) -> Exception:
    """Return an error of the `openai` client with all that the server said; any other as it is.

    The client keeps the member `error` alone, which may be a title beside the message, and pages of HTML as they are.
    """
    if not isinstance(error, openai.APIStatusError) or (isinstance(error.body, dict | list) and error.body):
        return error
    try:
        content = error.response.content
    except httpx2.StreamError:
        return error  # The client has not read it.
    return _from_content(error.response) if 0 < len(content) <= _QUOTED_CHARACTERS else error


def _from_content(response: httpx2.Response) -> openai.APIStatusError:
    content = response.content
    body: Any
    try:
        body = loads(content)
    except ValueError:
        body = _text_of(content)
    body = body or f"(No reason was given for the status {response.status_code}.)"
    inner = reported(body) or body
    return _from_response(response, said_in(inner), inner)


_INVALID_ANSWER: Final = "invalid_answer"
"""The code of errors whose status is not the server's."""

_KIND_CHARACTERS: Final = 100
"""Characters of a content type that an error quotes."""


class NoAnswerError(openai.InternalServerError):
    """The server has accepted the request, but its response is not a valid answer."""


def no_answer(request: httpx2.Request, why: str) -> NoAnswerError:
    """Create the error for an invalid answer; `why` is a sentence."""
    body = {"message": why, "code": _INVALID_ANSWER}
    return NoAnswerError(why, response=httpx2.Response(502, request=request), body=body)


def unexpected(request: httpx2.Request, head: Head, expected: str) -> NoAnswerError:
    """Create the error for an answer of another kind than `expected`."""
    kind = head.header(b"content-type").decode(errors="replace")[:_KIND_CHARACTERS]
    came = f"content type '{kind}'" if kind else "no content type"
    return no_answer(
        request,
        f"The model server answered with status {head.status} and {came} instead of {expected}: check 'base_url'.",
    )


def from_answer(request: httpx2.Request, error: Any) -> openai.APIStatusError:
    """Convert an error in a response with a success status, as `reported` returns it."""
    response = httpx2.Response(status_in(error) or 502, request=request)
    return _from_response(response, said_in(error), error)


def _from_response(response: httpx2.Response, message: str, body: Any) -> openai.APIStatusError:
    status = response.status_code
    kind = _KINDS.get(status) or (openai.InternalServerError if status >= 500 else openai.APIStatusError)
    return kind(f"Error code: {status} - {message}", response=response, body=body)


def from_event(error: Any, request: httpx2.Request) -> openai.APIError:
    """Convert an error sent instead of a chunk, as `reported` returns it."""
    return openai.APIError(said_in(error) or "An error occurred during streaming", request, body=error)


def from_connection(error: OSError, request: httpx2.Request) -> openai.APIConnectionError:
    """Convert a failed connection or a timeout."""
    if isinstance(error, TimeoutError):
        return openai.APITimeoutError(request)
    return openai.APIConnectionError(message=f"Connection error: {error}", request=request)


def why_unlisted(error: Exception) -> str:
    """Return a message for the operator about a server that does not list its models."""
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        return f"The model server refuses the key (status {error.status_code}): check 'api_key'."
    if isinstance(error, NoAnswerError):
        return error.message
    if isinstance(error, openai.APIStatusError):
        return f"The model server answers with status {error.status_code}: check 'base_url'."
    if isinstance(error, openai.APIConnectionError):
        return "The model server cannot be reached: check 'base_url', and that the server runs."
    return "The model server's answer is not a list of models: check 'base_url'."


def _readable(head: Head) -> list[tuple[bytes, bytes]]:
    """Return the headers without those about the transfer of the body, which has been decoded."""
    hidden = (b"content-encoding", b"content-length", b"transfer-encoding")
    return [(name, value) for name, value in head.headers if name.lower() not in hidden]


_MINIMAX_CODES: Final = {
    1002: 429,
    1039: 429,
    1041: 429,
    1004: 401,
    2049: 401,
    1008: 402,
    2013: 400,
    1026: 400,
    1027: 400,
}
"""HTTP statuses of the codes in MiniMax's `base_resp` (its API reference, error codes)."""
_GLM_CODES: Final = {
    **dict.fromkeys((1000, 1001, 1002, 1003, 1004), 401),
    **dict.fromkeys((1210, 1213, 1214, 1261, 1301), 400),
    **dict.fromkeys((1302, 1303, 1304, 1305, 1308, 1310), 429),
    1113: 402,
    1211: 404,
}
"""HTTP statuses of the codes of GLM's errors (Zhipu's API reference, error codes)."""
_STATUSES: Final = ("status", "status_code", "statusCode", "http_code", "http_status", "code")
"""Members of an error that may have an HTTP status."""
_WORDS: Final = (
    *("message", "Message", "msg", "status_msg", "detail", "details", "error_message", "error_msg", "errorMessage"),
    *("error_description", "errors", "error", "base_resp"),
    # Databricks, Tencent, Spark, Apigee, SageMaker, Azure
    *("external_model_message", "Response", "Error", "header", "err_msg", "reason", "fault", "faultstring"),
    *("OriginalMessage", "innererror"),
)
"""Members of an error that may have its text."""
_TITLES: Final = frozenset(status.phrase.lower() for status in HTTPStatus)
"""Texts that say nothing beside the status."""
_SIGNS: Final = (
    *("code", "type", "status", "status_code", "statusCode", "detail", "error_message", "error_msg", "errorMessage"),
    "error_code",
)
"""Members of which an object that has words and no choices has one, if it is an error."""
_SUCCESS: Final = frozenset(("success", "successful", "succeeded", "ok"))
"""Words of what is no error, in lower case."""
_TITLE: Final = re.compile(rb"<title[^>]{0,99}>([^<]{1,999})", re.IGNORECASE)
_TAG: Final = re.compile(rb"<[^>]{0,999}>")
_PAGE_BYTES: Final = 16_384
_PAGE_CHARACTERS: Final = 200
_DEPTH: Final = 4
_MAX_DETAILS: Final = 8
_MAX_MEMBERS: Final = 32
_NO_WORDS: Final = re.compile(r"@type|trace|stack|help|docs?(?:_|$)|url|link|request|prompt|timestamp", re.IGNORECASE)
"""Names of members whose texts do not say what is wrong."""
_MAX_TEXTS: Final = 4
"""Members of one object whose texts are compared."""
_QUOTED_CHARACTERS: Final = 65_536
_PYTHON_CHARACTERS: Final = 2_000
_CODE_CHARACTERS: Final = 9


def reported(value: Any) -> Any:
    """Return the error that a server's JSON reports; None if it reports none.

    Servers report errors as `{error}` like OpenAI, as `{object: error, message}` (vLLM), `{detail}` (FastAPI),
    `{base_resp: {status_code, status_msg}}` (MiniMax), or `{code, msg, success: false}` (GLM).
    """
    if not isinstance(value, dict):
        return None
    if (error := value.get("error")) and not _is_success(error):
        # A text may be a title beside the message (Spring, NestJS, OAuth).
        is_title = isinstance(error, str) and not value.get("choices") and words_of(value) != error
        return value if is_title else error
    wrapped = value.get("Response")
    if isinstance(wrapped, dict) and isinstance(wrapped.get("Error"), dict):
        return wrapped["Error"]  # Tencent
    base = value.get("base_resp")
    if isinstance(base, dict) and base.get("status_code"):
        code = base["status_code"]
        status = _MINIMAX_CODES.get(code) if isinstance(code, int) else None
        return {"message": words_of(base), "code": str(code), "status": status}
    if value.get("choices"):
        failed = value.get("object") == "error" or value.get("success") is False or value.get("code")
        return value if failed and words_of(value) and not _has_succeeded(value) else None
    if _has_succeeded(value):
        return None
    if value.get("success") is False or value.get("object") == "error" or any(value.get(name) for name in _SIGNS):
        return value if words_of(value) else None
    return _keyed(value)


def _has_succeeded(value: dict[str, Any]) -> bool:
    """Return whether an answer says that it reports no error."""
    if value.get("success") is False or value.get("object") == "error":
        return False
    return 200 <= _number(value.get("code")) < 300 or _is_success(value)


def _is_success(error: Any) -> bool:
    """Return whether an error says nothing, or has the code or the words of success."""
    if not isinstance(error, dict):
        return False
    code, words = error.get("code"), words_of(error)[:_KIND_CHARACTERS].strip(" .!").lower()
    return words in _SUCCESS or (isinstance(code, str) and code.lower() in _SUCCESS) or not any(error.values())


def _keyed(value: dict[str, Any]) -> Any:
    """Return the error of an object that has nothing else, and a part of the text as its key (ollama issue 11781)."""
    if len(value) != 1:
        return None
    [(key, words)] = value.items()
    is_error = isinstance(words, str) and key.startswith("error ")
    return {"message": f"{key[:_KIND_CHARACTERS]}: {words}"} if is_error else None


def status_in(error: Any) -> int | None:
    """Return the HTTP status that an error names; None if it names none."""
    if not isinstance(error, dict):
        return None
    numbers = [_number(error.get(name)) for name in _STATUSES]
    named = next((number for number in numbers if 400 <= number < 600), None)
    return named or _GLM_CODES.get(_number(error.get("code")))


def message_of(error: openai.APIError) -> str:
    """Return what a server said: the text of its error, wherever it is, else that of the client."""
    return said_in(error.body) or error.message


def said_in(error: Any) -> str:
    """Return the text of an error, in a member of any name; the error as JSON if it has none, empty if it is empty."""
    return words_of(error) or (error and (_longest_text(error, 0) or dumps(error).decode(errors="replace"))) or ""


def _longest_text(value: Any, depth: int) -> str:
    """Return the longest text of several words in the members of an error."""
    if isinstance(value, str):
        return value if " " in value.strip() else ""
    if depth >= _DEPTH or not isinstance(value, dict | list):
        return ""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    found = (
        _longest_text(each, depth + 1)
        for name, each in islice(members, _MAX_MEMBERS)
        if not (isinstance(name, str) and _NO_WORDS.search(name))
    )
    return max(found, key=len, default="")


def words_of(error: Any, depth: int = 0) -> str:
    """Return the text of an error; empty if it has none."""
    if isinstance(error, str):
        return _quoted(error, depth) or error
    if isinstance(error, list) and depth < _DEPTH:
        # FastAPI lists the invalid fields.
        return "; ".join(filter(None, (words_of(each, depth + 1) for each in error[:_MAX_DETAILS])))
    if isinstance(error, dict) and depth < _DEPTH:
        if isinstance(place := error.get("loc"), list):
            where = ".".join(str(each) for each in place[:_MAX_DETAILS] if isinstance(each, str | int))
            return f"{where}: {error.get('msg')}"
        if "@type" in error:
            return ""  # One of Google's details, which repeats the message or is for its own developers.
        said = _other_words(error, depth) or _most_specific(error, depth)
        field = error.get("field") if depth else None
        return f"{field}: {said}" if said and isinstance(field, str) and field not in said else said
    return ""


def _most_specific(error: dict[str, Any], depth: int) -> str:
    """Return the text of an error that says most: that of a list, or the longest; a title only if it is alone."""
    names = [each for each in _WORDS if each in error][:_MAX_TEXTS]
    found = [(each, text) for each in names if (text := words_of(error[each], depth + 1))]
    best = max(found, key=lambda each: _rank(each[0], error[each[0]], each[1]), default=("", ""))
    return best[1]


def _rank(name: str, value: Any, text: str) -> tuple[bool, bool, bool, int]:
    """Return how specific the text of a member is, for comparison."""
    is_title = text.lower() in _TITLES or (text.isascii() and " " not in text)
    return not is_title, isinstance(value, list), name != "error" or not isinstance(value, str), len(text)


def _other_words(error: Any, depth: int) -> str:
    """Return the text of the error that OpenRouter quotes from a server behind it, or FastChat's; empty without one."""
    if error.get("error_code") and isinstance(text := error.get("text"), str):
        return text
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if not isinstance(raw, str) or len(raw) > _QUOTED_CHARACTERS:
        return ""
    return _quoted(raw, depth) or raw


def _quoted(text: str, depth: int) -> str:
    """Return the text of an error that is quoted as JSON; empty if the text is anything else."""
    if depth >= _DEPTH or len(text) > _QUOTED_CHARACTERS or not text.lstrip().startswith(("{", "[{")):
        return ""
    try:
        value = loads(text.encode(errors="replace"))
    except ValueError:
        value = _of_python(text.strip())
    return words_of(reported(value) or value, depth + 1)


def _of_python(text: str) -> Any:
    """Return an object that a gateway wrote as Python (LiteLLM); None if it is none, or lists invalid fields."""
    if len(text) > _PYTHON_CHARACTERS or not text.startswith("{'") or "'loc'" in text:
        return None
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def plain_words(data: bytes) -> str:
    """Return what plain words say that came instead of an event; empty if the event is anything else."""
    if not data[:1].isalpha() or b"{" in data:
        return ""
    words = " ".join(data[:_PAGE_CHARACTERS].decode(errors="replace").split())
    return f"The model server sent words instead of an event: '{words}'."


def words_of_page(page: bytes) -> str:
    """Return what a page of HTML says, which came instead of an answer."""
    return f"The model server sent a page instead of an answer: '{_title_of(page)}'. Check 'base_url'."


def _title_of(page: bytes) -> str:
    """Return the title of a page of HTML, or the beginning of its text."""
    title = _TITLE.search(page[:_PAGE_BYTES])
    words = " ".join(_TAG.sub(b" ", title[1] if title else page[:_PAGE_BYTES]).decode(errors="replace").split())
    return words[:_PAGE_CHARACTERS]


def _text_of(content: bytes) -> str:
    """Return the text of a body that is no JSON: of a page, its title."""
    return _title_of(content) if content.lstrip().startswith(b"<") else content.decode(errors="replace").strip()


def _number(value: Any) -> int:
    """Return a number, which some servers send as text; 0 if it is none."""
    if isinstance(value, str) and len(value) <= _CODE_CHARACTERS and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) else 0
