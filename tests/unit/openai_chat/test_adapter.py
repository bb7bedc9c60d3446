"""The host's requests to the provider outside of client requests."""

from typing import Any

import openai
import pytest
from pydantic import ValidationError

from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_openai_chat.host.adapter import OpenAIChatAdapter
from llama_stack_openai_chat.host.platform import (
    PROVIDER_DATA_VAR,
    OpenAIChatCompletionRequestWithExtraBody,
    OpenAICompletionRequestWithExtraBody,
)
from tests.support.http_server import Peer, serving, whole


def adapter(url: str) -> OpenAIChatAdapter:
    """Return the provider for the model server at this address."""
    openai_chat_adapter = OpenAIChatAdapter(OpenAIChatConfig(base_url=url))
    openai_chat_adapter.__provider_id__ = "local"
    return openai_chat_adapter


async def test_server_that_lists_models_is_healthy() -> None:
    async def lists(peer: Peer) -> None:
        await peer.request()
        found = [{"id": name} for name in ("chat", "nomic-embed-text", "bge-reranker")]
        await peer.send(whole(200, {"data": found}))

    async with serving(lists) as server:
        provider = adapter(server.url)
        assert await provider.health() == {"status": "OK"}
        kinds = {model.identifier: str(model.model_type) for model in await provider.list_models()}
        assert kinds == {"chat": "llm", "nomic-embed-text": "embedding", "bge-reranker": "rerank"}


@pytest.mark.parametrize(
    ("status", "key", "health"),
    [(401, None, "Not Implemented"), (401, "wrong", "Error"), (500, None, "Error"), (503, "key", "Error")],
)
async def test_server_is_not_healthy_if_it_refuses_and_unknown_if_it_asks_users_for_their_keys(
    status: int, key: str | None, health: str
) -> None:
    async def refuses(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(status, {"error": {"message": "No."}}))

    async with serving(refuses) as server:
        provider = OpenAIChatAdapter(OpenAIChatConfig(base_url=server.url, api_key=key))
        assert (await provider.health())["status"] == health


async def test_unreachable_server_is_not_healthy() -> None:
    async with serving(hangs_up) as server:
        url = server.url
    assert (await adapter(url).health())["status"] == "Error"


async def hangs_up(peer: Peer) -> None:
    """Answer nothing."""


async def test_models_are_refreshed_only_after_change() -> None:
    """The host forgets all models before it lists them, so that a client may find none."""
    names: list[str] | None = ["chat"]

    async def lists(peer: Peer) -> None:
        await peer.request()
        data = {"data": [{"id": name} for name in names]} if names is not None else {"error": {"message": "Loading"}}
        await peer.send(whole(200 if names is not None else 503, data))

    async with serving(lists) as server:
        provider = adapter(server.url)
        assert await provider.should_refresh_models(), "nothing is listed yet"
        assert not server.requests, "so no request is needed"
        await provider.list_models()
        assert not await provider.should_refresh_models()
        names = ["chat", "new"]
        assert await provider.should_refresh_models()
        assert await provider.should_refresh_models(), "asking is not listing"
        await provider.list_models()
        assert not await provider.should_refresh_models()
        names = None
        assert await provider.should_refresh_models(), "the host is to say what is wrong"


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (401, "The model server refuses the key (status 401): check 'api_key'."),
        (503, "The model server answers with status 503: check 'base_url'."),
        (
            200,
            "The model server answered with status 200 and content type 'application/json' instead of a list of "
            "models: check 'base_url'.",
        ),
    ],
)
async def test_server_that_never_listed_models_has_none(
    status: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The host keeps the models of earlier runs, which may be those of another server."""

    async def fails(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(status, {"no": "models"}))

    async with serving(fails) as server:
        assert await adapter(server.url).list_models() == []
    assert [record.message for record in caplog.records] == [f"no models of a provider are listed: 'local'. {why}"]


async def test_failing_server_keeps_models_listed_before() -> None:
    status = 200

    async def lists(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(status, {"data": [{"id": "chat"}]}))

    async with serving(lists) as server:
        provider = adapter(server.url)
        assert len(await provider.list_models()) == 1
        status = 503
        with pytest.raises(openai.APIStatusError):
            await provider.list_models()


async def test_models_listed_with_user_key_are_not_shared() -> None:
    async def lists(peer: Peer) -> None:
        request = await peer.request()
        names = ["own"] if request.headers.get("authorization") == "Bearer sk-own" else ["chat"]
        await peer.send(whole(200, {"data": [{"id": name} for name in names]}))

    async with serving(lists) as server:
        provider = adapter(server.url)
        await provider.list_models()
        token = PROVIDER_DATA_VAR.set({"local_api_key": "sk-own"})
        try:
            assert [model.identifier for model in await provider.list_models()] == ["own"]
        finally:
            PROVIDER_DATA_VAR.reset(token)
        assert not await provider.should_refresh_models()


@pytest.mark.parametrize("answer", [whole(503, {"error": {"message": "Loading model"}}), whole(200, {}), b""])
async def test_server_that_cannot_list_models_is_unhealthy(answer: bytes) -> None:
    async def fails(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    async with serving(fails) as server:
        found = await adapter(server.url).health()
        assert found["status"] == "Error"
        assert "Health check failed: " in found["message"]


@pytest.mark.parametrize("answer", [{}, {"choices": None}, {"choices": [None]}])
async def test_unstreamed_answer_without_choices_is_502(answer: Any) -> None:
    async def answers(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(whole(200, answer))

    chat = OpenAIChatCompletionRequestWithExtraBody(model="m", messages=[{"role": "user", "content": "Hi"}])
    prompt = OpenAICompletionRequestWithExtraBody(model="m", prompt="Hi")
    async with serving(answers) as server:
        provider = adapter(server.url)
        for call in (provider.openai_chat_completion(chat), provider.openai_completion(prompt)):
            with pytest.raises(openai.InternalServerError, match="has other fields than it should") as raised:
                await call
            assert raised.value.status_code == 502


@pytest.mark.parametrize(
    ("given", "models"),
    [
        ("nomic-embed-text:v1.5=768, other=384", {"nomic-embed-text:v1.5": 768, "other": 384}),
        ("", {}),
        (None, {}),
        ({"nomic": 2}, {"nomic": 2}),
    ],
)
def test_embedding_models_can_be_text_with_commas(given: object, models: dict[str, int]) -> None:
    settings = {"base_url": "http://localhost", "embedding_models": given}
    assert OpenAIChatConfig.model_validate(settings).embedding_models == models


@pytest.mark.parametrize("given", ["nomic", "=768", "nomic=long", "nomic=768,other"])
def test_embedding_model_without_length_is_refused(given: str) -> None:
    with pytest.raises(ValidationError):
        OpenAIChatConfig.model_validate({"base_url": "http://localhost", "embedding_models": given})
