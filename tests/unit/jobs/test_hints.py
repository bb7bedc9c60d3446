"""Hints are written later, and a read that may miss them gets their values."""

from llama_stack_responses.jobs.hints import HintWriter
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put


async def test_read_that_is_answered_after_the_write_has_the_values_from_before_and_since() -> None:
    records = MemoryRecords()
    hints = HintWriter(records)
    hints.schedule(Put("a", b"before"))
    with hints.unread() as unread:
        answer = await records.get_many(["a", "b"])
        hints.schedule(Put("b", b"since"))
        await hints.written()
        assert {key: record.value for key, record in unread.over(answer).items()} == {"a": b"before", "b": b"since"}
    with hints.unread() as later:
        assert not later.puts
        answer = await records.get_many(["a", "b"])
    assert {key: record.value for key, record in answer.items()} == {"a": b"before", "b": b"since"}
    hints.schedule(Put("a", b"later"))
    await hints.written()
    assert not later.puts
