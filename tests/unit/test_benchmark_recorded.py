"""The model server with recorded answers chooses the answer to the most similar request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.recorded import answer_to, embedded, most_similar, read, read_embeddings

type Json = dict[str, Any]


def recorded(words: str, text: str, *tools: str, model: str = "m") -> Json:
    """Return a file's value: a request of these words with these tools, answered by a call of the first tool."""
    request = chat_request(words, *tools, model=model)
    call = {"index": 0, "function": {"name": tools[0] if tools else None, "arguments": text}}
    chunk = {"choices": [{"delta": {"tool_calls": [call]}}]}
    return {
        "request": {"url": "http://there/v1/chat/completions", "body": request},
        "response": {"body": [{"__data__": chunk}]},
    }


def chat_request(words: str, *tools: str, model: str = "m") -> Json:
    offered = [{"type": "function", "function": {"name": name}} for name in tools]
    return {"model": model, "messages": [{"role": "user", "content": words}], "tools": offered}


def answer(files: Sequence[Json], request: Json) -> tuple[str, str]:
    """Return the name and the arguments of the call that answers the request."""
    found = most_similar([each for each in map(read, files) if each], request)
    assert found
    [chunk] = answer_to(request, found)
    function = chunk["choices"][0]["delta"]["tool_calls"][0]["function"]
    return function["name"], function["arguments"]


def test_request_of_another_provider_gets_the_most_similar_answer_with_its_own_tool_names() -> None:
    files = [
        recorded("boil water", "1", "get_boiling_point"),
        recorded("boil polyjuice", "2", "get_boiling_point"),
        recorded("boil polyjuice", "3", "knowledge_search"),
        recorded("boil polyjuice", "4", "get_boiling_point", model="other"),
    ]
    assert answer(files, chat_request("boil polyjuice now", "label__get_boiling_point")) == (
        "label__get_boiling_point",
        "2",
    )
    assert answer(files, chat_request("boil", "file_search")) == ("file_search", "3")
    assert answer(files, chat_request("boil", "get_boiling_point", model="other")) == ("get_boiling_point", "4")


def test_text_gets_the_embedding_of_the_most_similar_text() -> None:
    data = [{"embedding": [0.1]}, {"embedding": [0.2]}]
    held = {
        "request": {"url": "/v1/embeddings", "body": {"model": "e", "input": ["red fox", "blue sky"]}},
        "response": {"body": {"__data__": {"data": data}}},
    }
    found = embedded(list(read_embeddings(held)), {"model": "e", "input": "a blue bird"})
    assert [each["embedding"] for each in found["data"]] == [[0.2]]
