"""What `doctor` says of the setting `archive`: of a folder, of a bucket, and of servers that refuse."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.commands.command_error import CommandError
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.features.cold.probe import probe
from tests.support.http_server import Peer, serving
from tests.support.s3 import S3

OTHERS: Final = b"of a store"
SECRET: Final = "secret-of-the-tests"
ACCESS: Final = {"region": "us-east-1", "access_key_id": "id", "secret_access_key": SECRET}
DATE: Final = "Mon, 30 Nov 2026 00:00:00 GMT"
LISTED: Final = (
    b"<ListBucketResult><Name>bucket</Name><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
)


def config(**archive: str) -> ResponsesConfig:
    return ResponsesConfig.model_validate({"archive": archive})


async def said(**archive: str) -> str:
    """Return the sentence of a place that cannot be used."""
    with pytest.raises(CommandError) as refused:
        await probe(config(**archive))
    return str(refused.value)


async def test_without_the_setting_nothing_is_tried() -> None:
    assert await probe(ResponsesConfig()) == ""


async def test_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "other.pack").write_bytes(OTHERS)
    assert (
        await probe(config(url=f"file://{tmp_path}"))
        == f"Objects in file://{tmp_path} of 'archive' can be written, read, listed and deleted."
    )
    assert os.listdir(tmp_path) == ["other.pack"]  # noqa: PTH208 (it is synchronous)


async def test_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sentence = await said(url=f"file://{tmp_path}/file/cold")
    assert sentence == (
        f"The server cannot write files in file://{tmp_path}/file/cold of 'archive' (Not a directory): create the "
        "folder, mount it on all servers, and let the user that runs them write there."
    )


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.mark.extended
async def test_bucket_is_tried_and_one_that_is_missing_is_said(s3: S3) -> None:
    assert "can be written" in await probe(config(**s3.archive))
    assert s3.objects == {}
    sentence = await said(**{**s3.archive, "url": "s3://none/cold"})
    assert sentence.startswith(f"There is no bucket none at {s3.url}: create it, or check 'url'")


@pytest.mark.parametrize(
    ("refused", "status", "code", "words"),
    [
        (
            "PUT",
            403,
            "SignatureDoesNotMatch",
            "write objects in the bucket bucket (SignatureDoesNotMatch): check access_key_id",
        ),
        ("GET", 403, "AccessDenied", "read objects in the bucket bucket (AccessDenied): check access_key_id"),
        ("POST", 403, "AccessDenied", "delete objects in the bucket bucket (AccessDenied): check"),
        ("PUT", 400, "AuthorizationHeaderMalformed", "(AuthorizationHeaderMalformed): check 'region' and 'url'"),
    ],
)
async def test_refusal_of_a_bucket_says_what_to_do(refused: str, status: int, code: str, words: str) -> None:
    objects: dict[str, bytes] = {}

    async def answer(peer: Peer) -> None:
        asked = await peer.request()
        method, path, _ = asked.line.split()
        answered, body = 200, b""
        if method == "PUT":
            objects[path] = asked.body
        elif path in objects:
            body = objects[path]
        elif method == "GET":
            body = LISTED
        if method == refused:
            answered, body = status, f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode()
        ranged = f"content-range: bytes 0-{len(body) - 1}/{len(body)}\r\n" if "range" in asked.headers else ""
        answered = 206 if ranged and answered == 200 else answered
        head = f'HTTP/1.1 {answered} Answer\r\netag: "1"\r\nlast-modified: {DATE}\r\nconnection: close\r\n{ranged}'
        await peer.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        peer.writer.close()

    async with serving(answer) as server:
        sentence = await said(**ACCESS, url="s3://bucket", endpoint=server.url.removesuffix("/v1"))
    assert words in sentence
    assert SECRET not in sentence


async def test_server_that_is_not_there_is_said() -> None:
    assert (await said(**ACCESS, url="s3://bucket", endpoint="http://127.0.0.1:9")).startswith(
        "Nothing answers at http://127.0.0.1:9: check 'endpoint'"
    )


async def test_missing_credentials_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    # What a machine without a cloud's address of credentials gets.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    sentence = await said(url="s3://bucket", endpoint="http://127.0.0.1:9")
    assert sentence.startswith("There are no credentials for 'archive': set its access_key_id")
