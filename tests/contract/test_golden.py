"""On every backend, each version reads what earlier versions wrote."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store import codec
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put, Records
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED
from tests.contract.golden import EVERY_KIND, STORES, clean_up, open_seals

ADDED: Final = re.compile(r"y/|j/.+/")
"""The beginnings of the keys that the first format does not have."""

FILES: Final = sorted((Path(__file__).parent / "golden").glob("*.json"))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> Any:
    return json.loads(request.param.read_text()) | {"name": request.param.stem}


@pytest.fixture
def every_kind() -> Any:
    return json.loads((FILES[0].parent / f"{EVERY_KIND}.json").read_text())


@pytest.mark.needs("transactions")
async def test_rows_of_earlier_version_are_read(golden: Any, records: Records, clock: Clock) -> None:
    await records.commit([Put(key, b64decode(value)) for key, value in golden["rows"].items()])
    _, read = STORES[golden["name"]]
    found = await read(records, clock)
    assert json.loads(json.dumps(found)) == golden["read"]


@pytest.mark.needs("transactions")
async def test_interrupted_work_of_earlier_version_is_finished(every_kind: Any, records: Records, clock: Clock) -> None:
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


def test_sealed_values_of_earlier_version_open(golden: Any) -> None:
    assert open_seals(golden["seals"])


async def test_rows_have_keys_and_fields_of_earlier_versions(golden: Any) -> None:
    """A renamed field would be lost silently: a version drops fields that it does not know."""
    clock = Clock(CREATED)
    records = MemoryRecords(clock=clock)
    fill, _ = STORES[golden["name"]]
    await fill(records, clock)
    rows = await records.range("!", "~", limit=10_000)
    before = {key: fields(b64decode(value)) for key, value in golden["rows"].items()}
    now = {key: fields(record.value) for key, record in rows}
    assert {key for key in before.keys() ^ now.keys() if not ADDED.match(key)} == set()
    assert {key: before[key] - now[key] for key in before if before[key] - now[key]} == {}


def fields(value: bytes) -> set[str]:
    """Return the names of a row's fields, or an empty set if its value is not an object."""
    try:
        decoded = codec.decode(value)
    except ApiError:
        return set()
    return set(decoded) if isinstance(decoded, dict) else set()
