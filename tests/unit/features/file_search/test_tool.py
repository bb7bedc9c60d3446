"""What vector stores return is bounded in count and size."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from llama_stack_responses.features.file_search.tool import FileSearch
from llama_stack_responses.host.vector_stores import HostVectorStores
from llama_stack_responses.tools.hosted.sources import sanitized_lines
from llama_stack_responses.tools.hosted.vector_stores import Passage
from llama_stack_responses.tools.registry import HostedTool
from tests.support.inference import Round, finish, text
from tests.unit.tools.tools_harness import ToolsHarness, calls

Json = dict[str, Any]

ANSWER: Round = [text("Done."), finish()]


class Stores:
    """Stores that return the same passages for every query, however many are requested."""

    def __init__(self, *passages: Passage) -> None:
        self.passages = passages

    async def check(self, store_id: str) -> None:
        """Accept every store."""

    async def search(self, store_id: str, query: str, options: Json) -> list[Passage]:
        return list(self.passages)


def passage(number: int, output: str, attributes: Mapping[str, str | float | bool] | None = None) -> Passage:
    """Return a passage; higher numbers are less relevant."""
    return Passage(f"file-{number}", f"{number}.txt", 1 / (number + 1), attributes or {}, output)


async def searched(*passages: Passage, **options: Any) -> tuple[list[Json], str]:
    """Return the results that a search shows to the client, and what the model got."""
    turn = ToolsHarness(
        {"of_features": {"file_search": HostedTool(partial(FileSearch, stores=Stores(*passages)))}},
        [calls(("file_search", {"queries": ["otters"]})), ANSWER],
        tools=[{"type": "file_search", "vector_store_ids": ["vs_1"], **options}],
        include=["file_search_call.results"],
    )
    response = await turn.run()
    results: list[Json] = response["output"][0]["results"]
    return results, turn.inference.requests[1]["messages"][-1]["content"]


async def test_more_passages_than_requested_are_left_out() -> None:
    results, output = await searched(*(passage(number, f"text {number}") for number in range(500)), max_num_results=3)
    assert [each["text"] for each in results] == ["text 0", "text 1", "text 2"]
    assert "text 3" not in output


async def test_texts_of_passages_are_bounded_each_and_together() -> None:
    results, output = await searched(
        *(passage(number, f"{number} " * 10**6) for number in range(50)), max_num_results=50
    )
    assert {len(each["text"]) for each in results} == {65_536}
    assert len(results) == 16
    assert len(output) < 1_100_000


async def test_attributes_and_names_of_passages_are_bounded() -> None:
    attributes: dict[str, str | float | bool] = {f"{number} {'n' * 1_000}": "v" * 1_000 for number in range(1_000)}
    found = Passage("file-1", "f" * 10_000, 1.0, attributes | {"last": True}, "text")
    [result], _ = await searched(found)
    assert len(result["attributes"]) == 16
    assert all(len(name) == len(each) == 512 for name, each in result["attributes"].items())
    assert len(result["filename"]) == 512


async def test_store_of_host_that_returns_more_than_requested_is_read_to_count() -> None:
    created: list[int] = []

    class Found:
        score, file_id, filename, attributes = 1.0, "file-1", "a.txt", None

        @property
        def content(self) -> list[Any]:
            created.append(1)
            return [SimpleNamespace(text="text")]

    class Router:
        async def openai_search_vector_store(self, *_: Any) -> Any:
            return SimpleNamespace(data=[Found()] * 1_000)

    options = {"filters": None, "ranking_options": {"score_threshold": 0.0}, "max_num_results": 3}
    assert len(await HostVectorStores(Router()).search("vs_1", "otters", options)) == len(created) == 3


def test_citation_markers_in_foreign_text_are_replaced() -> None:
    assert sanitized_lines("é 【1】\n【F1†x】 [a]") == ["é [1]", "[F1†x] [a]"]
