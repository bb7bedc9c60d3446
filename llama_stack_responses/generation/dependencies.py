"""The dependencies of generations."""

from __future__ import annotations

from dataclasses import dataclass

from ..chat.inference import Inference
from ..inputs.attachments import Attachments
from ..inputs.prompts import Prompts
from ..inputs.skills import SkillReader
from ..moderation.moderator import Moderator
from ..process_pool.pool import WorkerPool
from ..telemetry.telemetry import Telemetry
from ..tools.registry import HostedToolServices


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The stack's other providers, telemetry, and the process pool.

    Attributes:
        inference: runs the model rounds.
        attachments: resolves files and images for the models.
        prompts: the prompts that requests refer to; None if the stack has none.
        tool_services: the services that hosted tools use.
        moderator: checks input and output.
        telemetry: records spans and metrics.
        pool: processes that handle untrusted content.
        skills: finds the skills that requests declare.
    """

    inference: Inference
    attachments: Attachments
    prompts: Prompts | None
    tool_services: HostedToolServices
    moderator: Moderator
    telemetry: Telemetry
    pool: WorkerPool
    skills: SkillReader

    async def close(self) -> None:
        """Close the services of hosted tools, the moderator and the process pool."""
        await self.tool_services.close()
        await self.moderator.close()
        await self.pool.close()
