"""What happens once, when the host begins to serve."""

import gc

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.host import get_provider_impl
from llama_stack_responses.host.platform import Api
from llama_stack_responses.host.responses_provider import GARBAGE


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
        assert gc.get_threshold() == GARBAGE
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        await provided.shutdown()


async def test_start_without_shortcuts_leaves_thresholds_of_garbage_collector() -> None:
    config = ResponsesConfig.model_validate({"store": {"type": "memory"}, "host_shortcuts": False})
    provided = await get_provider_impl(config, {Api.inference: None}, [])
    thresholds = gc.get_threshold()
    try:
        assert provided.start()
        assert gc.get_threshold() == thresholds != GARBAGE
    finally:
        gc.unfreeze()
        await provided.shutdown()


@pytest.mark.parametrize(("allowed", "status"), [(True, 503), (False, 400)])
async def test_stored_prompts_can_be_disabled(allowed: bool, status: int) -> None:
    """The prompts of this stack cannot be read; where they are disabled, no read is tried."""
    config = ResponsesConfig.model_validate({"store": {"type": "memory"}, "stored_prompts": allowed})
    provided = await get_provider_impl(config, {Api.inference: None, Api.prompts: None}, [])
    with pytest.raises(ApiError) as raised:
        await provided.create({"model": "m", "input": "Hi", "prompt": {"id": "pmpt_" + "0" * 48}})
    assert raised.value.status == status
