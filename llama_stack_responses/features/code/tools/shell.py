"""A shell in a container of this server."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from ....concurrency.offloading import in_thread_if_large
from ....core.types import Json
from ....items.kinds.shell import SHELL_ACTION, SHELL_CALL, SHELL_CALL_OUTPUT, with_limits
from ....items.program_calls import caller
from ....stream.call_kinds import CallKind
from ....tools.client.shell import SHELL_PARAMETERS, SHELL_RESULT
from ....tools.tool import NeedsCheck, NeedsPreparation
from ....tools.tool_function import (
    Function,
    Invocation,
    ItemReporter,
    Outcome,
    callers_of,
    chat_function,
    validated_arguments,
)
from ....tools.tool_history import ToolHistory
from ..containers.access import ContainerAccess
from ..containers.choice import ContainerChoice, described
from ..sandbox import DATA
from ..sandbox.container import CommandResult

_NAME: Final = "shell"
_SECONDS: Final = 60.0
_OUTPUT_CHARACTERS: Final = 20_000
_MAX_COMMANDS: Final = 32
_DESCRIPTION: Final = (
    f"Runs up to {_MAX_COMMANDS} commands, each in a separate shell, in a sandbox{{}} whose folder is {DATA}, and "
    "returns what they print."
)


class HostedShellTool(NeedsPreparation, NeedsCheck):
    """A `{type: shell, environment}` tool of a request whose environment is a container.

    Args:
        declared: the tool's entry; its environment is `{type: container_auto, ...}` or `{type: container_reference,
            container_id}`.
        access: access to containers.
        installed: a sentence that lists the packages that Python can import; empty if there are none.
    """

    def __init__(self, declared: Json, access: ContainerAccess, installed: str) -> None:
        self._installed = installed
        environment = declared["environment"]
        self._callers = callers_of(declared)
        self._choice = ContainerChoice(access, environment.get("container_id") or environment, "environment")

    async def check(self) -> None:
        """Check the skills of the container."""
        await self._choice.check()

    async def prepare(self, history: ToolHistory, _: ItemReporter) -> None:
        """Choose the container, and check its skills."""
        await self._choice.choose(await in_thread_if_large(partial(_last_container, history.items), history.items))

    def functions(self) -> Sequence[Function]:
        """Return the single function. It is not repeatable: commands that may have run are not run again."""
        kind = CallKind(SHELL_CALL, self._fields, whole=self._whole, hosted=True)
        description = described(_DESCRIPTION, self._installed, self._choice)
        chat = chat_function(_NAME, description, SHELL_PARAMETERS)
        return (Function(chat, kind, self._run, callers=self._callers, output_schema=SHELL_RESULT),)

    def handles(self) -> Collection[str]:
        """Return the handle of its type."""
        return ("shell",)

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names the tool's type."""
        return [_NAME] if choice["type"] == "shell" else []

    def _fields(self, _: str, call_id: str) -> Json:
        environment = {"type": "container_reference", "container_id": self._choice.container_id}
        return {"call_id": call_id, "environment": environment}

    def _whole(self, arguments: str) -> Json | None:
        action = validated_arguments(arguments, SHELL_ACTION)
        return None if action is None or len(action["commands"]) > _MAX_COMMANDS else {"action": with_limits(action)}

    async def _run(self, invocation: Invocation) -> Outcome:
        action = invocation.item["action"]
        seconds = (action.get("timeout_ms") or _SECONDS * 1000) / 1000
        length = action.get("max_output_length") or _OUTPUT_CHARACTERS
        async with self._choice.opened() as entry:
            ran = [await entry.container.command(command, seconds, length) for command in action["commands"]]
        output = [_printed(each, length) for each in ran]
        # No await from here on: the client's view of the end and the end itself are stored in one commit.
        reporter, call = invocation.reporter, invocation.call
        assert call.index is not None
        reporter.conclude(call.index, {})
        item = {"call_id": call.call_id, "max_output_length": length, "output": output}
        if call.program is not None:
            item["caller"] = caller(call.program)
        reporter.show(SHELL_CALL_OUTPUT, item)
        return Outcome("\n".join(map(_report, output)))


def _last_container(items: Sequence[Json]) -> str | None:
    """Return the id of the container that the last call of a conversation with a container used."""
    environments = (item.get("environment") or {} for item in reversed(items) if item["type"] == SHELL_CALL.type)
    return next((each["container_id"] for each in environments if "container_id" in each), None)


def _printed(done: CommandResult, length: int) -> Json:
    """Return a command's result as an entry of a `shell_call_output`."""
    stopped = f"\n{done.stopped}" if done.stopped else ""
    outcome: Json = {"type": "timeout"} if done.exit_code is None else {"type": "exit", "exit_code": done.exit_code}
    return {"stdout": done.stdout[:length], "stderr": (done.stderr + stopped)[:length], "outcome": outcome}


def _report(entry: Json) -> str:
    """Return the model's view of a command's result."""
    outcome = entry["outcome"]
    ended = "The command was stopped." if outcome["type"] == "timeout" else f"Exit code: {outcome['exit_code']}"
    errors = f"stderr:\n{entry['stderr']}" if entry["stderr"] else ""
    return "\n".join(filter(None, [ended, entry["stdout"], errors]))
