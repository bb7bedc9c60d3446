"""The server that answers, for the view of what runs now."""

from __future__ import annotations

import platform
import time
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from ...core.card_sections import section, span
from ...core.types import Json
from ...feature import Card
from ...installed_host import installed_host, own_version
from ...service.responses import OpenAIResponsesImpl

_STARTED: Final = time.monotonic()


def server_card(impl: OpenAIResponsesImpl) -> Card:
    """Return the card."""
    return Card("Server", partial(_sections, impl))


async def _sections(impl: OpenAIResponsesImpl) -> list[Json]:
    facts = [f"version {own_version() or 'unknown'}", _host(), f"Python {platform.python_version()}"]
    facts.append(f"up for {span(time.monotonic() - _STARTED)}")
    if not impl.config.roles.sees_server(impl.access.current_user()):
        return [section("llama-stack-responses", facts)]
    report = await impl.ready()
    ill = [f"{name.replace('_', ' ')}: {state}" for name, state in report.parts.items() if state != "ok"]
    ill += [f"{name.replace('_', ' ')}: {note}" for name, note in report.notes.items()]
    facts.append(report.status.replace("_", " "))
    trouble = f"{'; '.join(ill)}." if ill and not report.ready else None
    return [section("llama-stack-responses", [*facts, *([] if trouble else ill)], trouble=trouble)]


def _host() -> str:
    host = installed_host()
    if host is None:
        return ""
    try:
        return f"{host.name} {version(host.name)}"
    except PackageNotFoundError:
        return host.name
