"""What is wrong with an endpoint is said in a sentence; an address that may not be connected to is refused."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.webhooks.new_endpoint import checked_endpoint
from llama_stack_responses.features.webhooks.sending import Sender
from llama_stack_responses.fetch.address_policy import AddressPolicy


def checked(url: Any, *networks: str, allow_http: bool = False) -> str:
    """Return a URL that may be that of an endpoint."""
    policy = AddressPolicy([ip_network(each) for each in networks])
    return str(checked_endpoint({"url": url}, allow_http, policy, whole=False)["url"])


def refusal(url: Any, *networks: str, allow_http: bool = False) -> str:
    with pytest.raises(ApiError) as refused:
        checked(url, *networks, allow_http=allow_http)
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, "url", "invalid_value")
    return refused.value.message


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (3, "Invalid value for 'url': expected a string."),
        ("", "'url' is empty."),
        (f"https://a.example/{'a' * 2048}", "'url' is longer than 2048 characters."),
        ("https://a.example/a b", "'url' has a space or a control character: a space is written as %20."),
        ("https://a.example/\n", "'url' has a space or a control character: a space is written as %20."),
        ("hook", "'url' does not begin with https://."),
        ("a.example:443/hook", "'url' does not begin with https://."),
        ("ftp://a.example", "'url' does not begin with https://."),
        (
            "http://a.example",
            "'url' begins with http://: use https://, or have the operator set 'webhooks.allow_http'.",
        ),
        ("https://", "'url' has no host after https://."),
        ("https://:443/hook", "'url' has no host after https://."),
        ("https://user:word@a.example", "'url' has a user or a password: the signature says who sends."),
        ("https://[::1", "'url' has an IPv6 address that is not written as [ADDRESS]."),
        ("https://a.example:99999/hook", "'url' has a port that is not a number from 1 to 65535."),
        ("https://a.example:x/hook", "'url' has a port that is not a number from 1 to 65535."),
        ("https://a.example:0/hook", "'url' has the port 0."),
    ],
)
def test_wrong_url_is_refused_with_what_is_wrong(url: Any, message: str) -> None:
    assert refusal(url) == message


def test_refusal_names_both_schemes_if_both_are_allowed() -> None:
    assert refusal("ftp://a.example", allow_http=True) == "'url' does not begin with https:// or http://."


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "localhost",
        "[::1]",
        "10.0.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "192.168.1.1:8",
    ],
)
def test_url_with_an_address_that_may_not_be_connected_to_is_refused(host: str) -> None:
    assert "has no public address" in (message := refusal(f"https://{host}/hook"))
    assert "'fetch.allowed_networks'" in message


@pytest.mark.parametrize(
    "url", ["https://a.example/hook#part", "https://8.8.8.8/hook", "https://127.0.0.1:9/hook", "https://internal/hook"]
)
def test_names_and_allowed_addresses_are_accepted(url: str) -> None:
    """A name is resolved when something is sent to it."""
    assert checked(url, "127.0.0.0/8") == url


async def test_message_to_an_address_that_may_not_be_connected_to_is_not_sent() -> None:
    answer = await Sender(AddressPolicy(), 60).post("https://10.0.0.1/hook", {}, b"{}")
    assert answer.status is None
    assert "'fetch.allowed_networks'" in answer.text
