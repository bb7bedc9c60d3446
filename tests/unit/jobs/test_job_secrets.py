"""The secrets of a request, sealed into its job."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.jobs.job_secrets import JobSecrets
from llama_stack_responses.sealing.sealer import Sealer

Json = dict[str, Any]

ANNA: Final = Owner("anna", {}, "")
BODY: Final[Json] = {
    "model": "m",
    "tools": [
        {"type": "function", "name": "f"},
        {
            "type": "mcp",
            "server_label": "s",
            "server_url": "https://example.com/path-canary?key=query-canary",
            "authorization": "token-canary",
            "headers": {"x": "header-canary"},
            "allowed_tools": ["add"],
        },
    ],
}
BY_PATH: Final[Json] = {
    "model": "m",
    "tools": [{"type": "mcp", "server_label": "s", "server_url": "https://a.example/s/path-canary-12/mcp"}],
}
PLAIN: Final[Json] = {
    "model": "m",
    "tools": [{"type": "mcp", "server_label": "s", "server_url": "https://a.example/mcp"}],
}


def secrets(*known: bytes) -> JobSecrets:
    return JobSecrets(Sealer(known))


def test_mcp_credentials_and_keys_are_sealed() -> None:
    job = secrets(bytes(32))
    body, sealed = job.seal(BODY, {"api_key": "key-canary"}, "resp_1", ANNA)
    assert sealed is not None
    assert "canary" not in f"{body} {sealed}"
    assert body["tools"][1] == {"type": "mcp", "server_label": "s", "allowed_tools": ["add"]}
    assert job.open(body, sealed, "resp_1", ANNA) == (BODY, {"api_key": "key-canary"})


@pytest.mark.parametrize(
    ("kind", "field", "container"),
    [("code_interpreter", "container", "auto"), ("shell", "environment", "container_auto")],
)
def test_secrets_of_domains_are_sealed(kind: str, field: str, container: str) -> None:
    secret = {"domain": "a.example", "name": "KEY", "value": "value-canary"}
    policy = {"type": "allowlist", "allowed_domains": ["a.example"]}
    tools: list[Json] = [
        {"type": kind, field: {"type": container, "network_policy": policy}},
        {"type": kind, field: {"type": container, "network_policy": {**policy, "domain_secrets": [secret]}}},
    ]
    body, job = {**PLAIN, "tools": tools}, secrets(bytes(32))
    left, sealed = job.seal(body, {}, "resp_1", ANNA)
    assert "canary" not in f"{left} {sealed}"
    assert left["tools"] == [tools[0], {"type": kind}]
    assert job.open(left, sealed, "resp_1", ANNA) == (body, {})
    with pytest.raises(ApiError, match="'secrets'"):
        secrets().seal(body, {}, "resp_1", ANNA)


def test_sealed_secrets_open_only_for_same_job_and_owner() -> None:
    body, sealed = secrets(bytes(32)).seal(BODY, {}, "resp_1", ANNA)
    for other in ("resp_2", "resp_1"):
        owner = ANNA if other == "resp_2" else Owner("boris", {}, "")
        with pytest.raises(ApiError, match="cannot be decrypted"):
            secrets(bytes(32)).open(body, sealed, other, owner)


@pytest.mark.parametrize("known", [[], [bytes(32)]])
def test_request_without_secrets_stays_unchanged(known: list[bytes]) -> None:
    job = secrets(*known)
    body, sealed = job.seal(PLAIN, {}, "resp_1", ANNA)
    assert job.open(body, sealed, "resp_1", ANNA) == (PLAIN, {})


@pytest.mark.parametrize(("body", "keys"), [(BODY, {}), (BY_PATH, {}), (PLAIN, {"api_key": "k"})])
def test_secrets_are_refused_without_configured_secret(body: Json, keys: Json) -> None:
    with pytest.raises(ApiError, match="'secrets'") as caught:
        secrets().seal(body, keys, "resp_1", ANNA)
    assert (caught.value.status, caught.value.code) == (400, "unsupported_value")
    assert "canary" not in caught.value.message
