"""What happens once, when the host begins to serve."""

import asyncio
import gc
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.wrong_settings import wrong_settings
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.host import configuration, get_provider_impl
from llama_stack_responses.host.configuration import RunningStack
from llama_stack_responses.host.platform import CONFIG_VARIABLE, Api, fastapi_router_registry
from llama_stack_responses.host.replaced_routes import enter_router
from llama_stack_responses.lifecycle.garbage import THRESHOLDS
from tests.support.memory import resident_bytes
from tests.support.stack import STARTER


async def test_start_freezes_loaded_objects_for_garbage_collector() -> None:
    config = ResponsesConfig.model_validate({"store": {"type": "memory"}})
    provided = await get_provider_impl(config, {Api.inference: None}, [])
    gc.unfreeze()
    thresholds = gc.get_threshold()
    try:
        assert provided.start()
        spared = gc.get_freeze_count()
        assert spared > 10_000
        assert not provided.start(), "it runs"
        assert gc.get_freeze_count() <= spared, "what came since is looked at"
        assert gc.get_threshold() == THRESHOLDS
    finally:
        gc.set_threshold(*thresholds)
        await provided.shutdown()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc returns memory when told to")
async def test_start_returns_memory_that_loading_has_freed() -> None:
    config = ResponsesConfig.model_validate({"store": {"type": "memory"}})
    provided = await get_provider_impl(config, {Api.inference: None}, [])
    freed = [bytes(1_000) for _ in range(50_000)]
    last = freed.pop()  # it lies at the end of the heap, which the C library would return by itself
    before = resident_bytes(os.getpid())
    thresholds = gc.get_threshold()
    try:
        del freed
        provided.start()
        assert last is not None
        assert before - resident_bytes(os.getpid()) > 40_000_000
    finally:
        gc.set_threshold(*thresholds)
        await provided.shutdown()


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules after a start without settings and page, in a new process: this one has imported what tests use."""
    script = (
        "import asyncio, sys\n"
        "from llama_stack_responses.config import ResponsesConfig\n"
        "from llama_stack_responses.host import get_provider_impl\n"
        "from llama_stack_responses.host.platform import Api\n"
        "config = ResponsesConfig.model_validate({'store': {'type': 'memory'}, 'ui': False})\n"
        "asyncio.run(get_provider_impl(config, {Api.inference: None}, []))\n"
        "print(*sys.modules, sep='\\n')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    return set(run.stdout.splitlines())


def test_start_imports_nothing_of_features_that_are_not_configured(loaded: set[str]) -> None:
    features = "llama_stack_responses.features"
    with_settings = ("admin", "code", "doctor", "images", "keys", "usage")
    assert {f"{features}.{name}.feature" for name in with_settings} <= loaded
    unused = (
        "admin.operator_routes",
        "admin.store_view",
        "code.containers.entries",
        "code.sandbox.packages",
        "cold.rows",
        "doctor.checks",
        "doctor.schedule",
        "images.client",
        "keys.authentication",
        "keys.key_routes",
        "keys.opened_keys",
        "moderation.by_checks",
        "moderation.checks",
        "page.assets",
        "page.page_routes",
        "programs.runtime",
        "programs.tool",
        "usage.counting",
        "usage.limits.limiter",
        "usage.prices",
        "usage.reading",
        "usage.routes",
        "usage.tables",
    )
    assert not loaded & {"packaging", *(f"{features}.{name}" for name in unused)}
    assert "llama_stack_responses.chat.adaptation.refusal" in loaded
    assert not loaded & {f"llama_stack_responses.chat.adaptation.{name}" for name in ("subject", "schema_task")}


@pytest.mark.extended
def test_import_of_provider_leaves_garbage_collection_on_and_spares_what_is_loaded() -> None:
    script = "import gc, llama_stack_responses.provider\nprint(gc.isenabled(), gc.get_freeze_count() > 10_000)"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert run.stdout.split()[-2:] == ["True", "True"]


def test_file_of_the_stack_is_checked_once_for_all_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, checked = tmp_path / "config.yaml", list[str]()

    def check(text: str, *_: object) -> list[str]:
        checked.append(text)
        return []

    config.write_text("providers: {}")
    monkeypatch.setattr("sys.argv", ["llama", "stack", "run", str(config)])
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    monkeypatch.setattr(configuration, "wrong_settings", check)
    stack = RunningStack()
    for _ in range(3):
        stack.check()
    assert checked == ["providers: {}"]
    monkeypatch.setenv("OF_THE_FILE", "1")
    stack.check()
    assert len(checked) == 2
    config.write_text("providers: {inference: []}")
    stack.check()
    assert checked == ["providers: {}", "providers: {}", "providers: {inference: []}"]


def test_check_of_a_template_loads_no_settings_of_disabled_providers() -> None:
    """If the host ignored a name of the file, it could belong to any provider, and all would be loaded."""
    found = list[str]()

    def find(_: str, provider_type: str) -> None:
        found.append(provider_type)

    assert not list(wrong_settings(STARTER.read_text(), find, {}, configuration._host_fields()))
    assert "inline::kv" in found
    assert "remote::searxng" not in found


def test_routes_are_made_once_for_all_that_the_host_asks() -> None:
    config = ResponsesConfig.model_validate({"store": {"type": "memory"}})
    provided = asyncio.run(get_provider_impl(config, {Api.inference: None}, []))
    enter_router()
    routes = fastapi_router_registry.build_fastapi_router(Api.responses, provided)
    assert routes is fastapi_router_registry.build_fastapi_router(Api.responses, provided)


async def test_start_without_shortcuts_leaves_thresholds_of_garbage_collector() -> None:
    config = ResponsesConfig.model_validate({"store": {"type": "memory"}, "host_shortcuts": False})
    provided = await get_provider_impl(config, {Api.inference: None}, [])
    thresholds = gc.get_threshold()
    try:
        assert provided.start()
        assert gc.get_threshold() == thresholds != THRESHOLDS
    finally:
        await provided.shutdown()


@pytest.mark.parametrize(("allowed", "status"), [(True, 503), (False, 400)])
async def test_stored_prompts_can_be_disabled(allowed: bool, status: int) -> None:
    """The prompts of this stack cannot be read; where they are disabled, no read is tried."""
    config = ResponsesConfig.model_validate({"store": {"type": "memory"}, "stored_prompts": allowed})
    provided = await get_provider_impl(config, {Api.inference: None, Api.prompts: None}, [])
    with pytest.raises(ApiError) as raised:
        await provided.create({"model": "m", "input": "Hi", "prompt": {"id": "pmpt_" + "0" * 48}})
    assert raised.value.status == status
