"""Pages of the list: what they say beside their rows."""

from __future__ import annotations

from typing import Any, cast

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.page.lists import Lists, restricted_to
from llama_stack_responses.features.page.refused.rows import RefusedRequests
from llama_stack_responses.features.page.search.box import searched
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.memory import MemoryRecords
from tests.contract.conversations import CREATED, assistant, response, user

ALICE = Owner("alice")


class NoJobs:
    """No response waits in a queue."""

    async def find_many(self, response_ids: Any) -> dict[str, Any]:
        return {}


async def test_page_says_up_to_when_the_list_was_read() -> None:
    records = MemoryRecords()
    archive = Archive(records, retention=None)
    for number in range(3):
        made = response(assistant("x"), created_at=CREATED + number)
        await archive.save(made, owner=ALICE, base=None, input_items=[user(f"question {number}")])
    lists = Lists(archive, cast("Any", NoJobs()), RefusedRequests(records))
    wanted, read_to, after = restricted_to(searched("question")), [], None
    for _ in range(3):
        page = await lists.page(ALICE, wanted, after, 1, "desc")
        read_to.append(page["read_to"])
        after = page["next"]
    assert read_to == [CREATED + 2, CREATED + 1, None]
