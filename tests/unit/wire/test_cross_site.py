"""Which requests the headers give away as those of a page of another site."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.wire.cross_site import CrossSitePolicy

Headers = dict[str, str]

HERE = "127.0.0.1"
NETWORK = "192.168.1.5"
LABELS = st.from_regex(r"[a-z0-9-]{1,10}", fullmatch=True)
PUBLIC = st.builds(
    "{}.{}".format, st.lists(LABELS, max_size=3).map(lambda each: ".".join(["x", *each])), LABELS
).filter(lambda name: not re.search(r"\.([0-9]+|localhost|local|internal|home\.arpa)$", name))
"""Names that somebody may have registered."""


def policy(
    hosts: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
    cors: tuple[str, ...] = (),
    authenticated: bool = False,
) -> CrossSitePolicy:
    return CrossSitePolicy(hosts, origins, lambda origin: origin in cors, authenticated=authenticated)


def scope(method: str, headers: Any, server: Any = HERE) -> dict[str, Any]:
    pairs = headers.items() if isinstance(headers, dict) else headers
    made: dict[str, Any] = {"type": "http", "method": method, "server": server and (server, 8321)}
    if method == "websocket":
        made = {"type": "websocket", "server": (server, 8321)}
    return {**made, "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs]}


def refusal(found: CrossSitePolicy, *asked: Any) -> str | None:
    """Return the code with which a request is refused; None if it is let in."""
    try:
        found.check(scope(*asked))
    except ApiError as error:
        return error.code or str(error.status)
    return None


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8321",
        "localhost.",
        "localhost.:8321",
        "app.localhost:1",
        "127.0.0.1",
        "127.0.0.1:8321",
        "127.9.9.9",
        "[::1]:8321",
        "[::ffff:127.0.0.1]",
        "0.0.0.0:8321",
        "10.2.3.4:8321",
        "203.0.113.9",
        "2130706433",
        "127.1:8321",
    ],
)
@pytest.mark.parametrize("server", [HERE, NETWORK, "::1"])
def test_address_and_localhost_are_answered(host: str, server: str) -> None:
    assert refusal(policy(), "GET", {"host": host}, server) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "evil.test:8321",
        "EVIL.test.",
        "127.0.0.1.evil.com",
        "localhost.evil.com",
        "127.0.0.1.evil.com:8321",
        "localhost:8321.evil.com",
        "localhost@evil.com",
        "evil.com#localhost",
        "notlocalhost.com",
        "evillocalhost.com",
        "xn--localhost-x.com",
        "local",
        "evil.local.com",
        "evil.localhost.com",
        "",
        ":8321",
        ".",
        ".localhost.com",
        "[::1",
        "[evil.test]",
        "[::1]evil.com",
        "localhost, evil.com",
        "127.0.0.1 evil.com",
        "127.0.0.1\x00.evil.com",
        "l\xf6calhost",
        "localhost" + "." * 2,
        "a." * 200 + "localhost",
    ],
)
def test_other_name_is_refused_on_this_machine(host: str) -> None:
    for method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "websocket"):
        assert refusal(policy(), method, {"host": host}, HERE) == "host_not_allowed"


@pytest.mark.parametrize("host", ["responses", "server-1:8321", "box.local", "a_b", "responses.ns.svc.cluster.local"])
@pytest.mark.parametrize(
    ("server", "answered"),
    [(NETWORK, True), ("2001:db8::1", True), (HERE, False), ("::ffff:127.0.0.1", False), (None, False), ("x", False)],
)
def test_name_that_public_dns_does_not_have_is_answered_on_network_only(
    host: str, server: str | None, answered: bool
) -> None:
    """A service of a compose file is reached under its name; a server of one machine is not."""
    assert refusal(policy(), "GET", {"host": host}, server) == (None if answered else "host_not_allowed")


@given(name=PUBLIC, port=st.sampled_from(["", ":80", ":8321"]), dot=st.sampled_from(["", "."]), up=st.booleans())
def test_every_public_name_is_refused_unless_configured(name: str, port: str, dot: str, up: bool) -> None:
    sent = {"host": (name.upper() if up else name) + dot + port}
    for server in (HERE, NETWORK):
        assert refusal(policy(), "GET", sent, server) == "host_not_allowed"
        assert refusal(policy(hosts=(name,)), "GET", sent, server) is None
        assert refusal(policy(hosts=(f"*.{name}",)), "GET", sent, server) == "host_not_allowed"
        assert refusal(policy(hosts=(f"*.{name.partition('.')[2]}",)), "GET", sent, server) is None
        assert refusal(policy(hosts=("*",)), "GET", sent, server) is None
        assert refusal(policy(authenticated=True), "GET", sent, server) is None


@given(st.text(st.characters(max_codepoint=255), max_size=40))
def test_no_host_header_makes_the_check_fail(host: str) -> None:
    assert refusal(policy(), "GET", {"host": host}) in (None, "host_not_allowed")


def test_request_without_host_is_answered() -> None:
    """HTTP/1.0 of a load balancer's check. No browser leaves it out."""
    assert refusal(policy(), "GET", {}) is None


@pytest.mark.parametrize("name", ["host", "origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"])
def test_header_that_is_sent_twice_is_refused(name: str) -> None:
    twice = [("host", "localhost"), ("origin", "http://localhost"), (name, "localhost"), (name, "localhost")]
    assert refusal(policy(), "GET", twice) == "400"


