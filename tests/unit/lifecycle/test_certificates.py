"""The end of certificates: of files, and of those that servers present, also after they have ended."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from pydantic import ValidationError

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.stores import ClusterStore, PostgresStore, RedisStore, SqliteStore, Store
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.lifecycle.certificates import CertificateCheck, watched
from tests.support.certificates import Certificates

DAY = 86_400.0


def ending(folder: Path, days: float) -> Certificates:
    """Create a server's certificate that ends in so many days, or has ended."""
    folder.mkdir(parents=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    now = datetime.now(UTC)
    issued = authority.issue_cert(
        "localhost", not_before=now - timedelta(days=90), not_after=now + timedelta(days=days, minutes=10)
    )
    issued.cert_chain_pems[0].write_to_path(folder / "server.pem")
    issued.private_key_pem.write_to_path(folder / "server.key")
    return Certificates(folder)


def spoil(path: str) -> None:
    Path(path).write_text("no certificate")


def remove(path: str) -> None:
    Path(path).unlink()


@asynccontextmanager
async def presenting(tls: ssl.SSLContext | None, *, asks: bool = False) -> AsyncIterator[int]:
    """Run a server that presents a certificate, or that refuses TLS, and yield its port.

    Args:
        asks: whether its clients ask for TLS first, as PostgreSQL's do.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):
            if asks:
                await reader.readexactly(8)
                writer.write(b"S" if tls else b"N")
            if asks and tls:
                await writer.start_tls(tls)
            await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=None if asks else tls) as server:
        yield server.sockets[0].getsockname()[1]


async def days_of(check: CertificateCheck) -> dict[str, int]:
    """Check once, and return the whole days that are left of each certificate."""
    await check.check()
    return {name: int(seconds // DAY) for name, seconds in check.remaining().items()}


async def test_certificates_of_files_are_logged_before_they_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends = {"long": 100, "soon": 5, "over": -1}
    paths = {name: ending(tmp_path / name, days).path("server.pem") for name, days in ends.items()}
    check = CertificateCheck(watched(list(paths.values()), SqliteStore()), 21, DEFAULT)
    assert await days_of(check) == {paths[name]: days for name, days in ends.items()}
    await check.check()
    logged = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert logged == [
        ("WARNING", f"a certificate ends soon: {paths['soon']}, in 5 days"),
        ("ERROR", f"a certificate has ended: {paths['over']}"),
    ]


async def test_warning_comes_once_a_day(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = ending(tmp_path / "soon", 5).path("server.pem")
    passed = 0.0

    def clock() -> float:
        return datetime.now(UTC).timestamp() + passed

    check = CertificateCheck(watched([path], SqliteStore()), 21, DEFAULT, clock)
    for hour in range(0, 49, 6):
        passed = hour * 3600.0
        await check.check()
    assert [each.getMessage()[-9:] for each in caplog.records] == ["in 5 days", "in 4 days", "in 3 days"]


@pytest.mark.parametrize("kind", ["redis", "cluster", "postgres"])
async def test_certificate_that_the_store_presents_is_read_although_it_has_ended(tmp_path: Path, kind: str) -> None:
    async with presenting(ending(tmp_path / "over", -2).of_server(), asks=kind == "postgres") as port:
        here = f"localhost:{port}"
        stores: dict[str, Store] = {
            "redis": RedisStore(type="redis", url=f"rediss://{here}/0"),
            "cluster": ClusterStore(type="cluster", url=f"rediss://{here},{here}"),
            "postgres": PostgresStore(type="postgres", url=f"postgresql://me@{here},{here}/db?sslmode=verify-full"),
        }
        check = CertificateCheck(watched([], stores[kind]), 21, DEFAULT)
        assert await days_of(check) == {f"store {here}": -2}


async def test_named_server_and_files_of_the_address_are_read(tmp_path: Path) -> None:
    web, store = ending(tmp_path / "web", 50), ending(tmp_path / "store", 60)
    url = f"postgresql://me@localhost/db?sslmode=disable&sslcert={store.path('server.pem')}"
    async with presenting(web.of_server()) as port:
        place = f"localhost:{port}"
        check = CertificateCheck(watched([place], PostgresStore(type="postgres", url=url)), 21, DEFAULT)
        assert await days_of(check) == {place: 50, store.path("server.pem"): 60}


async def test_certificate_that_cannot_be_read_is_logged_once_and_keeps_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = ending(tmp_path / "web", 50).path("server.pem")
    check = CertificateCheck(watched([path], SqliteStore()), 21, DEFAULT)
    await check.check()
    spoil(path)
    for _ in range(2):
        assert await days_of(check) == {path: 50}
    remove(path)
    await check.check()
    assert [each.getMessage() for each in caplog.records] == [
        f"could not read a certificate: {path}: ValueError",
        f"could not read a certificate: {path}: FileNotFoundError",
    ]


async def test_server_without_tls_is_no_certificate(caplog: pytest.LogCaptureFixture) -> None:
    async with presenting(None, asks=True) as port:
        url = f"postgresql://me@127.0.0.1:{port}/db?sslmode=require"
        check = CertificateCheck(watched([], PostgresStore(type="postgres", url=url)), 21, DEFAULT)
        await check.check()
    assert check.remaining() == {}
    assert "ValueError" in caplog.text


@pytest.mark.parametrize("place", ["server.pem", "localhost", "localhost:99999", ":443"])
def test_place_that_is_neither_a_file_nor_a_server_is_refused(place: str) -> None:
    with pytest.raises(ValidationError, match="HOST:PORT"):
        ResponsesConfig.model_validate({"watched_certificates": [place]})
