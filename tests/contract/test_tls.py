"""Servers with TLS, by the addresses in a configuration: a server that fails authentication gets no password.

The servers in the wheels were built without TLS, so a relay speaks it for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.host.keyvalue import backend
from llama_stack_responses.store.factory import open_records
from llama_stack_responses.store.records import Put, Records
from tests.support.certificates import Certificates, contexts_noted
from tests.support.cluster import OneNode
from tests.support.database import DatabaseServer
from tests.support.postgres import Postgres
from tests.support.relay import Relay
from tests.support.valkey import Valkey

PASSWORD: Final = "sesame"
BY_NAME: Final = ["--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname"]
SERVERS: Final[dict[str, Callable[[Path], DatabaseServer]]] = {
    "redis": lambda folder: Valkey(folder, "--appendfsync", "no", password=PASSWORD),
    "cluster": lambda folder: OneNode(folder, "--appendfsync", "no", *BY_NAME, password=PASSWORD),
    "postgres": lambda folder: Postgres(folder, "fsync=off", password=PASSWORD),
}
ADDRESSES: Final = {
    "redis": "rediss://localhost:{port}/0?ssl_ca_certs={trusted}",
    "cluster": "rediss://localhost:{port}?ssl_ca_certs={trusted}",
    "postgres": "postgresql://postgres@localhost:{port}/postgres?sslmode=verify-full&sslrootcert={trusted}",
}


@pytest.fixture(scope="module", params=SERVERS)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def server(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseServer]:
    with SERVERS[kind](tmp_path_factory.mktemp(kind)) as running:
        yield running


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    return named("localhost", tmp_path / "ours")


def named(host: str, folder: Path) -> Certificates:
    return Certificates.create_in(folder, [host], address=None)


def records(kind: str, port: int, trusted: Certificates) -> Records:
    url = ADDRESSES[kind].format(port=port, trusted=trusted.path("ca.pem"))
    config = ResponsesConfig.model_validate({"store": {"type": kind, "url": url, "password": PASSWORD}})
    return open_records(config.store, backend)


@contextmanager
def relayed(kind: str, server: DatabaseServer, certificates: Certificates) -> Iterator[Relay]:
    """Run a relay that speaks TLS for the server; a node of a cluster tells clients the relay's port."""
    with Relay(server.port, certificates.of_server(), asks=kind == "postgres") as relay:
        if isinstance(server, OneNode):
            server.told("CONFIG", "SET", "cluster-announce-port", relay.port)
        yield relay


async def test_server_with_trusted_certificate_is_used(kind: str, server: DatabaseServer, ours: Certificates) -> None:
    with relayed(kind, server, ours) as relay:
        opened = records(kind, relay.port, ours)
        await opened.commit([Put("a", b"1")])
        assert (await opened.get_many(["a"]))["a"].value == b"1"
        await opened.close()


@pytest.mark.relatives
@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_server_with_untrusted_certificate_is_refused(
    kind: str, server: DatabaseServer, ours: Certificates, tmp_path: Path, wrong: str
) -> None:
    theirs = named("localhost" if wrong == "authority" else "elsewhere", tmp_path / "theirs")
    trusted = ours if wrong == "authority" else theirs
    with relayed(kind, server, theirs) as relay:
        opened = records(kind, relay.port, trusted)
        with pytest.raises(ApiError) as error:
            await opened.get_many(["a"])
        assert (error.value.status, error.value.message) == (
            503,
            "The response store's server presents a certificate that is not trusted or is for another host: "
            "check the name of its host, and the authority that the store's url trusts.",
        )
        await opened.close()


async def failure_of(records: Records) -> str:
    """Return why a call fails."""
    with pytest.raises(ApiError) as error:
        await records.get_many(["a"])
    assert error.value.status == 503
    return error.value.message


def authority_of(certificates: Certificates) -> str:
    return Path(certificates.path("ca.pem")).read_text()


def replace(certificates: Certificates, content: str | None) -> None:
    """Write another authority to the file, or delete it."""
    path = Path(certificates.path("ca.pem"))
    path.unlink()
    if content is not None:
        path.write_text(content)


of_redis = pytest.mark.parametrize("kind", ["redis", "cluster"], scope="module")


@of_redis
async def test_connections_share_a_context_that_a_thread_makes(
    kind: str, server: DatabaseServer, ours: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making one for each would hold up the event loop: it reads all authorities that the machine trusts."""
    with relayed(kind, server, ours) as relay:
        opened = records(kind, relay.port, ours)
        await opened.get_many(["a"])
        threads = contexts_noted(monkeypatch)
        await asyncio.gather(*(opened.get_many(["a"]) for _ in range(8)))
        assert relay.served > 4
        assert threads == []
        replace(ours, authority_of(ours) + "\n")
        await opened.close()
        await opened.get_many(["a"])
        assert threads
        assert threading.get_ident() not in threads
        await opened.close()


@of_redis
async def test_authority_that_is_replaced_is_trusted_without_a_restart(
    kind: str, server: DatabaseServer, ours: Certificates, tmp_path: Path
) -> None:
    theirs = named("localhost", tmp_path / "theirs")
    with relayed(kind, server, theirs) as relay:
        opened = records(kind, relay.port, ours)
        assert "not trusted" in await failure_of(opened)
        replace(ours, authority_of(theirs))
        assert await opened.get_many(["a"]) == await opened.get_many(["a"])
        await opened.close()


@of_redis
@pytest.mark.parametrize("content", [None, "nothing"])
async def test_certificates_that_cannot_be_read_are_named(
    kind: str, server: DatabaseServer, ours: Certificates, content: str | None
) -> None:
    replace(ours, content)
    with relayed(kind, server, ours) as relay:
        opened = records(kind, relay.port, ours)
        assert "certificates for the response store's server cannot be read" in await failure_of(opened)
        await opened.close()


@of_redis
async def test_server_without_tls_is_told_from_one_that_is_away(kind: str, ours: Certificates) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR this is no TLS\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "localhost", 0) as plain:
        opened = records(kind, plain.sockets[0].getsockname()[1], ours)
        assert "check that it has TLS at this port" in await failure_of(opened)
        await opened.close()
