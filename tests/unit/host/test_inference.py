"""The chat request that the host's inference router and its providers receive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

import httpx2
import openai
import pytest
from llama_stack.core.routers import inference as host
from openai.types.chat import ChatCompletion

from llama_stack_openai_chat.retries import seconds_before_retry
from llama_stack_responses.chat.adaptation.explanation import explained
from llama_stack_responses.chat.adaptation.refusal import RefusedError
from llama_stack_responses.chat.chunks import ChunkReader
from llama_stack_responses.chat.inference import Extender, Receive
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.core.errors import ApiError, MalformedCallError, Upstream
from llama_stack_responses.host.inference import HostInference
from llama_stack_responses.model_server.errors import to_api_error
from llama_stack_responses.stream.deltas import Finish, Text
from llama_stack_responses.stream.usage import Usage
from llama_stack_responses.wire.http_responses import failure
from tests.support.inference import chunk, finish, reasoning, text
from tests.support.routing import Provider, Table

Json = dict[str, Any]

TOOL: Final[Json] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHAT: Final[Json] = {"model": "local/m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


class LookupProvider(Provider):
    """A provider that looks the model up, as those of llama-stack do."""

    async def _get_provider_model_id(self, model: str) -> str:
        raise NotImplementedError


async def sent(chat: Json, *listed: str, provider: Provider | None = None) -> Json:
    """Return the request that the provider receives."""
    provider = provider or Provider()
    router = host.InferenceRouter(Table(provider, *listed))
    async for _ in await HostInference(router, store_chat_completions=False).open_stream(chat):
        pass
    [params] = provider.requests
    return {name: getattr(params, name) for name in params.model_fields_set}


async def test_model_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Table, "get_provider_impl")

    assert await sent(CHAT, "m") == {**CHAT, "model": "m"}


@pytest.mark.parametrize("listed", [("m",), ()], ids=["listed", "by its provider's name"])
@pytest.mark.parametrize("choice", [{}, {"tool_choice": "required"}], ids=["free", "required"])
async def test_tools_reach_provider_without_check_of_router(
    monkeypatch: pytest.MonkeyPatch, listed: tuple[str, ...], choice: Json
) -> None:
    monkeypatch.delattr(host, "TypeAdapter")
    request = await sent({**CHAT, "tools": [TOOL, TOOL], **choice}, *listed)
    assert request == {**CHAT, "model": "m", "tools": [TOOL, TOOL], **choice}


async def test_tools_are_not_sent_with_tool_choice_none() -> None:
    assert await sent({**CHAT, "tools": [TOOL], "tool_choice": "none"}) == {**CHAT, "model": "m"}


async def test_request_without_tools_is_passed_on() -> None:
    assert await sent(CHAT) == {**CHAT, "model": "m"}


async def test_provider_with_model_lookup_gets_name_of_host() -> None:
    assert await sent(CHAT, "m", provider=LookupProvider()) == {**CHAT, "model": "local/m"}
    assert await sent(CHAT, provider=LookupProvider()) == {**CHAT, "model": "m"}


class BusyProvider(Provider):
    """Refuse every request with these headers."""

    def __init__(self, **headers: str) -> None:
        super().__init__()
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}

    async def openai_chat_completion(self, params: Any) -> Any:
        request = httpx2.Request("POST", "http://localhost/v1/chat/completions")
        response = httpx2.Response(429, headers=self._headers, request=request)
        raise openai.RateLimitError("Slow down.", response=response, body=None)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("7", "7"),
        ("3600000", "3600000"),
        ("9" * 400, None),
        ("1" * 10, None),
        ("inf", None),
        ("soon", None),
        ("Mon, 01 Jan 2001 00:00:00 GMT", "0"),
    ],
)
async def test_invalid_retry_after_is_not_passed_on(header: str, expected: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        await sent(CHAT, "m", provider=BusyProvider(retry_after=header))
    assert caught.value.status == 429
    assert failure(caught.value).headers.get("retry-after") == expected


@pytest.mark.parametrize(
    ("headers", "seconds", "milliseconds"),
    [
        ({"retry_after": "1.5"}, "2", "1500"),
        ({"retry_after_ms": "5"}, "1", "5"),
        ({"retry_after_ms": "250", "retry_after": "7"}, "1", "250"),
        ({"retry_after_ms": "2000"}, "2", None),
        ({"retry_after_ms": "soon", "retry_after": "7"}, "7", None),
    ],
)
async def test_fraction_of_a_second_to_wait_is_passed_on_in_milliseconds(
    headers: dict[str, str], seconds: str, milliseconds: str | None
) -> None:
    with pytest.raises(ApiError) as caught:
        await sent(CHAT, "m", provider=BusyProvider(**headers))
    passed = failure(caught.value).headers
    assert (passed.get("retry-after"), passed.get("retry-after-ms")) == (seconds, milliseconds)


def test_limit_on_tokens_per_minute_is_a_429_whatever_its_status() -> None:
    """Groq has it with status 413."""
    response = httpx2.Response(413, request=httpx2.Request("POST", "http://localhost/v1/chat/completions"))
    said = "Request too large for model m on tokens per minute (TPM): Limit 8000, Requested 8590"
    body = {"message": said, "type": "tokens", "code": "rate_limit_exceeded"}
    found = to_api_error(openai.APIStatusError(said, response=response, body=body))
    assert (found.status, found.code) == (429, "rate_limit_exceeded")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Function id '87ea0ddc': DEGRADED function cannot be invoked", None),
        ("stream disconnected before completion: stream closed before response.completed", "request_timeout"),
        ("It took too long.", "request_timeout"),
        ("Model unloaded.", None),
        ("The model has crashed without additional information. (Exit code: 1)", None),
    ],
)
def test_server_that_is_away_is_no_error_of_the_client_whatever_its_status(said: str, code: str | None) -> None:
    response = httpx2.Response(400, request=httpx2.Request("POST", "http://localhost/v1/chat/completions"))
    error = openai.BadRequestError(said, response=response, body={"message": said, "code": code})
    found = to_api_error(error)
    assert (found.status, found.upstream and found.upstream.cause) == (502, "server_error")
    assert not isinstance(found, RefusedError), "no change of the request helps"


@pytest.mark.parametrize(
    ("status", "said", "is_refusal"),
    [
        (502, "All variants failed: {'message': 'Unsupported parameter: x', 'code': 'unsupported_parameter'}", True),
        (503, "upstream returned 400: [{'loc': ['body', 'user'], 'msg': 'Extra inputs are not permitted'}]", True),
        (502, "Bad gateway: this host is not supported", False),
        (503, "Loading model", False),
        (504, "upstream returned 400: unknown field x", False),
    ],
)
def test_refusal_that_a_gateway_quotes_with_its_own_status_is_a_refusal(
    status: int, said: str, is_refusal: bool
) -> None:
    response = httpx2.Response(status, request=httpx2.Request("POST", "http://localhost/v1/chat/completions"))
    error = openai.InternalServerError(said, response=response, body={"message": said})
    assert isinstance(to_api_error(error), RefusedError) is is_refusal
    bare = openai.InternalServerError(f"Error code: {status}", response=response, body=said)
    assert isinstance(to_api_error(bare), RefusedError) is is_refusal
    assert (seconds_before_retry(error, 0) is None) is is_refusal


def answered(error: openai.APIError) -> ApiError:
    """Return what a client gets for a failure before any output against which no change of the request helps."""
    found = to_api_error(error)
    assert isinstance(found, RefusedError)
    return explained(found, CHAT)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"object": "error", "message": "It is odd", "type": "BadRequestError", "param": None, "code": 400}, 400),
        ({"code": 400, "message": "It is odd", "type": "invalid_request_error"}, 400),
        ({"message": "It is odd", "code": 422}, 400),
        ({"message": "It is odd", "code": "invalid_request_error"}, 400),
        ({"message": "Jinja Exception: It is odd"}, 400),
        ({"message": "It is odd", "code": 500}, 502),
        ({"message": "It is odd"}, 502),
    ],
)
def test_refusal_as_an_event_before_any_output_is_a_400(body: Json, expected: int) -> None:
    error = openai.APIError(body["message"], httpx2.Request("POST", "http://localhost/v1"), body=body)
    found = answered(error)
    assert found.status == expected
    assert body["message"] in found.message
    assert ("middle of its answer" in found.message) is (expected == 502)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"message": "You are out of credit.", "code": "insufficient_quota"}, 429, "insufficient_quota"),
        ({"message": "Pay first.", "code": 402}, 429, "insufficient_quota"),
        ({"message": "No endpoints found for m.", "code": 404}, 404, "model_not_found"),
        ({"message": "It was filtered.", "code": "content_filter"}, 400, "content_filter"),
    ],
)
def test_code_of_an_event_is_read_like_a_status(body: Json, status: int, code: str) -> None:
    error = openai.APIError(body["message"], httpx2.Request("POST", "http://localhost/v1"), body=body)
    found = to_api_error(error)
    assert (found.status, found.code) == (status, code)


@pytest.mark.parametrize("answer", [{"text": ""}, {"html": "<title>413 Request Entity Too Large</title>"}])
def test_request_that_is_too_large_for_a_model_server_is_too_long(answer: Json) -> None:
    assert to_api_error(of_client(413, **answer)).code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("tools param requires --jinja flag", 400),
        ("Jinja Exception: Only user and assistant roles are supported! at row 3", 400),
        ("Error: Jinja Exception: No tools for this model", 400),
        ("Failed to parse grammar", 400),
        ("Unsupported content part type in message: file", 400),
        ("Value is not callable: null at row 62, column 114:\n{%- if tools %}", 400),
        ("CUDA error: operation not supported on this device", 502),
        ("Something broke", 502),
    ],
)
def test_refusal_with_the_status_500_is_a_400(said: str, expected: int) -> None:
    response = httpx2.Response(500, request=httpx2.Request("POST", "http://localhost/v1"))
    body = {"code": 500, "message": said, "type": "server_error"}
    found = answered(openai.InternalServerError(said, response=response, body=body))
    assert (found.status, found.upstream is None) == (expected, expected == 400)
    assert found.message.startswith(said) or expected == 502
    assert ("Start the model server with this option." in found.message) is ("--jinja" in said)


def of_client(status: int, **answer: Any) -> openai.APIStatusError:
    """Return the error of the `openai` client, which the hosts' own providers have, for an answer."""

    def answered(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, **answer)

    with httpx2.Client(transport=httpx2.MockTransport(answered)) as http:
        client = openai.OpenAI(api_key="k", base_url="http://localhost/v1", http_client=http, max_retries=0)
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model="m", messages=[], stream=True)
    return caught.value


