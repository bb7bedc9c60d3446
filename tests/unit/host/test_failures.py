"""A failing API of the stack gives a 503, and a missing object gives its own error."""

import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import orjson
import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.host.connectors import HostConnectors
from llama_stack_responses.host.files import HostFiles
from llama_stack_responses.host.platform import AccessDeniedError, InvalidParameterError, ResourceNotFoundError
from llama_stack_responses.host.prompts import HostPrompts
from llama_stack_responses.host.tool_runtime import HostToolRuntime
from llama_stack_responses.host.vector_stores import HostVectorStores

PROMPT: Final = "pmpt_" + "0" * 48


class FailingApi:
    """An API of the host whose every method raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def fail(*_: Any, **__: Any) -> Any:
            raise self._error

        return fail


PARTS: Final[dict[str, Callable[[FailingApi], Awaitable[Any]]]] = {
    "file store": lambda part: HostFiles(part).read("file-1", lambda _: None),
    "vector store": lambda part: HostVectorStores(part).check("vs_1"),
    "prompt store": lambda part: HostPrompts(part).get(PROMPT, None),
    "list of connectors": lambda part: HostConnectors(part).url("c"),
    "list of tools": lambda part: HostToolRuntime(SimpleNamespace(routing_table=part), bytes).has("web_search"),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("secret-canary"),
        OSError("secret-canary"),
        TimeoutError(),
        FileNotFoundError("secret-canary"),
        KeyError("secret-canary"),
        ValueError("secret-canary: Provider `p` not found"),
        ValueError("secret-canary file-1 vs_1"),
        orjson.JSONDecodeError("secret-canary", "", 0),
        InvalidParameterError("file_path", "file-1", "secret-canary"),
    ],
    ids=repr,
)
async def test_failing_stack_api_is_503_and_one_log_line(
    part: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ApiError) as caught:
        await PARTS[part](FailingApi(error))
    assert (caught.value.status, caught.value.type) == (503, "server_error")
    assert caught.value.message == f"The stack's {part} failed. Try again later."
    lines = [logging.Formatter().format(record) for record in caplog.records]
    assert lines == [f"stack API failed: {part} ({type(error).__name__})"]


@pytest.mark.parametrize(
    "error",
    [
        ResourceNotFoundError("file-1", "File"),
        AccessDeniedError(),
        InvalidParameterError("file_id", "file-1", "Must match format 'file-' followed by 1-64 hex characters."),
    ],
    ids=repr,
)
async def test_missing_file_is_400(error: Exception) -> None:
    with pytest.raises(ApiError, match="The file 'file-1' was not found") as caught:
        await PARTS["file store"](FailingApi(error))
    assert (caught.value.status, caught.value.code) == (400, "file_not_found")


@pytest.mark.parametrize(
    "error",
    [ValueError("Vector_store 'vs_1' not found"), ResourceNotFoundError("vs_1", "Vector Store"), AccessDeniedError()],
    ids=repr,
)
async def test_missing_vector_store_is_404(error: Exception) -> None:
    with pytest.raises(ApiError, match="Vector store with id 'vs_1' not found") as caught:
        await PARTS["vector store"](FailingApi(error))
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "error", [ValueError(f"Prompt {PROMPT}:default not found"), ResourceNotFoundError(PROMPT, "Prompt")], ids=repr
)
async def test_missing_prompt_is_none(error: Exception) -> None:
    assert await PARTS["prompt store"](FailingApi(error)) is None
