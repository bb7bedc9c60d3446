"""Which settings of an object store are taken, and what is said of others."""

from __future__ import annotations

import sys
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import cast

import pytest
import yaml
from pydantic import ValidationError

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.core.setting_values import WrongConfiguration
from llama_stack_responses.feature import Stack
from llama_stack_responses.features.cold.feature import open_feature
from llama_stack_responses.features.cold.packing import Packing
from llama_stack_responses.features.cold.prefixes import FOLDER
from llama_stack_responses.features.cold.rows import Chain, Place, RecordStub
from llama_stack_responses.features.cold.settings import SETTINGS, ColdTier
from llama_stack_responses.features.cold.tier import open_tier
from llama_stack_responses.features.cold.unconfigured import UnconfiguredRecords
from llama_stack_responses.features.cold.unpacking_records import UnpackingRecords
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put
from llama_stack_responses.telemetry.instrumentation import Telemetry
from tests.support.snippets import blocks

PLACE = Place("6ab13b80ad4dc782596e", 0)
CHAIN = Chain(ANONYMOUS, 0, 9, bytes(32), 1, ())


def test_documented_block_is_valid() -> None:
    text = blocks()["docs/guides/cold-responses.md, Responses in an object store, yaml"].text
    settings = SETTINGS.of(ResponsesConfig.model_validate(yaml.safe_load(text)))
    assert settings
    assert settings.after_hours == 48


@pytest.mark.parametrize("url", ["responses", "s3://", "http://bucket", "file://relative/folder", "s3://Bucket", ""])
def test_place_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="this is not s3://BUCKET"):
        ColdTier(url=url)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://host", "http://", "http://key:secret@host"])
def test_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="this is not http://HOST"):
        ColdTier(url="s3://bucket", endpoint=endpoint)


def test_setting_without_a_url_is_no_setting() -> None:
    assert SETTINGS.of(ResponsesConfig.model_validate({"archive": {"url": ""}})) is None


def test_store_that_ends_with_the_process_is_refused(tmp_path: Path) -> None:
    given = {"store": {"type": "memory"}, "archive": {"url": f"file://{tmp_path}"}}
    with pytest.raises(WrongConfiguration, match="needs a store that all servers share"):
        open_tier(MemoryRecords(), ResponsesConfig.model_validate(given), Telemetry())


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "llama_stack_responses.features.cold.objects", raising=False)
    config = ResponsesConfig.model_validate({"archive": {"url": f"file://{tmp_path}"}})
    with pytest.raises(WrongConfiguration, match="pip install obstore"):
        open_tier(MemoryRecords(), config, Telemetry())


def test_store_that_ends_with_the_process_is_left_alone() -> None:
    records = MemoryRecords()
    config = ResponsesConfig.model_validate({"store": {"type": "memory"}})
    assert open_tier(records, config, Telemetry()) is records


def test_no_package_is_needed_without_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    for name in ("objects", "bringing", "unpacking_records"):
        monkeypatch.delitem(sys.modules, f"llama_stack_responses.features.cold.{name}", raising=False)
    for telemetry in (Telemetry(), None):
        opened = open_tier(MemoryRecords(), ResponsesConfig(), telemetry)
        assert type(opened).__name__ == ("UnconfiguredRecords" if telemetry else "UnpackingRecords")


async def test_command_without_the_setting_says_what_it_cannot_read() -> None:
    records = MemoryRecords()
    await records.commit([Put(PLACE.key, CHAIN.encode()), RecordStub(PLACE, "6ab13b80000000").put("resp_1")])
    opened = open_tier(records, ResponsesConfig(), None)
    assert isinstance(opened, UnpackingRecords)
    with pytest.raises(ApiError, match="'archive', which is not set here"):
        await opened.get_many(["r/resp_1"])
    with pytest.raises(ApiError, match="'archive', which is not set here"):
        _ = [rows async for rows in opened.snapshot()]


async def test_server_without_the_setting_says_that_responses_are_packed(caplog: pytest.LogCaptureFixture) -> None:
    records = MemoryRecords()
    await records.commit([Put(FOLDER, b"0" * 16)])
    await UnconfiguredRecords(records, Telemetry()).get_many(["r/resp_1"])
    assert not caplog.records
    await records.commit([Put(PLACE.key, CHAIN.encode())])
    await UnconfiguredRecords(records, Telemetry()).get_many(["r/resp_1"])
    assert "there are responses in the object store" in caplog.text


def test_packing_shares_its_work_by_the_name_of_the_worker(tmp_path: Path) -> None:
    config = ResponsesConfig.model_validate({"archive": {"url": f"file://{tmp_path}"}})
    stack = SimpleNamespace(config=config, records=MemoryRecords(), telemetry=Telemetry())
    feature = open_feature(cast("Stack", stack))
    feature.connect(cast("OpenAIResponsesImpl", SimpleNamespace(jobs=SimpleNamespace(worker_id="worker_1"))))
    assert cast("Packing", cast("MethodType", feature.start).__self__).shares.worker == "worker_1"
