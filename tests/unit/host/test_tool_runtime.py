"""The tools of the stack's groups are found although one of the groups fails or does not answer."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.host.identity import HostAccess
from llama_stack_responses.host.platform import AuthenticationRequiredError
from llama_stack_responses.host.tool_runtime import HostToolRuntime


class ToolGroups:
    """The host's router and routing table, with one tool of the same name in each group.

    Args:
        groups: what a group does before it answers: wait for the event, or raise the error.

    Attributes:
        listed: the groups that were asked for their tools, in order.
    """

    def __init__(self, **groups: asyncio.Event | Exception | None) -> None:
        self.routing_table = self
        self.listed: list[str] = []
        self._groups = groups

    async def list_tool_groups(self) -> Any:
        return SimpleNamespace(data=[SimpleNamespace(identifier=name) for name in self._groups])

    async def list_runtime_tools(self, tool_group_id: str) -> Any:
        self.listed.append(tool_group_id)
        obstacle = self._groups[tool_group_id]
        if isinstance(obstacle, Exception):
            raise obstacle
        if obstacle:
            await obstacle.wait()
        return SimpleNamespace(data=[SimpleNamespace(name=tool_group_id)])


def one_requester() -> bytes:
    return b""


async def test_group_without_answer_does_not_delay_tools_of_others() -> None:
    hanging = asyncio.Event()
    runtime = HostToolRuntime(ToolGroups(hanging=hanging, web_search=None), one_requester)
    assert await asyncio.wait_for(runtime.has("web_search"), 60)
    hanging.set()
    assert await runtime.has("hanging")


async def test_group_without_answer_is_an_error_only_if_the_tool_is_not_found() -> None:
    runtime = HostToolRuntime(ToolGroups(hanging=asyncio.Event(), web_search=None), one_requester, listing_seconds=0.01)
    assert await runtime.has("web_search")
    with pytest.raises(ApiError, match="The stack's list of tools failed"):
        await runtime.has("other")


async def test_group_that_needs_credentials_is_left_out() -> None:
    runtime = HostToolRuntime(ToolGroups(private=AuthenticationRequiredError("secret"), web_search=None), one_requester)
    assert await runtime.has("web_search")
    assert not await runtime.has("other")


async def test_waiting_requests_share_one_listing() -> None:
    go_on = asyncio.Event()
    groups = ToolGroups(web_search=go_on)
    runtime = HostToolRuntime(groups, one_requester)
    waiting = [asyncio.create_task(runtime.has("web_search")) for _ in range(20)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    go_on.set()
    assert await asyncio.gather(*waiting[1:]) == [True] * 19
    assert groups.listed == ["web_search"]


REQUESTER: ContextVar[bytes] = ContextVar("requester")


class GuardedToolGroup(ToolGroups):
    """A group whose tools are listed with the credentials of one user only."""

    async def list_runtime_tools(self, tool_group_id: str) -> Any:
        requester = REQUESTER.get()
        await super().list_runtime_tools(tool_group_id)
        if requester == b"none":
            raise AuthenticationRequiredError("secret")
        return SimpleNamespace(data=[SimpleNamespace(name=f"{requester.decode()}_search")])


async def test_listing_is_not_shared_between_users_or_credentials() -> None:
    go_on = asyncio.Event()
    groups = GuardedToolGroup(search=go_on)
    runtime = HostToolRuntime(groups, REQUESTER.get)

    async def has(requester: bytes) -> bool:
        REQUESTER.set(requester)
        return await runtime.has("right_search")

    waiting = [asyncio.create_task(has(requester)) for requester in (b"none", b"right", b"wrong", b"right")]
    await asyncio.sleep(0)
    go_on.set()
    assert await asyncio.gather(*waiting) == [False, True, False, True]
    assert [await asyncio.create_task(has(requester)) for requester in (b"wrong", b"right")] == [False, True]
    assert groups.listed == ["search"] * 4


def test_requester_key_differs_by_user_and_provider_data() -> None:
    access = HostAccess([])
    requesters = [access.requester_key()]
    for owner, keys in ((ANONYMOUS, {"k": "a"}), (ANONYMOUS, {"k": "b"}), (Owner("u", {}), {"k": "a"})):
        with access.acting_for(owner, keys):
            requesters += [access.requester_key(), access.requester_key()]
    assert [requesters.count(each) for each in requesters] == [1, 2, 2, 2, 2, 2, 2]
