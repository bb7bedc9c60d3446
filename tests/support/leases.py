"""What a live worker does about dead ones."""

from llama_stack_responses.core.ids import new_id
from llama_stack_responses.jobs.queue import JobQueue


async def requeue_stalled(jobs: JobQueue) -> int:
    """Requeue the jobs of dead workers as a worker with a lease does, and return how many were requeued."""
    worker = new_id("worker")
    await jobs.heartbeat(worker)
    try:
        return await jobs.requeue_stalled(worker)
    finally:
        await jobs.deregister(worker)
