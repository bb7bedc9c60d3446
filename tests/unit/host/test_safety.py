"""The host's Safety API: its router, and its Llama Guard on a model with a fixed answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest
from llama_stack.core.datatypes import SafetyConfig
from llama_stack.core.routers.safety import SafetyRouter
from llama_stack.providers.inline.safety.llama_guard.config import LlamaGuardConfig
from llama_stack.providers.inline.safety.llama_guard.llama_guard import LlamaGuardSafetyImpl
from llama_stack_api import Api, RunModerationRequest, Shield

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.moderation_results import Kind, Side
from llama_stack_responses.host.safety import HostSafety

Json = dict[str, Any]

GUARD: Final = Shield(identifier="guard", provider_id="llama-guard", provider_resource_id="local/guard-8b")


class Model:
    """The model that Llama Guard asks: the host's router, with the store that it writes to.

    Attributes:
        prompts: the prompts that it received.
        stored: the prompts that it stored.
    """

    def __init__(self, answer: str) -> None:
        self.prompts: list[str] = []
        self.stored: list[str] = []
        self.store: list[str] | None = self.stored
        self._answer = answer

    async def openai_chat_completion(self, request: Any) -> Any:
        """Return the fixed answer."""
        self.prompts.append(request.messages[0].content)
        if self.store is not None:
            self.store.append(request.messages[0].content)
        message = SimpleNamespace(content=self._answer)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


class Table:
    """The host's list of shields, with one entry."""

    def __init__(self, guard: LlamaGuardSafetyImpl) -> None:
        self.impls_by_provider_id = {GUARD.provider_id: guard, "another": object()}
        guard.shield_store = self

    async def list_shields(self) -> Any:
        """Return the list."""
        return SimpleNamespace(data=[GUARD])

    async def get_shield(self, _: Any) -> Shield:
        """Return the shield."""
        return GUARD

    async def get_provider_impl(self, _: str) -> LlamaGuardSafetyImpl:
        """Return the shield's provider."""
        return self.impls_by_provider_id[GUARD.provider_id]


def stack(answer: str, default: str | None = None) -> tuple[SafetyRouter, Model]:
    """Return the stack's safety router, and the model behind it."""
    model = Model(answer)
    table: Any = Table(LlamaGuardSafetyImpl(LlamaGuardConfig(), {Api.inference: model}))
    return SafetyRouter(table, SafetyConfig(default_shield_id=default)), model


def safety(answer: str, default: str | None = None) -> tuple[HostSafety, Model]:
    """Return a moderator on that router, and the model behind it."""
    router, model = stack(answer, default)
    return HostSafety(router, store_chat_completions=False), model


@pytest.mark.parametrize("kind", ["moderation", "guardrails"])
@pytest.mark.parametrize("wanted", [False, True])
async def test_guard_requests_are_stored_only_if_configured(kind: Kind, wanted: bool) -> None:
    """Requests of the host's own routes are stored as before."""
    router, model = stack("safe")
    await HostSafety(router, store_chat_completions=wanted).check(kind, "guard", "Hi", "input")
    assert (len(model.prompts), len(model.stored)) == (1, int(wanted))
    await router.run_moderation(RunModerationRequest(input="Hello", model="local/guard-8b"))
    assert "Hello" in model.stored[-1]


@pytest.mark.parametrize("name", ["guard", "local/guard-8b"])
async def test_moderation_finds_shield_by_id_or_model(name: str) -> None:
    moderator, model = safety("unsafe\nS1,S10")
    found = await moderator.check("moderation", name, "Hi there", "output")
    assert (found["model"], found["flagged"]) == ("local/guard-8b", True)
    flagged = {category for category, is_flagged in found["categories"].items() if is_flagged}
    assert flagged == {"Violent Crimes", "Hate"}
    assert {found["category_scores"][category] for category in flagged} == {1.0}
    assert "Hi there" in model.prompts[0]


async def test_safe_text_has_zero_scores() -> None:
    moderator, _ = safety("safe")
    found = await moderator.check("moderation", "guard", "Hi", "input")
    assert (found["flagged"], set(found["category_scores"].values())) == (False, {0.0})


@pytest.mark.parametrize("side", ["input", "output"])
async def test_guardrail_flags_unsafe_text(side: Side) -> None:
    moderator, model = safety("unsafe\nS1")
    found = await moderator.check("guardrails", "guard", "Hi", side)
    assert (found["model"], found["flagged"], found["categories"]) == ("guard", True, {"S1": True})
    assert "Hi" in model.prompts[0]
    moderator, _ = safety("safe")
    assert not (await moderator.check("guardrails", "guard", "Hi", side))["flagged"]


@pytest.mark.parametrize("kind", ["moderation", "guardrails"])
async def test_default_shield_is_used_or_required(kind: Kind) -> None:
    moderator, _ = safety("unsafe\nS1", default="guard")
    assert (await moderator.check(kind, None, "Hi", "input"))["flagged"]
    moderator, _ = safety("safe")
    with pytest.raises(ApiError, match="no default shield") as raised:
        await moderator.check(kind, None, "Hi", "input")
    assert raised.value.status == 400


@pytest.mark.parametrize(
    ("kind", "name", "param"),
    [("moderation", "missing", "moderation.model"), ("guardrails", "local/guard-8b", "guardrails")],
)
async def test_unknown_shield_is_400(kind: Kind, name: str, param: str) -> None:
    moderator, _ = safety("safe")
    with pytest.raises(ApiError, match=f"no shield '{name}'") as raised:
        await moderator.check(kind, name, "Hi", "input")
    assert (raised.value.status, raised.value.param) == (400, param)


@pytest.mark.parametrize("kind", ["moderation", "guardrails"])
async def test_unexpected_answer_of_guard_is_502(kind: Kind) -> None:
    moderator, _ = safety("I cannot tell.")
    with pytest.raises(ApiError, match="the check did not finish") as raised:
        await moderator.check(kind, "guard", "Hi", "input")
    assert raised.value.status == 502
    await moderator.close()
