"""On every backend, each version reads what the released versions wrote, from 0.1.0 on."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.items.registry import ITEM_KINDS
from llama_stack_responses.store import codec
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put, Records
from llama_stack_responses.store.search_index import index_of
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED
from tests.contract.golden import EVERY_KIND, ITEMS, STORES, clean_up, open_seals
from tests.support.differences import differences
from tests.support.golden_store import FOLDER, VERSION, golden_files
from tests.support.stack import REPOSITORY

FILES: Final = golden_files(".json")
NOW: Final = FOLDER / VERSION
"""The files of this version, until the version after it is begun."""
OF_SERVERS: Final = {"uw", "ul", "sw", "dr", "ur", "ce", "uj", "ub", "oa", "qh", "qr"}
"""Kinds of rows that running servers renew, or that have no fields and end by themselves: no later version reads them."""


@pytest.fixture(params=FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def golden(request: pytest.FixtureRequest) -> Any:
    return json.loads(request.param.read_text()) | {"name": request.param.stem, "is_now": request.param.parent == NOW}


def load(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(params=sorted(FOLDER.glob(f"*/{EVERY_KIND}.json")), ids=lambda path: path.parent.name)
def every_kind(request: pytest.FixtureRequest) -> Any:
    return load(request.param)


@pytest.mark.needs("transactions")
async def test_rows_of_released_version_are_read(golden: Any, records: Records, clock: Clock) -> None:
    if golden["name"] == "paged" and index_of(records) is not None:
        pytest.skip("a store with an index of words has no pages")
    await records.commit([Put(key, b64decode(value)) for key, value in golden["rows"].items()])
    _, read = STORES[golden["name"]]
    found = await read(records, clock)
    assert list(differences(golden["read"], json.loads(json.dumps(found)))) == []


@pytest.mark.needs("transactions")
async def test_interrupted_work_of_released_version_is_finished(
    every_kind: Any, records: Records, clock: Clock
) -> None:
    await records.commit(
        # The lease of its worker has expired.
        [Put(key, b64decode(value)) for key, value in every_kind["rows"].items() if not key.startswith("p/")]
    )
    clock.now += 120
    await clean_up(records, clock)
    left = {key for key, _ in await records.range("!", "~", limit=10_000)}
    assert not [key for key in left if key[:2] in {"g/", "t/", "v/", "o/", "w/"}]
    assert "r/resp_5" in left
    assert not [key for key in left if "conv_2" in key or "resp_4" in key]


def test_sealed_values_of_released_version_open(golden: Any) -> None:
    assert open_seals(golden["seals"])


async def test_rows_have_keys_and_fields_of_released_versions(golden: Any) -> None:
    """A renamed field would be lost silently: a version drops fields that it does not know."""
    clock = Clock(CREATED)
    records = MemoryRecords(clock=clock)
    fill, _ = STORES[golden["name"]]
    await fill(records, clock)
    before = {key: fields(b64decode(value)) for key, value in golden["rows"].items()}
    now = {key: fields(record.value) for key, record in await records.range("!", "~", limit=10_000)}
    assert before.keys() - now.keys() == set()
    assert {key: before[key] - now[key] for key in before if before[key] - now[key]} == {}
    if golden["is_now"]:
        assert now == before, "what this version stores has changed: run `make golden` and commit its files"


def fields(value: bytes) -> set[str]:
    """Return the names of a row's fields, or an empty set if its value is not an object."""
    try:
        decoded = codec.decode(value)
    except ApiError:
        return set()
    return set(decoded) if isinstance(decoded, dict) else set()


def test_golden_stores_have_every_kind_of_item_and_row() -> None:
    oldest = FILES[0].parent
    assert {item["type"] for item in ITEMS} == set(ITEM_KINDS)
    kept = {key.partition("/")[0] for path in oldest.glob("*.json") for key in load(path)["rows"]}
    assert set(kinds_of_rows()) - kept == OF_SERVERS


def kinds_of_rows() -> Iterator[str]:
    """Yield the beginnings of keys that the docstrings of the modules list, and those that the code has."""
    for path in (REPOSITORY / "llama_stack_responses").rglob("*.py"):
        text = path.read_text()
        yield from re.findall(r"^ {4}([a-z]{1,2})/(?:[a-z]/)?(?:<|turn|reached)", text, re.MULTILINE)
        yield from re.findall(r'"([a-z]{1,2})/["{]', text)