@pytest.mark.parametrize(
    ("body", "words", "places"),
    [
        (
            {"status": 400, "error": "Bad Request", "message": "Unrecognized field: user"},
            "Unrecognized field: user",
            (),
        ),
        ({"statusCode": 400, "error": "Bad Request", "message": ["a is wrong", "b is"]}, "a is wrong; b is", ()),
        ({"error": "Validation failed", "details": [{"field": "user", "message": "x"}]}, "user: x", ("user",)),
        ({"error": "invalid_request", "error_description": "It is odd"}, "It is odd", ()),
        ({"error": None, "message": "It is odd"}, "It is odd", ()),
        ({"Response": {"Error": {"Code": "InvalidParameter", "Message": "It is odd"}}}, "It is odd", ()),
        ({"header": {"code": 10163, "message": "It is odd"}}, "It is odd", ()),
        ({"err_code": 1, "err_msg": "It is odd"}, "It is odd", ()),
        ({"reason": "It is odd"}, "It is odd", ()),
        ({"ErrorCode": "CLIENT_ERROR", "OriginalMessage": '{"error": "It is odd"}'}, "It is odd", ()),
        ({"error": {"message": '{"error": {"code": 400, "message": "It is odd"}}'}}, "It is odd", ()),
        ({"error": {"message": "A", "innererror": {"code": "x", "message": "It is odd"}}}, "It is odd", ()),
        ({"fault": {"faultstring": "It is odd"}}, "It is odd", ()),
        (
            {
                "error": "Received error from databricks-model-serving",
                "external_model_message": {"error_code": "INVALID", "message": "INVALID: Unknown parameter: 'user'"},
            },
            "INVALID: Unknown parameter: 'user'",
            (),
        ),
    ],
)
def test_words_beside_a_title_are_read_that_the_client_of_the_host_has_left_out(
    body: Json, words: str, places: tuple[str, ...]
) -> None:
    found = to_api_error(of_client(400, json=body))
    assert isinstance(found, RefusedError)
    assert (found.message, found.refusal.text, found.refusal.places) == (words, words, places)
    busy = to_api_error(of_client(500, json=body))
    assert words in busy.message


