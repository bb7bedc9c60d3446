"""What happens once, when the host begins to serve."""

import gc
import sys

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.host import get_provider_impl
from llama_stack_responses.host.platform import Api


async def test_the_process_becomes_one_that_serves() -> None:
    config = ResponsesConfig.model_validate({"store": {"type": "memory"}})
    provided = await get_provider_impl(config, {Api.inference: None}, [])
    gc.unfreeze()
    usual = sys.getswitchinterval()
    try:
        assert provided.start()
        assert sys.getswitchinterval() < usual
        spared = gc.get_freeze_count()
        assert spared > 10_000
        assert not provided.start(), "it runs"
        assert gc.get_freeze_count() <= spared, "what came since is looked at"
    finally:
        gc.unfreeze()
        sys.setswitchinterval(usual)
        await provided.shutdown()
