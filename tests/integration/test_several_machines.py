"""The template `postgres-s3`: two servers without a folder in common, behind nginx, with PostgreSQL and S3."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from llama_stack_responses.cli import main
from tests.support.nginx import Nginx
from tests.support.postgres import Postgres
from tests.support.prompts import PromptsClient
from tests.support.s3 import S3
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess
from tests.support.wire import Wire, output_text

pytestmark = [pytest.mark.live, pytest.mark.both_hosts, pytest.mark.extended, pytest.mark.day(3)]

TEMPLATE: Final = REPOSITORY / "templates" / "postgres-s3" / "config.yaml"
BALANCER: Final = REPOSITORY / "templates" / "scale-out" / "nginx.conf"
ADDRESSES: Final = ("127.0.0.1:8321", "127.0.0.1:8322")
ROUNDS: Final = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all files of the servers."""
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def bucket(folder: Path) -> Iterator[S3]:
    """The server with the bucket."""
    with S3(folder / "s3") as running:
        yield running


@pytest.fixture(scope="module")
def database(folder: Path) -> Iterator[Postgres]:
    """The database of both servers."""
    with Postgres(folder / "postgres") as running:
        yield running


@pytest.fixture(scope="module")
def environment(
    stack_env: dict[str, str], upstream_process: UpstreamProcess, bucket: S3, database: Postgres
) -> dict[str, str]:
    """The environment that the template names."""
    return {
        **stack_env,
        **bucket.environment,
        "INFERENCE_URL": upstream_process.client.base_url,
        "DATABASE_HOST": "127.0.0.1",
        "DATABASE_PORT": str(database.port),
        "DATABASE_NAME": "postgres",
        "DATABASE_USER": "postgres",
        "DATABASE_PASSWORD": database.password,
    }


@pytest.fixture(scope="module")
def servers(host: Host, environment: dict[str, str], folder: Path) -> Iterator[list[LiveStack]]:
    """The two servers, started one after the other, as the template says."""
    with (
        LiveStack(TEMPLATE, environment, folder / "one", host=host) as one,
        LiveStack(TEMPLATE, environment, folder / "other", host=host) as other,
    ):
        yield [one, other]


@pytest.fixture(scope="module")
def address(servers: list[LiveStack], folder: Path) -> Iterator[Nginx]:
    """The nginx in front of the servers."""
    behind = {name: f"127.0.0.1:{server.port}" for name, server in zip(ADDRESSES, servers, strict=True)}
    with Nginx(BALANCER.read_text(), folder, "127.0.0.1:8320", behind) as running:
        yield running


def test_file_uploaded_through_one_server_is_read_used_and_deleted_through_the_other(
    servers: list[LiveStack], bucket: S3, upstream: Upstream
) -> None:
    with Wire(servers[0]) as one, Wire(servers[1]) as other:
        file = uploaded(one, "Otters hold hands.")
        assert bucket.objects == {file: b"Otters hold hands."}
        assert other.http.get(f"/files/{file}/content").content == b"Otters hold hands."
        assert file in [each["id"] for each in other.http.get("/files").json()["data"]]
        assert "Otters hold hands." in asked(other, upstream, file)
        assert other.http.delete(f"/files/{file}").json()["deleted"] is True
        assert one.http.get(f"/files/{file}").status_code == 404
        assert bucket.objects == {}


def test_prompt_written_through_one_server_is_used_and_changed_through_the_other(
    servers: list[LiveStack], upstream: Upstream
) -> None:
    one, other = map(PromptsClient, servers)
    prompt = one.write("Speak {{language}}.", "language")
    other.rewrite(prompt, 1, "Sing in {{language}}.", "language")
    used = {"id": prompt, "version": "2", "variables": {"language": "Norwegian"}}
    with Wire(servers[0]) as wire:
        wire.create(model="local/echo", input="Hi", prompt=used)
    assert "Sing in Norwegian." in str(upstream.requests("echo")[-1].body["messages"])


def test_every_request_through_the_balancer_finds_files_and_prompts(
    address: Nginx, servers: list[LiveStack], upstream: Upstream
) -> None:
    prompt = PromptsClient(servers[0]).write("Be brief.")
    for number in range(ROUNDS):
        with Wire(address) as wire:
            file = uploaded(wire, f"Note {number}.")
            for _ in servers:
                assert f"Note {number}." in asked(wire, upstream, file, prompt={"id": prompt})
            assert wire.http.delete(f"/files/{file}").is_success
            assert wire.http.get(f"/files/{file}").status_code == 404


def test_servers_keep_nothing_on_their_own_disks(servers: list[LiveStack], address: Nginx) -> None:
    for server in servers:
        left = [path.name for path in server.state_dir.rglob("*") if path.suffix in (".db", ".sqlite")]
        assert left == []
        assert not (server.state_dir / "files").exists()


# The hosts read a deprecated field of their own.
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_deletion_of_a_user_empties_the_bucket(
    servers: list[LiveStack],
    environment: dict[str, str],
    bucket: S3,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Wire(servers[0]) as wire:
        uploaded(wire, "Mine.")
        prompt = PromptsClient(servers[0]).write("Mine.")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert main(["delete", "--owner", "", "--yes", "--json", "--config", str(TEMPLATE)]) == 0
        deleted = json.loads(capsys.readouterr().out)
        assert (deleted["deleted files"], deleted["deleted prompts"] > 0) == (1, True)
        assert bucket.objects == {}
        assert wire.http.get("/files").json()["data"] == []
        assert not wire.http.get(f"/prompts/{prompt}").is_success


def uploaded(wire: Wire, content: str) -> str:
    """Upload a file and return its id."""
    files = {"file": ("note.txt", content.encode())}
    return str(wire.http.post("/files", data={"purpose": "assistants"}, files=files).json()["id"])


def asked(wire: Wire, upstream: Upstream, file: str, **more: Any) -> str:
    """Ask about a file, and return what the model server got."""
    part = {"type": "input_file", "file_id": file}
    created = wire.create(model="local/echo", input=[{"role": "user", "content": [part]}], **more)
    assert output_text(created)
    return str(upstream.requests("echo")[-1].body["messages"])