@pytest.mark.parametrize("content", [b"{}", b"null", b"[]"])
def test_answer_without_words_is_said_to_give_no_reason(content: bytes) -> None:
    assert to_api_error(of_client(400, content=content)).message.endswith("(No reason was given for the status 400.)")


def test_length_beside_a_title_is_that_of_a_context() -> None:
    said = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."
    assert (
        to_api_error(of_client(400, json={"error": "Bad Request", "message": said})).code == "context_length_exceeded"
    )


def test_page_that_the_client_of_the_host_has_kept_is_read_as_its_title() -> None:
    page = "<html><head><title>413 Request Entity Too Large</title></head><body><h1>nginx</h1></body></html>"
    found = to_api_error(of_client(413, html=page))
    assert found.message == "413 Request Entity Too Large"


def test_error_is_kept_that_the_client_of_the_host_has_not_read_or_that_is_long() -> None:
    request = httpx2.Request("POST", "http://localhost/v1")
    unread = httpx2.Response(400, request=request, stream=httpx2.ByteStream(b'{"error": "No", "message": "It is odd"}'))
    assert to_api_error(openai.BadRequestError("No", response=unread, body="No")).message == "No"
    long = httpx2.Response(400, request=request, json={"error": "No", "message": "x" * 70_000})
    assert to_api_error(openai.BadRequestError("No", response=long, body="No")).message == "No"


