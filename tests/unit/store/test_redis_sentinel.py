"""Connections to a primary that Sentinels name, without any server."""

from __future__ import annotations

from llama_stack_responses.store.redis_sentinel import pools_of_sentinels, sentinel_pool


def test_settings_of_the_url_hold_for_the_primary_and_for_the_sentinels() -> None:
    url = "rediss+sentinel://me@one,two:7000/responses/3?socket_timeout=60&ssl_ca_certs=ca.pem"
    pool = sentinel_pool(url, "sesame", password="secret", socket_timeout=3.0, socket_connect_timeout=3.0)
    of_all = {"socket_timeout": 60.0, "socket_connect_timeout": 3.0, "ssl_ca_certs": "ca.pem"}
    of_primary = {"username": "me", "password": "secret", "db": 3}
    assert pool.connection_kwargs.items() >= (of_all | of_primary).items()
    found = [each.connection_kwargs for each in pools_of_sentinels(pool)]
    assert [(each["host"], each["port"], each["password"]) for each in found] == [
        ("one", 26379, "sesame"),
        ("two", 7000, "sesame"),
    ]
    assert all(each.items() >= of_all.items() for each in found)
