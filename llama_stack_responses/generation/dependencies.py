"""What of the stack around it the provider works with."""

from __future__ import annotations

from dataclasses import dataclass

from ..chat.inference import Inference
from ..inputs.attachments import Attachments
from ..inputs.prompts import Prompts
from ..moderation.moderator import Moderator
from ..process_pool.pool import WorkerPool
from ..telemetry.telemetry import Telemetry
from ..tools.registry import Services


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The stack's other providers, and who is told what is done.

    Attributes:
        inference: runs the model rounds.
        attachments: makes files and images fit for the models.
        prompts: the prompts that requests name; None if the stack has none.
        services: what hosted tools work with.
        moderator: who checks what goes in and comes out.
        telemetry: is told what is done.
        pool: where foreign content is worked on.
    """

    inference: Inference
    attachments: Attachments
    prompts: Prompts | None
    services: Services
    moderator: Moderator
    telemetry: Telemetry
    pool: WorkerPool

    async def close(self) -> None:
        """Ends what runs for them, and closes their connections."""
        await self.services.close()
        await self.moderator.close()
        await self.pool.close()