@pytest.mark.parametrize("status", [None, 500])
@pytest.mark.parametrize(
    ("said", "shown"),
    [("x" * 5000, "x" * 1000 + "..."), ("Out of memory.", "Out of memory.")],
    ids=["long", "short"],
)
def test_failure_of_a_model_server_is_a_short_text(said: str, shown: str, status: int | None) -> None:
    request = httpx2.Request("POST", "http://localhost/v1/chat/completions")
    error = openai.APIError(said, request, body={"message": said})
    if status:
        response = httpx2.Response(status, request=request)
        error = openai.InternalServerError(said, response=response, body={"message": said})
    inference = HostInference(host.InferenceRouter(Table(Provider())), store_chat_completions=False)
    found = inference.to_api_error(error)
    assert found.status == 502
    assert shown in found.message
    assert len(found.message) < 1100


@pytest.mark.parametrize(
    ("said", "is_unreadable"),
    [
        ("Invalid diff: now finding less tool calls!", True),
        ("Failed to parse input at pos 3: <|channel>", True),
        ("The model produced output that does not match the expected peg-native format", True),
        ("error parsing tool call: raw='ls -R', err=invalid character 'l' looking for beginning of value", True),
        ('unexpected tokens remaining in message header: Some("to=functions.search")', True),
        ("Unexpected token 12606 while expecting start token 200006", True),
        ("Invalid 'messages': the newest one says \"Invalid diff: \".", False),
    ],
)
def test_error_about_output_that_a_model_server_cannot_read_is_told_apart(said: str, is_unreadable: bool) -> None:
    request = httpx2.Request("POST", "http://localhost/v1/chat/completions")
    inference = HostInference(host.InferenceRouter(Table(Provider())), store_chat_completions=False)
    errors = [
        openai.APIError(said, request, body={"message": said, "code": 500}),
        openai.InternalServerError(said, response=httpx2.Response(500, request=request), body={"message": said}),
    ]
    found = [inference.to_api_error(error) for error in errors]
    assert [isinstance(each, MalformedCallError) for each in found] == [is_unreadable] * 2