def test_forwarded_host_does_not_count() -> None:
    sent = {"host": "evil.test", "x-forwarded-host": "localhost", "forwarded": "host=localhost"}
    assert refusal(policy(), "GET", sent) == "host_not_allowed"


def test_refused_name_is_quoted_with_the_setting() -> None:
    with pytest.raises(ApiError, match=r"'evil\.test:8321'.*'allowed_hosts'"):
        policy().check(scope("GET", {"host": "evil.test:8321"}))


OWN = {"host": "localhost:8321"}
FOREIGN = "https://evil.test"
METHODS = ("POST", "PUT", "PATCH", "DELETE", "GET", "HEAD", "websocket", "TRACE", "post")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"origin": "http://localhost:8321"},
        {"origin": "HTTP://LOCALHOST:8321"},
        {"origin": "https://localhost:8321"},
        # A development server that forwards requests changes the host and not the origin.
        {"origin": "http://localhost:3000", "sec-fetch-site": "same-origin"},
        {"origin": "chrome-extension://abc", "sec-fetch-site": "none"},
    ],
)
def test_own_page_and_other_client_are_let_in(method: str, sent: Headers) -> None:
    assert refusal(policy(), method, OWN | sent) is None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "sent",
    [
        {"origin": FOREIGN},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://"},
        {"origin": "localhost:8321"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://localhost"},
        {"origin": "http://localhost:8321.evil.com"},
        {"origin": "http://localhost:8321@evil.com"},
        {"origin": "http://127.0.0.1:8321"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": ""},
        {"sec-fetch-site": "same-origin, cross-site"},
        {"origin": FOREIGN, "sec-fetch-site": "cross-site"},
        {"origin": "null", "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        # As the site says; the host may be one that a proxy has put there.
        {"origin": "http://localhost:8321", "sec-fetch-site": "same-site"},
        {"origin": FOREIGN, "authorization": "Bearer x"},
    ],
)
def test_foreign_page_is_refused(method: str, sent: Headers) -> None:
    assert refusal(policy(), method, OWN | sent) == "origin_not_allowed"


@pytest.mark.parametrize(
    ("host", "origin"), [("a.example", "https://a.example:443"), ("a.example:80", "http://a.example")]
)
def test_default_port_makes_no_other_origin(host: str, origin: str) -> None:
    assert refusal(policy(hosts=("a.example",)), "POST", {"host": host, "origin": origin}) is None


LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def test_link_of_another_site_opens_the_page() -> None:
    assert refusal(policy(), "GET", OWN | LINK) is None
    assert refusal(policy(), "HEAD", OWN | LINK) is None


@pytest.mark.parametrize(
    ("method", "sent"),
    [
        ("POST", {}),
        ("DELETE", {}),
        ("websocket", {}),
        ("GET", {"sec-fetch-dest": "iframe"}),
        ("GET", {"sec-fetch-dest": "object"}),
        ("GET", {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}),
        ("GET", {"sec-fetch-mode": "no-cors"}),
    ],
)
def test_only_a_link_is_let_in_from_another_site(method: str, sent: Headers) -> None:
    assert refusal(policy(), method, OWN | LINK | sent) == "origin_not_allowed"


def test_preflight_is_let_in() -> None:
    """The host's CORS settings answer it."""
    sent = OWN | {"origin": FOREIGN, "sec-fetch-site": "cross-site", "access-control-request-method": "POST"}
    assert refusal(policy(), "OPTIONS", sent) is None


@pytest.mark.parametrize("method", ["POST", "GET", "websocket"])
@pytest.mark.parametrize("site", [{}, {"sec-fetch-site": "cross-site"}])
def test_configured_origin_is_let_in(method: str, site: Headers) -> None:
    named = OWN | {"origin": "https://app.example"} | site
    assert refusal(policy(origins=("https://app.example",)), method, named) is None
    assert refusal(policy(cors=("https://app.example",)), method, named) is None
    other = OWN | {"origin": "https://app.example.evil.test"} | site
    assert refusal(policy(origins=("https://app.example",)), method, other) == "origin_not_allowed"


@pytest.mark.parametrize(
    ("authorization", "code"),
    [("Bearer abc", None), ("bearer abc", None), ("Basic abc", "origin_not_allowed"), ("", "origin_not_allowed")],
)
def test_origin_does_not_count_with_a_checked_token(authorization: str, code: str | None) -> None:
    """No page can send a token that it does not have, but a browser adds a password by itself."""
    sent = OWN | {"origin": FOREIGN, "authorization": authorization}
    assert refusal(policy(authenticated=True), "POST", sent) == code


def test_refused_origin_is_quoted_with_the_variable_and_the_setting() -> None:
    with pytest.raises(ApiError, match=r"'https://evil\.test'.* ALLOWED_ORIGINS .*'allowed_origins'"):
        policy().check(scope("POST", OWN | {"origin": FOREIGN}))
    with pytest.raises(ApiError, match=r"^Web pages of other sites .* ALLOWED_ORIGINS .*'allowed_origins'"):
        policy().check(scope("POST", OWN | {"sec-fetch-site": "cross-site"}))


def test_refused_host_is_quoted_with_the_variable_and_the_setting() -> None:
    with pytest.raises(ApiError, match=r"'evil\.test'.* ALLOWED_HOSTS .*'allowed_hosts'"):
        policy().check(scope("GET", {"host": "evil.test"}))
