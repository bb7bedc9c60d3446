"""Requests as pages of other sites send them, on every route, against a live stack."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.support.auth import auth_server
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import variant
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Wire, output_text

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

Json = dict[str, Any]

EVIL: Final = "https://evil.test"
ROUTES: Final = (
    ("GET", "/v1/responses"),
    ("GET", "/v1/responses/resp_1?stream=true"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/responses/compact"),
    ("POST", "/v1/conversations"),
    ("DELETE", "/v1/conversations/conv_1"),
    ("POST", "/v1/containers"),
    ("GET", "/v1/containers/cntr_1/files/cfile_1/content"),
    ("POST", "/v1/skills"),
    ("GET", "/v1/ready"),
    ("GET", "/v1/ui/responses"),
    ("GET", "/ui"),
    ("GET", "/ui/app.js"),
    # The host's own.
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/files"),
    ("DELETE", "/v1/files/file-1"),
    ("POST", "/v1/prompts"),
    ("GET", "/v1/health"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/no/such/path"),
    ("PUT", "/v1/responses"),
)


def asked(stack: LiveStack, method: str, path: str, **headers: str) -> httpx.Response:
    """Send a request with these headers, whose names have `_` for `-`."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(method, stack.base_url + path, headers=sent, timeout=120, trust_env=False, verify=False)


def code(answer: httpx.Response) -> tuple[int, str | None]:
    """Return the status and the code of an error."""
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_refuses_a_foreign_page(stack: LiveStack, method: str, path: str) -> None:
    for host in ("evil.test", f"evil.test:{stack.port}", "127.0.0.1.evil.com", "localhost.evil.com."):
        assert code(asked(stack, method, path, host=host)) == (403, "host_not_allowed")
    for foreign in (
        {"origin": EVIL},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1", "sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
    ):
        assert code(asked(stack, method, path, **foreign)) == (403, "origin_not_allowed")


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST.", "app.localhost:1", "[::1]:8321", "10.9.8.7", "127.0.0.1"])
def test_server_answers_to_addresses_and_localhost(stack: LiveStack, name: str) -> None:
    assert asked(stack, "GET", "/v1/responses", host=name).status_code == 200


def test_refusal_names_the_setting(stack: LiveStack) -> None:
    refused = asked(stack, "GET", "/v1/responses", host="box.lan:8321")
    assert refused.json()["error"] == {
        "message": "This server has no authentication and does not answer to the host name 'box.lan:8321', so that a web "
        "page cannot reach it under a name of its own: add the name to the variable ALLOWED_HOSTS of the templates, or "
        "to the setting 'allowed_hosts' of the responses provider.",
        "type": "permission_error",
        "param": None,
        "code": "host_not_allowed",
    }
    assert refused.headers["x-request-id"]
    assert "'allowed_origins'" in asked(stack, "POST", "/v1/responses", origin=EVIL).json()["error"]["message"]


def test_no_answer_lets_a_foreign_page_read_it(stack: LiveStack) -> None:
    """A stack without CORS settings sends no CORS headers."""
    for method in ("GET", "OPTIONS", "POST"):
        answer = asked(stack, method, "/v1/responses", origin=EVIL, access_control_request_method="POST")
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert answer.is_error


@pytest.mark.parametrize("headers", [{"origin": EVIL}, {"host": "evil.test"}, {"sec-fetch-site": "cross-site"}])
def test_foreign_websocket_is_refused_with_the_reason(stack: LiveStack, headers: dict[str, str]) -> None:
    if "host" in headers:
        # The library sends its own host.
        head = "GET /v1/responses HTTP/1.1\r\nHost: evil.test\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
        head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        assert b"host_not_allowed" in raw(stack, head.encode())
        return
    with pytest.raises(InvalidStatus) as refused:
        WebSocketClient(stack, headers=headers)
    assert refused.value.response.status_code == 403
    assert b"'allowed_origins'" in (refused.value.response.body or b"")


JSON: Final = b'{"model": "local/victim", "input": "x"}'


def raw(stack: LiveStack, data: bytes) -> bytes:
    """Send bytes on a connection of their own, and return all that comes back until it is closed."""
    received = b""
    with socket.create_connection(("127.0.0.1", stack.port), 60) as connection:
        connection.sendall(data)
        with suppress(ConnectionError):
            while piece := connection.recv(65_536):
                received += piece
    return received


def post(*lines: bytes, version: bytes = b"1.1", target: bytes = b"/v1/responses", body: bytes = JSON) -> bytes:
    head = [b"POST %b HTTP/%b" % (target, version), *lines, b"Connection: close"]
    if not any(line.lower().startswith(b"transfer-encoding") for line in lines):
        head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*head, b"", body])