REQUEST: Final = httpx2.Request("POST", "http://localhost/v1/chat/completions")


def failed(status: int, body: Json | str) -> openai.APIStatusError:
    """Return the error of a model server with this status and body."""
    kind = {403: openai.PermissionDeniedError, 500: openai.InternalServerError}.get(status, openai.BadRequestError)
    return kind("no", response=httpx2.Response(status, request=REQUEST), body=body)


@pytest.mark.parametrize(
    "said",
    [
        'm requires moderation on Together. Your input was flagged for "violence". No credits were charged.',
        "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO",
        "The prompt was blocked by our content policy.",
        "Your request was rejected as a result of our safety system.",
        "Content blocked by guardrail",
        "The user message was flagged",
        "Access denied: your prompt was flagged",
        "The prompt was blocked by your organization's content policy",
        # LiteLLM's content filter, and its hook for Bedrock
        "{'error': 'Content blocked: us_ssn pattern detected', 'pattern': 'us_ssn'}",
        "Violated guardrail policy",
        # new-api, DashScope, GLM
        "input contains sensitive words: [test]",
        "Input text data may contain inappropriate content.",
        "\u7cfb\u7edf\u68c0\u6d4b\u5230\u8f93\u5165\u53ef\u80fd\u5305\u542b\u654f\u611f\u5185\u5bb9",
    ],
)
def test_input_that_a_moderation_has_refused_is_the_fault_of_the_request(said: str) -> None:
    for body in ({"message": said}, {"message": said, "type": "permission_denied"}):
        found = to_api_error(failed(403, body))
        assert (found.status, found.upstream) == (400, None)
        assert found.message in (said, "Content blocked: us_ssn pattern detected")


@pytest.mark.parametrize("status", [400, 403, 500, None])
@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"code": "content_filter"}, "content_filter"),
        ({"code": "content_policy_violation"}, "content_policy_violation"),
        ({"code": "sensitive_words_detected", "type": "new_api_error"}, "sensitive_words_detected"),
        ({"code": "data_inspection_failed"}, "data_inspection_failed"),
        ({"code": None, "type": "guardrail_violation"}, None),
        ({"code": "1301"}, None),
        ({"code": "400", "innererror": {"code": "ResponsibleAIPolicyViolation"}}, None),
    ],
)
def test_code_of_a_moderation_says_that_the_request_is_at_fault(status: int | None, more: Json, code: str) -> None:
    """Azure, OpenAI, new-api, DashScope, GLM; some with a status of the server, some as an event."""
    body = {"message": "It is odd.", **more}
    error = failed(status, body) if status else openai.APIError("no", REQUEST, body=body)
    found = to_api_error(error)
    assert (found.status, found.message, found.code, found.upstream) == (400, "It is odd.", code, None)
    assert not isinstance(found, RefusedError), "no change of the request helps"
    assert not isinstance(error, openai.APIStatusError) or seconds_before_retry(error, 0) is None


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("This API key was flagged as leaked and disabled", None),
        ("Your account was flagged for violating our usage policies", None),
        ("Your access was terminated due to violation of our policies, please check your email", "access_terminated"),
        ("This project has been suspended for violating the terms of service", None),
        ("Your IP address has been blocked", None),
        ("Your request was blocked.", None),
        ("Access denied by network security policy", None),
        ("User: u is not authorized to perform: i because no identity-based policy allows the action", None),
        ("Your organization's data policy does not permit this model. Update your privacy settings.", None),
        ("Country, region, or territory not supported", "unsupported_country_region_territory"),
        ("403 Bedrock guardrail request failed", None),
        ("It is odd", "moderation_unavailable"),
        ("You have insufficient permissions for this operation. Missing scopes: model.request", None),
        ("This API method requires billing to be enabled.", "PERMISSION_DENIED"),
    ],
)
def test_refusal_of_what_is_the_operators_is_no_fault_of_the_request(said: str, code: str | None) -> None:
    body = {"message": said, "code": code}
    event = openai.APIError(said, REQUEST, body=body | {"status": 403})
    for found in (to_api_error(failed(403, body)), to_api_error(event)):
        assert (found.status, found.upstream) == (502, Upstream("credentials", 403))
        assert said not in found.message, "it may quote the key"


