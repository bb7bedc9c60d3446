"""Jobs whose worker has no lease are stalled."""

from __future__ import annotations

from llama_stack_responses.jobs.overview import stalled_of
from llama_stack_responses.store.records import Put, Records


async def test_jobs_whose_worker_has_no_lease_are_stalled(records: Records) -> None:
    until = await records.now() + 60
    lease = Put("p/worker_1", str(until).encode(), expires_at=until)
    held = ["h/worker_1/resp_1", "h/worker_2/resp_2", "h/worker_2/resp_3"]
    await records.commit([lease, *(Put(key, b"") for key in held)])
    assert await stalled_of(records) == {"resp_2": "worker_2", "resp_3": "worker_2"}
