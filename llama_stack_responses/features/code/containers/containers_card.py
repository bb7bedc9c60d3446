"""The containers of users, for the view of what runs now."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from ....config.roles import Roles
from ....core.card_sections import section, span
from ....core.owner import Owner
from ....core.types import Json
from ....feature import Card
from .entries import ContainerEntry, Containers

_MAX_ROWS: Final = 50


def containers_card(containers: Containers, roles: Roles, current_user: Callable[[], Owner]) -> Card:
    """Return the card: the user's containers on this server, and how many all users have for those who see that."""
    return Card("Sandboxes", partial(_sections, containers, roles, current_user))


async def _sections(containers: Containers, roles: Roles, current_user: Callable[[], Owner]) -> list[Json]:
    user = current_user()
    own, everyone = containers.of(user), containers.all()
    facts = [_counted(own)] if own else []
    if everyone and roles.sees_server(user) and not user.is_anonymous:
        facts.append(f"all users: {_counted(everyone)}")
    if not facts:
        return []
    rows = [_row(each) for each in own[:_MAX_ROWS]]
    columns = ("Container", "Name", "State", "Created", "Ends")
    return [section("Containers of this process", facts, columns=columns, rows=rows)]


def _counted(entries: list[ContainerEntry]) -> str:
    used = sum(bool(each.users) for each in entries)
    return f"{len(entries)} {'container' if len(entries) == 1 else 'containers'}, {used} in use"


def _row(entry: ContainerEntry) -> tuple[str, ...]:
    now = time.time()
    idle = max(0.0, now - entry.last_active_at)
    state = "in use" if entry.users else f"idle for {span(idle)}"
    ends = "after its use" if entry.users else f"in {span(max(0.0, entry.idle_seconds - idle))}"
    return entry.id, entry.name, state, f"{span(max(0.0, now - entry.created_at))} ago", ends
