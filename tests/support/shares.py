"""Work of users, who share what they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Any

from llama_stack_responses.concurrency.share import Share, working_for


def as_user[Result](user: Hashable, work: Coroutine[Any, Any, Result], weight: float = 1.0) -> asyncio.Task[Result]:
    """Start work of a user in a task."""
    with working_for(Share(user, weight)):
        return asyncio.create_task(work)