KIND: Final = b"Content-Type: application/json"
CHUNKED: Final = b"%x\r\n%b\r\n0\r\n\r\n" % (len(JSON), JSON)
ATTACKS: Final = {
    "several hosts": post(b"Host: localhost", b"Host: evil.test", KIND),
    "several hosts, in the other order": post(b"Host: evil.test", b"Host: localhost", KIND),
    "host of a list": post(b"Host: localhost, evil.test", KIND),
    "empty host": post(b"Host:", KIND),
    "only a port": post(b"Host: :8321", KIND),
    "user in the host": post(b"Host: localhost@evil.test", KIND),
    "forwarded host": post(b"Host: evil.test", b"X-Forwarded-Host: localhost", b"Forwarded: host=localhost", KIND),
    "absolute target": post(b"Host: evil.test", KIND, target=b"http://localhost/v1/responses"),
    "HTTP/1.0": post(b"Host: evil.test", KIND, version=b"1.0"),
    "other case of the name": post(b"hOsT: EVIL.test", KIND),
    "folded host": post(b"Host: localhost\r\n .evil.test", KIND),
    "text": post(b"Host: localhost", b"Content-Type: text/plain"),
    "no type": post(b"Host: localhost"),
    "text as JSON": post(b"Host: localhost", b"Content-Type: text/plain; application/json"),
    "nearly JSON": post(b"Host: localhost", b"Content-Type: application/jsonx"),
    "form": post(b"Host: localhost", b"Content-Type: application/x-www-form-urlencoded"),
    "text in chunks": post(
        b"Host: localhost", b"Content-Type: text/plain", b"Transfer-Encoding: chunked", body=CHUNKED
    ),
    "foreign in chunks": post(b"Host: localhost", b"Origin: null", b"Transfer-Encoding: chunked", body=CHUNKED),
    "foreign without a type": post(b"Host: localhost", b"Origin: https://evil.test"),
    "several origins": post(b"Host: localhost", b"Origin: https://evil.test", b"Origin: http://localhost", KIND),
    "several sites": post(b"Host: localhost", b"Sec-Fetch-Site: cross-site", b"Sec-Fetch-Site: same-origin", KIND),
    "no-cors with a token": post(b"Host: localhost", b"Origin: https://evil.test", b"Authorization: Bearer x", KIND),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_request_written_by_hand_runs_nothing(stack: LiveStack, upstream: Upstream, attack: str) -> None:
    upstream.script("victim", reply(text("Done.")))
    answer = raw(stack, ATTACKS[attack])
    assert answer.startswith(b"HTTP/1.1 4"), answer
    assert not upstream.requests("victim")


def test_second_request_of_a_connection_is_checked(stack: LiveStack) -> None:
    own = b"GET /v1/responses?limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    foreign = b"GET /v1/responses?limit=1 HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n"
    answers = raw(stack, own + foreign)
    assert answers.index(b"HTTP/1.1 200") < answers.index(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "request_",
    [
        post(KIND, version=b"1.0"),
        post(b"Host: localhost", KIND + b"; charset=utf-8"),
        post(b"Host: evil.test", b"Host: localhost", KIND).replace(b"Host: evil.test\r\n", b""),
        post(b"Host: 127.0.0.1", KIND, target=b"http://evil.test/v1/responses"),
    ],
    ids=["HTTP/1.0 without a host", "charset", "one host", "absolute target with an own host"],
)
def test_client_that_is_no_browser_is_answered(stack: LiveStack, upstream: Upstream, request_: bytes) -> None:
    upstream.script("victim", reply(text("Done.")))
    assert raw(stack, request_).startswith(b"HTTP/1.1 200"), request_


@pytest.fixture(scope="module")
def named(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """A stack of the starter template with a name and an allowed origin, from the template's variables."""
    env = {
        **stack_env,
        "INFERENCE_URL": upstream_process.client.base_url,
        "ALLOWED_HOSTS": "responses.example.com, *.lan",
        "ALLOWED_ORIGINS": "https://app.example.com",
    }
    with LiveStack(STARTER, env, tmp_path_factory.mktemp("named"), host=host) as live:
        yield live


def test_configured_names_and_origins_are_let_in(named: LiveStack) -> None:
    for name, status in (("responses.example.com", 200), ("Box.LAN:8321", 200), ("lan", 403), ("example.com", 403)):
        assert asked(named, "GET", "/v1/responses", host=name).status_code == status
    app = {"origin": "https://app.example.com", "sec-fetch-site": "cross-site"}
    with Wire(named, headers=app) as wire:
        assert output_text(wire.create(model="local/echo", input="x"))
    with WebSocketClient(named, headers={"origin": app["origin"]}) as websocket:
        websocket.ask(model="local/echo", input="x")
        assert output_text(websocket.response())
    assert code(asked(named, "POST", "/v1/responses", origin="https://app.example.com.evil.test"))[0] == 403


def test_authentication_replaces_the_check_of_the_name(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A page has no token. With one, any page that a proxy or the host's CORS settings let in may use the server."""
    folder = tmp_path_factory.mktemp("tokens")
    with auth_server({"token-of-ada": {"principal": "ada"}}) as endpoint:

        def guard(config: Json) -> None:
            config["server"]["auth"] = {"provider_config": {"type": "custom", "endpoint": endpoint}}

        env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
        config = variant(STARTER, folder / "config.yaml", guard)
        with LiveStack(config, env, folder / "state", host=host) as live:
            token = {"authorization": "Bearer token-of-ada"}
            assert asked(live, "GET", "/v1/responses", host="evil.test").status_code == 401
            assert asked(live, "GET", "/v1/responses", host="evil.test", **token).status_code == 200
            assert asked(live, "GET", "/v1/responses", origin=EVIL, **token).status_code == 200
            assert code(asked(live, "POST", "/v1/responses", origin=EVIL)) == (403, "origin_not_allowed")
            with pytest.raises(InvalidStatus):
                WebSocketClient(live, headers={"origin": EVIL})
            with WebSocketClient(live, token="token-of-ada", headers={"origin": EVIL}) as websocket:
                websocket.ask(model="local/echo", input="x")
                assert output_text(websocket.response())
