"""What happens once, when the host begins to serve."""

import gc
from pathlib import Path

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.host import get_provider_impl
from llama_stack_responses.host.platform import Api


async def test_what_is_loaded_is_no_longer_looked_at_for_garbage() -> None:
    config = ResponsesConfig.model_validate({"store": {"type": "memory"}})
    provided = await get_provider_impl(config, {Api.inference: None}, [])
    gc.unfreeze()
    try:
        assert provided.start()
        spared = gc.get_freeze_count()
        assert spared > 10_000
        assert not provided.start(), "it runs"
        assert gc.get_freeze_count() <= spared, "what came since is looked at"
    finally:
        gc.unfreeze()
        await provided.shutdown()


@pytest.mark.parametrize(("allowed", "status"), [(True, 503), (False, 400)])
async def test_stored_prompts_can_be_turned_off(allowed: bool, status: int) -> None:
    """The prompts of this stack cannot even be read; where they are off, nobody tries."""
    config = ResponsesConfig.model_validate({"store": {"type": "memory"}, "stored_prompts": allowed})
    provided = await get_provider_impl(config, {Api.inference: None, Api.prompts: None}, [])
    with pytest.raises(ApiError) as raised:
        await provided.create({"model": "m", "input": "Hi", "prompt": {"id": "pmpt_" + "0" * 48}})
    assert raised.value.status == status


@pytest.mark.parametrize("folder", [None, ""])
def test_a_code_interpreter_without_a_folder_is_none(folder: str | None) -> None:
    """The host makes this of an environment variable that is not set."""
    assert ResponsesConfig.model_validate({"code_interpreter": {"folder": folder}}).code_interpreter is None


def test_a_code_interpreter_with_a_folder_is_taken() -> None:
    config = ResponsesConfig.model_validate({"code_interpreter": {"folder": "/x"}})
    assert config.code_interpreter
    assert config.code_interpreter.folder == Path("/x")
