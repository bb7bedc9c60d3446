"""What a client reads of a cluster: its URL, and the map of slots as nodes tell it."""

import pytest

from llama_stack_responses.store.redis_cluster import _Node, _parsed, _ranges
from llama_stack_responses.store.redis_connections import Access


def test_url_names_nodes_and_settings_of_all_connections() -> None:
    access = Access("rediss://me@one:7000,two,[::1]:7001?ssl_ca_certs=ca.pem", "secret", None, 3.0)
    nodes, settings = _parsed(access)
    assert nodes == [("one", 7000), ("two", 6379), ("::1", 7001)]
    kept = {name: settings[name] for name in ("username", "password", "ssl_ca_certs", "socket_timeout")}
    assert kept == {"username": "me", "password": "secret", "ssl_ca_certs": "ca.pem", "socket_timeout": 3.0}


@pytest.mark.parametrize("unknown", [b"", b"?", None], ids=repr)
def test_node_that_does_not_know_its_host_is_where_it_was_asked(unknown: bytes | None) -> None:
    answer = [[0, 99, [unknown, 7000, b"id", []], [b"two", 7001, b"id", []]], [100, 16383, [b"two", 7001, b"id", []]]]
    asked = _Node("one", 6379)
    assert [*_ranges(answer, asked)] == [
        (0, 99, [("one", 7000), ("two", 7001)]),
        (100, 16383, [("two", 7001)]),
    ]
