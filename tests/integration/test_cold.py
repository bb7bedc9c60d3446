"""A live server whose old responses are in a bucket: clients notice nothing while the bucket is there."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest

from llama_stack_responses.features.cold import units
from llama_stack_responses.features.cold.objects import Objects
from llama_stack_responses.features.cold.packing import Packing
from llama_stack_responses.features.cold.settings import ColdTier
from llama_stack_responses.store.backup_format import read_backup
from llama_stack_responses.store.layout import Entry
from llama_stack_responses.store.records import Record
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.support.one_pixel import ONE_PIXEL
from tests.support.s3 import S3
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import UpstreamProcess
from tests.support.variants import Json, responses_config, variant
from tests.support.wire import Wire, error_of, output_text

# The store and the bucket do not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.one_host]

MODEL: Final = "local/echo"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[S3]:
    with S3(tmp_path / "s3") as running:
        yield running


@pytest.fixture
def stack(
    bucket: S3, host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path: Path
) -> Iterator[LiveStack]:
    def change(config: Json) -> None:
        responses_config(config)["archive"] = bucket.archive

    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    config = variant(STARTER, tmp_path / "config.yaml", change)
    with LiveStack(config, env, tmp_path / "state", host=host) as running:
        yield running


def pack(stack: LiveStack, bucket: S3) -> None:
    """Pack all responses, as another server would whose clock is days ahead; images of chains with 50 KB by themselves."""

    async def work() -> None:
        records = SqliteRecords(stack.state_dir / "responses.db")
        objects = Objects(ColdTier.model_validate(bucket.archive), records)
        packing = Packing(records, objects, -3600, least_bytes=1, keep_seconds=0)
        with patch.multiple(units, PART_BYTES=20_000, UNIT_BYTES=50_000):
            await packing._pack()
        await packing.release()
        await records.close()

    asyncio.run(work())


def test_old_responses_are_in_a_bucket(stack: LiveStack, wire: Wire, bucket: S3, tmp_path: Path) -> None:
    head, _, pixel = ONE_PIXEL.partition(",")
    image = f"{head},{b64encode(b64decode(pixel) + random.Random(1).randbytes(60_000)).decode()}"
    shown = [{"type": "input_image", "image_url": image}, {"type": "input_text", "text": "one"}]
    first = wire.create(model=MODEL, input=[{"role": "user", "content": shown}])
    second = wire.create(model=MODEL, input="two", previous_response_id=first["id"])
    other = wire.create(model=MODEL, input="three")
    looked_at = wire.create(model=MODEL, input="look")
    talks = [conversation(wire, [f"{name} {number}" for number in range(5)]) for name in ("first", "second", "third")]
    pack(stack, bucket)
    [packed] = bucket.objects.values()
    assert len(packed) > 60_000
    saved = backup(stack, tmp_path)
    assert not [key for key in saved if key.startswith("co/")]
    assert max(map(len, saved.values())) > 60_000
    assert Entry.decode(Record(saved[f"r/{other['id']}"], 1)).id == other["id"]

    third = wire.create(model=MODEL, input="four", previous_response_id=second["id"])
    assert output_text(third)
    assert wire.http.get(f"/responses/{first['id']}").json() == first
    [asked] = wire.http.get(f"/responses/{first['id']}/input_items").json()["data"]
    assert asked["content"][0]["image_url"] == image

    check_conversation(wire, talks[0])
    check_page_and_command(stack, wire, looked_at["id"], tmp_path)

    bucket.kill()
    for url in (f"/conversations/{talks[1]}/items", f"/conversations/{talks[1]}"):
        refused = wire.http.get(url)
        assert refused.status_code == (503 if url.endswith("items") else 200)
    assert wire.http.delete(f"/conversations/{talks[1]}").status_code == 200
    refused = wire.http.get(f"/responses/{other['id']}")
    assert "object store" in error_of(refused, 503)["message"]
    assert int(refused.headers["retry-after"]) > 0
    assert wire.http.get(f"/responses/{third['id']}").status_code == 200
    assert wire.http.delete(f"/responses/{other['id']}").status_code == 200
    assert wire.http.get(f"/responses/{other['id']}").status_code == 404
    run(stack, tmp_path, "delete", "--owner", "", "--yes")
    assert wire.listed() == []
    assert wire.http.get(f"/conversations/{talks[2]}").status_code == 404
    assert keys_of_chains(stack) == []


def conversation(wire: Wire, texts: list[str]) -> str:
    """Return the id of a new conversation with these messages."""
    items = [{"role": "user", "content": text} for text in texts]
    made: str = wire.http.post("/conversations", json={"items": items}).json()["id"]
    return made


def check_conversation(wire: Wire, conversation_id: str) -> None:
    """List, read, continue and change a packed conversation."""
    items = f"/conversations/{conversation_id}/items"
    page = wire.http.get(items, params={"limit": 2, "order": "asc"}).json()
    rest = wire.http.get(items, params={"order": "asc", "after": page["last_id"]}).json()
    texts = [each["content"][0]["text"] for each in (*page["data"], *rest["data"])]
    assert texts == [f"first {number}" for number in range(5)]
    [found, last] = [page["data"][1]["id"], rest["data"][-1]["id"]]
    assert wire.http.get(f"{items}/{found}").json() == page["data"][1]
    assert wire.http.delete(f"{items}/{last}").status_code == 200
    assert output_text(wire.create(model=MODEL, input="and?", conversation=conversation_id))
    assert len(wire.http.get(items).json()["data"]) == 4 + 2


def check_page_and_command(stack: LiveStack, wire: Wire, response_id: str, folder: Path) -> None:
    """Look at a packed response as the page does, and at how full the store is."""
    packed = keys_of_chains(stack)
    listed = wire.http.get("/ui/responses").json()
    assert response_id in {each["id"] for each in listed["data"]}
    assert keys_of_chains(stack) == packed
    shown = wire.http.get(f"/ui/responses/{response_id}")
    assert (shown.status_code, response_id in shown.text) == (200, True), shown.text
    assert len(keys_of_chains(stack)) == len(packed) - 1
    partition, *_ = [json.loads(line) for line in run(stack, folder, "partitions", "--json").splitlines()]
    assert partition["state"] == "ok"


def keys_of_chains(stack: LiveStack) -> list[str]:
    """Return the keys of the rows of packed chains."""
    with closing(sqlite3.connect(stack.state_dir / "responses.db")) as database:
        return [key for [key] in database.execute("SELECT key FROM records WHERE key LIKE 'co/%' ORDER BY key")]


def run(stack: LiveStack, folder: Path, *arguments: str) -> str:
    """Run a command, and return what it prints."""
    command = [str(Path(sys.executable).with_name("llama-stack-responses")), *arguments]
    config = ["--config", str(folder / "config.yaml")]
    return subprocess.run([*command, *config], check=True, env=stack._env, text=True, stdout=subprocess.PIPE).stdout


def backup(stack: LiveStack, folder: Path) -> dict[str, bytes]:
    """Return the rows of a backup."""
    target = folder / "saved"
    run(stack, folder, "backup", str(target))
    with target.open("rb") as file:
        return {row.key: row.value for row in read_backup(file)}