def status_error(status: int) -> openai.APIStatusError:
    response = httpx2.Response(status, request=httpx2.Request("POST", "http://localhost/v1/chat/completions"))
    return openai.APIStatusError("no", response=response, body=None)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (status_error(401), Upstream("credentials", 401)),
        (status_error(403), Upstream("credentials", 403)),
        (status_error(408), Upstream("timeout", 408)),
        (status_error(429), Upstream("rate_limit", 429)),
        (status_error(500), Upstream("server_error", 500)),
        (status_error(503), Upstream("server_error", 503)),
        (openai.APITimeoutError(httpx2.Request("POST", "")), Upstream("timeout")),
        (openai.APIConnectionError(request=httpx2.Request("POST", "")), Upstream("connection")),
        (ConnectionRefusedError(), Upstream("connection")),
        (httpx2.ConnectError("no"), Upstream("connection")),
        (httpx2.ReadTimeout("no"), Upstream("timeout")),
        (openai.APIError("no", httpx2.Request("POST", ""), body={"code": 500}), Upstream("server_error", 500)),
        # These are about the request.
        (status_error(400), None),
        (status_error(404), None),
        (status_error(422), None),
    ],
    ids=repr,
)
def test_error_of_a_model_server_has_its_cause(error: Exception, failure: Upstream | None) -> None:
    inference = HostInference(host.InferenceRouter(Table(Provider())), store_chat_completions=False)
    assert inference.to_api_error(error).upstream == failure


async def test_health_is_by_provider_and_bounded_in_time() -> None:
    class WithHealth(Provider):
        def __init__(self, answer: Any) -> None:
            super().__init__()
            self.answer = answer

        async def health(self) -> dict[str, str]:
            if self.answer is None:
                await asyncio.Event().wait()
            if isinstance(self.answer, Exception):
                raise self.answer
            return {"status": self.answer}

    table = Table(Provider())
    answers = {"well": "OK", "ill": "Error", "dead": OSError(), "silent": None, "other": "Not Implemented"}
    table.impls_by_provider_id = {name: WithHealth(answer) for name, answer in answers.items()} | {"none": Provider()}
    inference = HostInference(host.InferenceRouter(table), store_chat_completions=False)
    assert await inference.health(0.05) == {"well": True, "ill": False, "dead": False, "silent": False, "other": None}


class Pushed(AsyncGenerator[Any, None]):
    """A stream of chunks that are pushed first, as that of `remote::openai-chat`."""

    def __init__(self, *chunks: Any) -> None:
        self._chunks = list(chunks)
        self._receive: Receive = lambda _: False

    def push_to(self, receive: Receive, extender: Extender | None) -> None:
        self._receive, self._extender = receive, extender

    async def asend(self, _: None) -> Any:
        while self._chunks:
            chunk = self._chunks.pop(0)
            if not self._receive(chunk):
                return chunk
        raise StopAsyncIteration

    async def athrow(self, *_: Any) -> Any:
        raise StopAsyncIteration


class PushingProvider(Provider):
    """A provider that pushes chunks of text, reasoning and usage; the last one has no choices, or null for them."""

    def __init__(self, *, null_choices: bool = False) -> None:
        super().__init__()
        self._last = usage(None if null_choices else [])

    async def openai_chat_completion(self, params: Any) -> AsyncGenerator[Any]:
        self.requests.append(params)
        texts = [text("Hel"), text("l"), text("o")]
        self.chunks = [reasoning("Hm"), reasoning("m"), *texts, finish(), self._last]
        return Pushed(*self.chunks)


