"""The model servers, for the view of what runs now: whether they answer, their models, and what was adapted."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ...chat.inference import ModelServer
from ...core.card_sections import section, span
from ...core.errors import ApiError
from ...core.types import Json
from ...feature import Card, Stack
from ...service.responses import OpenAIResponsesImpl
from ...telemetry.model_failures import LastFailure
from .shared_values import SharedValues

_MAX_MODELS: Final = 100
_MAX_PROVIDERS: Final = 50
_RECHECK_SECONDS: Final = 5.0
"""All users together have the servers asked at most once in this time."""

_COLUMNS: Final = ("Model", "Changes of its requests", "Last failure")
_CAUSES: Final = {
    "connection": "it could not be reached",
    "stream": "its answer was cut off",
    "credentials": "it refused its key",
    "rate_limit": "it was too busy",
    "server_error": "it reported an error of its own",
    "timeout": "it did not answer in time",
    "invalid_answer": "its answer had another form",
}


@dataclass(slots=True)
class _Provider:
    """What is shown of a provider: its models that the user may use, each with a row."""

    address: str = ""
    rows: list[Sequence[str]] = field(default_factory=list)
    failures: list[LastFailure] = field(default_factory=list)


def model_servers_card(impl: OpenAIResponsesImpl, stack: Stack) -> Card:
    """Return the card. It has only providers and models that the current user may use, or all for those who see all."""
    checking: SharedValues[None] = SharedValues(_RECHECK_SECONDS)

    async def check() -> None:
        await checking.get("model servers", impl.checks.providers.check)

    return Card("Model servers", partial(_sections, impl, stack), check)


async def _sections(impl: OpenAIResponsesImpl, stack: Stack) -> list[Json]:
    sees_all = impl.config.roles.sees_server(impl.access.current_user())
    try:
        models = sorted(await stack.models())
    except ApiError as error:
        return [section("Models", [], trouble=error.message)]
    found = await _providers(impl, stack.inference.server_of, models[:_MAX_MODELS])
    states = impl.checks.providers.states
    if sees_all:
        found = {name: _Provider() for name in states} | found
    left_out = max(0, len(models) - _MAX_MODELS)
    more = [section("More models", [f"{left_out} are not shown"])] if left_out else []
    shown = [
        section(
            name,
            [*_facts(each, states.get(name)), *(_facts_of_all(impl, name, each) if sees_all else _failures_of(each))],
            at=impl.checks.providers.checked_at or 0.0,
            trouble="It does not answer." if states.get(name) is False else None,
            columns=_COLUMNS,
            rows=each.rows,
        )
        for name, each in sorted(found.items())[:_MAX_PROVIDERS]
    ]
    return shown + more


async def _providers(
    impl: OpenAIResponsesImpl, server_of: Callable[[str], Awaitable[ModelServer | None]], models: Sequence[str]
) -> dict[str, _Provider]:
    found: dict[str, _Provider] = {}
    for model in models:
        server = await server_of(model)
        if server is None or not server.provider:
            continue
        provider = found.setdefault(server.provider, _Provider(server.address))
        failure = impl.model_failures.of(server.provider, model)
        changes = ", ".join(map(str, await impl.adaptations_of(model)))
        provider.rows.append((model, changes or "none", _said(failure) if failure else "none"))
        provider.failures += [failure] if failure else []
    return found


def _facts(found: _Provider, answers: bool | None) -> list[str]:
    said = {True: "answers", False: "", None: "does not say whether it answers"}[answers]
    return [said, f"{len(found.rows)} {'model' if len(found.rows) == 1 else 'models'}"]


def _facts_of_all(impl: OpenAIResponsesImpl, name: str, found: _Provider) -> list[str]:
    """Return the fields that are shown only to users who see data of the whole server."""
    rounds, last = impl.gauge_sources.model_rounds().get(name), impl.model_failures.of_provider(name)
    return [
        found.address,
        f"{rounds[0]} rounds run, {rounds[1]} wait" if rounds else "",
        f"last failure {_said(last)}" if last else "",
    ]


def _failures_of(found: _Provider) -> list[str]:
    last = max(found.failures, key=lambda each: each.at, default=None)
    return [f"last failure {_said(last)}"] if last else []


def _said(failure: LastFailure) -> str:
    status = f" ({failure.status})" if failure.status else ""
    times = f", {failure.count} in all" if failure.count > 1 else ""
    return f"{span(max(0.0, time.time() - failure.at))} ago: {_CAUSES[failure.cause]}{status}{times}"
