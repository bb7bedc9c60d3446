"""A server without the feature that enforces limits."""

from __future__ import annotations

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.inference import FakeInference, finish, text
from tests.unit.service.test_running_share import SwitchedAccess
from tests.unit.service.test_short_requests import server


async def test_request_of_a_key_with_limits_is_refused_by_a_server_without_them() -> None:
    users, inference = SwitchedAccess(), FakeInference([text("ok"), finish()])
    impl = server(MemoryRecords(), inference, users)
    users.owner = Owner("ada", {"keys": ["key_1"], "limits": ["running=1"]})
    with pytest.raises(ApiError) as refused:
        await impl.create({"model": "m", "input": "x"})
    assert (refused.value.status, refused.value.code) == (403, "insufficient_permissions")

    users.owner = Owner("ada", {"keys": ["key_1"]})
    await impl.create({"model": "m", "input": "x"})
    await impl.shutdown()