def usage(choices: Any) -> Any:
    """Return the chunk after the last text, which has no choices."""
    reported = chunk({}, usage={"prompt_tokens": 1, "completion_tokens": 7})
    reported.choices = choices
    return reported


class RecordingInstrument:
    """An instrument of the host that keeps what is recorded."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def record(self, value: float, **_: Any) -> None:
        self.values.append(value)


async def test_router_gets_only_chunks_that_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    first, rate, duration = RecordingInstrument(), RecordingInstrument(), RecordingInstrument()
    monkeypatch.setattr(host, "inference_time_to_first_token", first)
    monkeypatch.setattr(host, "inference_tokens_per_second", rate)
    monkeypatch.setattr(host, "inference_duration", duration)
    provider, pushed = PushingProvider(), list[Any]()

    def receive(each: Any) -> bool:
        pushed.append(each)
        return True

    router = host.InferenceRouter(Table(provider))
    read = [each async for each in await HostInference(router, store_chat_completions=False).open_stream(CHAT, receive)]
    hm, m, hel, lo, oh, finished, reported = provider.chunks
    assert pushed == [hm, m, lo, oh]
    assert read == [hel, finished, reported]
    assert [len(each.values) for each in (first, rate, duration)] == [1, 1, 1]


async def test_router_holds_nothing_of_a_chunk_while_it_waits_for_the_next() -> None:
    provider = PushingProvider()
    inference = HostInference(host.InferenceRouter(Table(provider)), store_chat_completions=False)
    stream, choice, delta = await inference.open_stream(CHAT, lambda _: True), list[Any](), list[Json]()
    first = await anext(stream)
    choice += first.choices
    delta.append(vars(choice[0].delta))
    await anext(stream)
    assert [vars(each) for each in (first, choice[0])] == [{}, {}]
    assert not any(each.model_fields_set or each.model_extra for each in (first, choice[0]))
    assert delta[0]["content"] == "Hel"  # what the reader of the chunk still has


async def test_chunk_that_has_null_instead_of_choices_does_not_end_the_stream() -> None:
    provider = PushingProvider(null_choices=True)
    inference = HostInference(host.InferenceRouter(Table(provider)), store_chat_completions=False)
    read = [each async for each in await inference.open_stream(CHAT, lambda _: True)]
    assert [vars(each) for each in read] == [{}] * 3
    assert read[-1] is provider.chunks[-1]


async def test_router_holds_no_messages_while_chunks_are_pushed() -> None:
    provider = PushingProvider()
    inference = HostInference(host.InferenceRouter(Table(provider)), store_chat_completions=False)
    await inference.open_stream(CHAT, lambda _: True)
    assert provider.requests[0].messages == []
    assert CHAT["messages"]


class WholeProvider(Provider):
    """Answers without a stream, as llama.cpp does."""

    async def openai_chat_completion(self, params: Any) -> Any:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}
        usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return ChatCompletion.model_validate(answer | {"usage": usage, "timings": {"cache_n": 7}})


async def test_usage_of_an_unstreamed_answer_has_the_cached_tokens() -> None:
    inference = HostInference(host.InferenceRouter(Table(WholeProvider())), store_chat_completions=False)
    [whole] = [each async for each in await inference.open_stream({**CHAT, "stream": False})]
    reader = ChunkReader(Profile(), 1000)
    assert [*reader.read(whole)] == [Text("Hello")]
    [*_, end] = reader.end()
    assert end == Finish("stop", Usage(10, 1, cached_tokens=7))


async def test_router_that_stores_completions_gets_every_chunk() -> None:
    class Store:
        async def store_chat_completion(self, *_: Any) -> None:
            return

    provider = PushingProvider()
    router = host.InferenceRouter(Table(provider), store=Store())
    inference = HostInference(router, store_chat_completions=True)
    assert [each async for each in await inference.open_stream(CHAT, lambda _: True)] == provider.chunks
