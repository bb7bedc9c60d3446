"""The host's Safety API: its shields as guardrails, and as moderation models. OGX has none."""

from __future__ import annotations

from typing import Any

from ..core.errors import ApiError, bad_request
from ..core.moderation_results import Kind, Side, result
from ..core.types import Json
from ..logs import get_logger
from .chat_store import unstored_guards
from .platform import OpenAIAssistantMessageParam, OpenAIUserMessageParam, RunModerationRequest, RunShieldRequest

logger = get_logger(__name__)


class HostSafety:
    """Checks texts with the shields of the stack.

    Args:
        router: the host's implementation of the API.
        store_chat_completions: whether the shields' model requests may be recorded in the host's inference store.
    """

    def __init__(self, router: Any, *, store_chat_completions: bool) -> None:
        self._router = router if store_chat_completions else unstored_guards(router)

    async def check(self, kind: Kind, name: str | None, text: str, side: Side) -> Json:
        """Return a shield's result for a text.

        A shield is named by its id; for moderation also by its provider's model.
        """
        try:
            shield = await self._shield(kind, name)
            if shield and (kind == "guardrails" or not shield.provider_resource_id):
                return await self._run_shield(shield.identifier, text, side)
            return await self._moderate(shield, text)
        except ApiError:
            raise
        except Exception as error:
            logger.exception("shield failed: %r", name)
            message = f"The stack's safety provider failed ({type(error).__name__}), so the check did not finish."
            raise ApiError(502, message) from error

    async def close(self) -> None:
        """Do nothing: the connections belong to the host."""

    async def _shield(self, kind: Kind, name: str | None) -> Any | None:
        """Return the shield with this name, or None for the stack's default one."""
        if name is None:
            if self._router.safety_config is None or not self._router.safety_config.default_shield_id:
                message = "This stack has no default shield: name one in 'guardrails'."
                raise bad_request(message, kind, "unsupported_value")
            return None
        shields = (await self._router.routing_table.list_shields()).data
        for attribute in ("identifier", "provider_resource_id") if kind == "moderation" else ("identifier",):
            if shield := next((each for each in shields if getattr(each, attribute) == name), None):
                return shield
        param = "moderation.model" if kind == "moderation" else kind
        raise bad_request(f"This stack has no shield '{name}'.", param, "invalid_value")

    async def _run_shield(self, shield_id: str, text: str, side: Side) -> Json:
        message = OpenAIUserMessageParam if side == "input" else OpenAIAssistantMessageParam
        request = RunShieldRequest(shield_id=shield_id, messages=[message(content=text)])
        violation = (await self._router.run_shield(request)).violation
        if violation is None:
            return result(shield_id, {}, flagged=False)
        kind = violation.metadata.get("violation_type")
        categories = kind.split(",") if isinstance(kind, str) else []
        return result(shield_id, {}, violation.violation_level.value == "error", categories)

    async def _moderate(self, shield: Any | None, text: str) -> Json:
        model = shield.provider_resource_id if shield else None
        verdict = await self._router.run_moderation(RunModerationRequest(input=text, model=model))
        [found] = verdict.results
        categories = [name for name, is_flagged in (found.categories or {}).items() if is_flagged]
        # The host's Llama Guard gives safe text the score 1 in each category.
        scores = {
            name: 0.0 if score == 1.0 and name not in categories else score
            for name, score in (found.category_scores or {}).items()
        }
        return result(verdict.model, scores, found.flagged, categories)
