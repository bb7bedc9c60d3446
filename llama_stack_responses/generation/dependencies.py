"""The dependencies of generations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..chat.inference import Inference
from ..inputs.attachments import Attachments
from ..inputs.moderation import Moderation
from ..inputs.prompts import Prompts
from ..inputs.skills import SkillReader
from ..process_pool.pool import WorkerPool
from ..telemetry.telemetry import Telemetry
from ..tools.registry import HostedToolServices


class Service(Protocol):
    """What is started and closed with the server."""

    @property
    def start(self) -> Callable[[], None]:
        """Starts its background tasks in the running event loop."""
        ...

    @property
    def close(self) -> Callable[[], Awaitable[None]]:
        """Ends them, and closes what it holds open."""
        ...


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The stack's other providers, telemetry, and the process pool.

    Attributes:
        inference: runs the model rounds.
        attachments: resolves files and images for the models.
        prompts: the prompts that requests refer to; None if the stack has none.
        tool_services: the services that hosted tools use.
        moderation: moderates input and output.
        telemetry: records spans and metrics.
        pool: processes that handle untrusted content.
        skills: finds the skills that requests declare.
        features: the features, and what else is started and closed with the server.
    """

    inference: Inference
    attachments: Attachments
    prompts: Prompts | None
    tool_services: HostedToolServices
    moderation: Moderation
    telemetry: Telemetry
    pool: WorkerPool
    skills: SkillReader
    features: Sequence[Service] = ()

    async def close(self) -> None:
        """Close the services of hosted tools, the features and the process pool."""
        await self.tool_services.close()
        for feature in self.features:
            await feature.close()
        await self.pool.close()
