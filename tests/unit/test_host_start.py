"""What happens once, when the host begins to serve."""

import gc

from llama_stack_responses.config import ResponsesConfig
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
