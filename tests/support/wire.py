"""An HTTP client of a stack, for tests of the wire format without a client library."""

from collections.abc import Mapping
from typing import Any, Protocol

import httpx

from tests.support.strict import check_stream, read_sse, validate_response

type Json = dict[str, Any]

ERROR_TYPES = (
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "requests",
    "tokens",
    "insufficient_quota",
    "server_error",
    "external_connector_error",
)


class HttpEndpoint(Protocol):
    """A stack, or a server in front of some."""

    @property
    def base_url(self) -> str:
        """Its root URL, without /v1."""


class Wire:
    """One client of a stack, for a `with` block."""

    def __init__(
        self,
        stack: HttpEndpoint,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        idle_seconds: float = 0.0,
    ) -> None:
        """Create a client. `token` is a bearer token; connections are reused if idle for at most `idle_seconds`.

        Hosts close a connection that has been idle for five seconds, or seems so on a busy machine, and drop a request
        sent at that moment.
        """
        sent = dict(headers or {}) | ({"authorization": f"Bearer {token}"} if token else {})
        limits = httpx.Limits(keepalive_expiry=idle_seconds)
        url = f"{stack.base_url}/v1"
        # Plain HTTP: with `verify`, each client would first load the machine's certificates, which takes 10 ms or more.
        self.http = httpx.Client(base_url=url, headers=sent, timeout=120, trust_env=False, verify=False, limits=limits)

    def __enter__(self) -> "Wire":
        """Return self; connections are opened on demand."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.http.close()

    def post(self, body: Any) -> httpx.Response:
        """Request a response; bytes and strings are sent unchanged, anything else as JSON."""
        if isinstance(body, bytes | str):
            return self.http.post("/responses", content=body, headers={"content-type": "application/json"})
        return self.http.post("/responses", json=body)

    def create(self, **body: Any) -> Json:
        """Create a response and validate it."""
        answer = self.post(body)
        assert answer.status_code == 200, answer.text
        return checked(answer)

    def stream(self, **body: Any) -> list[Json]:
        """Return all events of a streamed response, validated."""
        with self.http.stream("POST", "/responses", json=body | {"stream": True}) as answer:
            return events_of(answer)

    def get(self, path: str, **query: Any) -> httpx.Response:
        """Send a GET below `/responses`: `/ID`, `/ID/input_items`, or nothing for the list."""
        return self.http.get(f"/responses{path}", params=query)

    def retrieve(self, response_id: str) -> Json:
        """Return a stored response, validated."""
        answer = self.get(f"/{response_id}")
        assert answer.status_code == 200, answer.text
        return checked(answer)

    def replay(self, response_id: str, *, taken_over: bool = False) -> list[Json]:
        """Return the events of a stored response, validated like those of a new one; `taken_over` as in `check_stream`."""
        with self.http.stream("GET", f"/responses/{response_id}", params={"stream": "true"}) as answer:
            return events_of(answer, taken_over=taken_over)

    def send_each_request(self, response_id: str) -> dict[str, httpx.Response]:
        """Send every request that names a response; return the answers by the kind of request."""
        path = f"/responses/{response_id}"
        return {
            "retrieve": self.http.get(path),
            "replay": self.http.get(path, params={"stream": "true"}),
            "items": self.http.get(f"{path}/input_items"),
            "cancel": self.http.post(f"{path}/cancel"),
            "delete": self.http.delete(path),
        }

    def listed(self, **query: Any) -> list[Json]:
        """Return the responses on the first page of the list, without the `input` that each has there."""
        answer = self.get("", **query)
        assert answer.status_code == 200, answer.text
        data: list[Json] = answer.json()["data"]
        assert all(isinstance(response.pop("input"), list) for response in data)
        return data

    def pages(self, path: str = "", **query: Any) -> list[Json]:
        """Return all pages of a list: `""` for responses, `/ID/input_items`."""
        found: list[Json] = []
        while not found or found[-1]["has_more"]:
            answer = self.get(path, **query)
            assert answer.status_code == 200, answer.text
            found.append(answer.json())
            query["after"] = found[-1]["last_id"]
        return found


def checked(answer: httpx.Response) -> Json:
    """Return the response object of an answer, validated."""
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    response: Json = answer.json()
    validate_response(response)
    return response


def events_of(answer: httpx.Response, *, taken_over: bool = False) -> list[Json]:
    """Return the events of a streamed answer, validated."""
    if answer.status_code != 200:
        answer.read()
        raise AssertionError(answer.text)
    assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
    events = read_sse(answer.iter_bytes()).events
    check_stream(events, taken_over=taken_over)
    return events


def final(events: list[Json]) -> Json:
    """Return the final response of a stream."""
    response: Json = events[-1]["response"]
    return response


def error_of(answer: httpx.Response, status: int) -> Json:
    """Return the error object of an answer with this status, which must be exactly in OpenAI's form."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert list(body) == ["error"]
    error: Json = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] in ERROR_TYPES
    assert isinstance(error["message"], str)
    assert len(error["message"]) > 10
    assert "Traceback" not in error["message"]
    return error


def output_text(response: Json) -> str:
    """Return all output text of a response."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")


def roles_and_texts(messages: list[Json]) -> list[tuple[str, str]]:
    """Return chat messages as `(role, text)`."""
    return [(message["role"], _text(message.get("content"))) for message in messages]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])
