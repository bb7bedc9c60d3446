"""Token counts of model servers that support them, and of servers that do not."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import openai
import orjson
import pytest

from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_openai_chat.pool import Pool
from llama_stack_openai_chat.tokens import count_tokens
from llama_stack_openai_chat.upstream import Upstream
from tests.support.http_server import HttpServer, Peer, serving, whole
from tests.unit.openai_chat.test_adapter import adapter

type Json = dict[str, Any]
type Answers = Mapping[str, Callable[[Json], tuple[int, Any]]]

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT: Json = {"model": "m", "messages": MESSAGES, "tools": [], "temperature": 1, "stream": True}
NOT_FOUND = (404, {"error": {"message": "File Not Found"}})

VLLM: Answers = {"/tokenize": lambda _: (200, {"count": 7, "max_model_len": 4096, "tokens": [1] * 7})}
LLAMA_CPP: Answers = {
    "/tokenize": lambda body: (200, {"tokens": list(body.get("content", ""))}),
    "/apply-template": lambda body: (200, {"prompt": f"<{body['messages'][0]['content']}>"}),
}


@asynccontextmanager
async def counting(answers: Answers, path: str = "/v1") -> AsyncIterator[tuple[Upstream, HttpServer]]:
    """Yield a client of a server with these answers."""

    async def answer(peer: Peer) -> None:
        while True:
            seen = await peer.request()
            answer = answers.get(seen.line.split()[1].removeprefix(path.removesuffix("/v1")))
            status, body = answer(orjson.loads(seen.body)) if answer else NOT_FOUND
            await peer.send(whole(status, body))

    async with serving(answer) as server:
        config = OpenAIChatConfig(base_url=server.url.removesuffix("/v1") + path, api_key="sk-1")
        upstream = Upstream(config, Pool(config))
        yield upstream, server
        await upstream.close()


@pytest.mark.parametrize("path", ["/v1", "/models/v1", "/plain"])
async def test_tokens_are_counted_by_vllm(path: str) -> None:
    async with counting(VLLM, path) as (upstream, server):
        assert await count_tokens(upstream, CHAT) == 7
        [seen] = server.requests
        assert seen.line == f"POST {path.removesuffix('/v1')}/tokenize HTTP/1.1"
        request = {"model": "m", "messages": MESSAGES, "tools": [], "add_generation_prompt": True}
        assert orjson.loads(seen.body) == request
        assert seen.headers["authorization"] == "Bearer sk-1"


async def test_tokens_are_counted_by_llama_cpp() -> None:
    async with counting(LLAMA_CPP) as (upstream, server):
        assert await count_tokens(upstream, CHAT) == len("<Hi>")
        assert orjson.loads(server.requests[-1].body) == {"content": "<Hi>", "add_special": True, "parse_special": True}


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"/tokenize": lambda _: (422, {"detail": "prompt is missing"})},
        {"/tokenize": lambda _: (405, {"detail": "Method Not Allowed"})},
        {"/tokenize": lambda _: (200, [])},
        {"/tokenize": lambda _: (200, {"tokens": []})},
        {**LLAMA_CPP, "/apply-template": lambda _: (200, {"prompt": None})},
    ],
)
async def test_server_without_token_count_gives_none(answers: Answers) -> None:
    async with counting(answers) as (upstream, _):
        assert await count_tokens(upstream, CHAT) is None


async def test_failing_token_count_raises_error() -> None:
    async with counting({"/tokenize": lambda _: (500, {"error": {"message": "no"}})}) as (upstream, _):
        with pytest.raises(openai.InternalServerError):
            await count_tokens(upstream, CHAT)


async def test_context_length_of_server_is_passed_to_host() -> None:
    async def lists(peer: Peer) -> None:
        await peer.request()
        listed = [{"id": "a", "max_model_len": 4096}, {"id": "b", "context_length": 8192}, {"id": "c"}]
        await peer.send(
            whole(200, {"data": [*listed, {"id": "d", "max_model_len": "x"}, {"id": "e", "max_model_len": 0}]})
        )

    async with serving(lists) as server:
        models = await adapter(server.url).list_models()
        assert {model.identifier: model.metadata for model in models} == {
            "a": {"context_length": 4096},
            "b": {"context_length": 8192},
            "c": {},
            "d": {},
            "e": {},
        }
