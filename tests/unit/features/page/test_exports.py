"""The lines of an export, in the form of OpenAI's evals."""

from __future__ import annotations

from typing import Any, cast

from openai.types.evals.create_eval_jsonl_run_data_source_param import SourceFileContentContent
from pydantic import TypeAdapter

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.page.exports import Exports
from llama_stack_responses.features.page.lists import ListFilter, Lists, restricted_to
from llama_stack_responses.features.page.refused.rows import RefusedRequests
from llama_stack_responses.features.page.search.box import searched
from llama_stack_responses.jobs.background import BackgroundJobs
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.scores import Score
from tests.contract.conversations import CREATED, assistant, response, user

ALICE = Owner("alice")


class NoJobs:
    """No response waits in a queue."""

    async def find_many(self, _: Any) -> dict[str, Any]:
        return {}


async def test_export_has_each_listed_response_that_has_ended() -> None:
    records = MemoryRecords()
    archive = Archive(records, clock=lambda: CREATED)
    ids = []
    for number in range(5):
        made = response(assistant(f"Answer {number}"), created_at=CREATED + number, metadata={"n": str(number % 2)})
        await archive.save(made, owner=ALICE, base=None, input_items=[user(f"Question {number}")])
        ids.append(made["id"])
    running = response(status="in_progress", output=[], created_at=CREATED + 9)
    await archive.save(running, owner=ALICE, base=None, input_items=[user("Still?")])
    await archive.save(response(assistant("Bob's")), owner=Owner("bob"), base=None, input_items=[user("Bob?")])
    entry, version = await archive.entry_version(ids[1]) or (None, 0)
    assert entry
    assert await archive.scores.put(entry, version, Score(0.5, "Half.", "bob", CREATED))
    exports = Exports(archive, Lists(archive, cast("BackgroundJobs", NoJobs()), RefusedRequests(records)))
    page = await exports.page(ALICE, ListFilter(), None, 4, "asc")
    rest = await exports.page(ALICE, ListFilter(), page["next"], 4, "asc")
    lines = [*page["data"], *rest["data"]]
    assert ([line["item"]["id"] for line in lines], rest["has_more"]) == (ids, False)
    assert lines[2]["item"]["input"][0]["content"] == user("Question 2")["content"]
    assert (lines[2]["sample"]["output_text"], lines[2]["item"]["metadata"]) == ("Answer 2", {"n": "0"})
    judged = [(line["item"]["score"], line["item"]["note"]) for line in lines]
    assert judged == [(None, ""), (0.5, "Half."), *[(None, "")] * 3]
    chosen = await exports.page(ALICE, restricted_to(searched("n:1")), None, 20, "asc")
    assert [line["item"]["id"] for line in chosen["data"]] == [ids[1], ids[3]]
    for line in lines:
        TypeAdapter(SourceFileContentContent).validate_python(line)
