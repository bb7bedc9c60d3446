"""The code interpreter: Python in a container of this server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from llama_stack_responses.core.argument_text import ArgumentText
from llama_stack_responses.core.calls import CODE_INTERPRETER_CALL, CallKind
from llama_stack_responses.core.errors import bad_request
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.core.request import CreateRequest
from llama_stack_responses.sandbox.container import Ran
from llama_stack_responses.sandbox.containers import Containers, Entry, NoContainer, TooMany, files, write_file
from llama_stack_responses.sandbox.jail import DATA

from .tool import Function, Invocation, Outcome, Stagehand, ToolError, chat_function

Json = dict[str, Any]
Uploaded = Callable[[str], Awaitable[tuple[str, bytes]]]
"""Gives the name and content of an uploaded file by its id; an `ApiError` if the user may not see it."""

_NAME: Final = "python"
_SHOWN_FILES: Final = 50

_DESCRIPTION: Final = (
    "Runs Python code in a sandbox without network access, and tells what it prints and the value of its last line. "
    f"Variables are kept between calls. Files are read from and written to {DATA}."
)
_PARAMETERS: Final = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The code to run."}},
    "required": ["code"],
    "additionalProperties": False,
}


class CodeInterpreterTool:
    """A `{type: code_interpreter, container}` tool of a request.

    Args:
        declared: the entry.
        request: what else the client asked for.
        containers: where the code runs.
        who: the user who asks.
        uploaded: reads the files that the entry names.
    """

    def __init__(
        self,
        declared: Json,
        request: CreateRequest,
        *,
        containers: Containers,
        who: Callable[[], Owner],
        uploaded: Uploaded,
    ) -> None:
        self._asked: str | Json = declared["container"]
        self._shows_outputs = "code_interpreter_call.outputs" in request.include
        self._containers = containers
        self._who = who
        self._uploaded = uploaded
        self._container_id = ""
        _check(self._asked)

    async def prepare(self, items: Sequence[Json], _: Stagehand) -> None:
        """Chooses the container: the one that is asked for, or that of the turns before, or a new one."""
        self._container_id = self._asked if isinstance(self._asked, str) else self._known(items) or new_id("cntr")

    def functions(self) -> Sequence[Function]:
        """One that takes code. Code that may have run is not run again: it may have changed its files."""
        kind = CallKind(CODE_INTERPRETER_CALL, self._fields, decoder=partial(ArgumentText, "code"), hosted=True)
        return (Function(chat_function(_NAME, _DESCRIPTION, _PARAMETERS), kind, self._run),)

    def chosen(self, choice: Json) -> Collection[str]:
        """It is chosen by its type."""
        return [_NAME] if choice["type"] == "code_interpreter" else []

    def _fields(self, _: str, __: str) -> Json:
        return {"container_id": self._container_id}

    def _known(self, items: Sequence[Json]) -> str | None:
        """The container of the last call in the conversation, if it is still there."""
        used = [item["container_id"] for item in items if item["type"] == "code_interpreter_call"]
        try:
            return self._containers.find(used[-1], self._who()).id if used else None
        except NoContainer:
            return None

    async def _run(self, invocation: Invocation) -> Outcome:
        invocation.advance("interpreting")
        try:
            entry = await self._entry()
        except (NoContainer, TooMany) as error:
            raise ToolError(str(error)) from error
        with _used(entry):
            before = {(file.path, file.created_at, file.bytes) for file in files(entry)}
            ran = await entry.container.run(invocation.item["code"])
            written = [file.path for file in files(entry) if (file.path, file.created_at, file.bytes) not in before]
        fields = {"outputs": _outputs(ran)} if self._shows_outputs else {}
        told = _told(ran, written)
        if ran.stopped:
            raise ToolError(told, fields)
        return Outcome(told, fields)

    async def _entry(self) -> Entry:
        """The container; one that is new is made now, with the files that it is to have."""
        if isinstance(self._asked, str):
            return self._containers.find(self._asked, self._who())
        try:
            return self._containers.find(self._container_id, self._who())
        except NoContainer:
            entry = await self._containers.create(self._who(), container_id=self._container_id)
        for file_id in self._asked.get("file_ids", ()):
            name, content = await self._uploaded(file_id)
            write_file(entry, name, content)
        return entry


def _check(asked: str | Json) -> None:
    if isinstance(asked, dict) and asked.get("network_policy", {"type": "disabled"})["type"] != "disabled":
        message = "Containers of this server have no network: leave 'network_policy' out."
        raise bad_request(message, "tools", "unsupported_value")


@contextmanager
def _used(entry: Entry) -> Iterator[None]:
    """Keeps the container from expiring."""
    entry.users += 1
    try:
        yield
    finally:
        entry.users -= 1


def _outputs(ran: Ran) -> list[Json]:
    logs = [{"type": "logs", "logs": ran.printed}] if ran.printed else []
    return [*logs, *({"type": "image", "url": f"data:image/png;base64,{image}"} for image in ran.images)]


def _told(ran: Ran, written: Sequence[str]) -> str:
    """What the model hears of a run."""
    parts = [ran.printed.rstrip()] if ran.printed.strip() else []
    if ran.stopped:
        parts.append(f"The code was stopped. {ran.stopped} All variables are gone; the files are still there.")
    if ran.images:
        parts.append(f"({len(ran.images)} figures were drawn, and are shown to the user.)")
    if written:
        parts.append(f"Files written: {', '.join(written[:_SHOWN_FILES])}")
    return "\n".join(parts) or "(The code ended without printing anything.)"
