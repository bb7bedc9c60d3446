"""The code interpreter: Python in a container of this server."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from ....concurrency.offloading import in_thread_if_large
from ....core.types import Json
from ....requests.request import CreateRequest
from ....stream.argument_text import ArgumentText
from ....stream.call_kinds import CallKind
from ....stream.citations import CLOSES, OPENS, Citation
from ....tools.tool import Cites, NeedsCheck, NeedsPreparation
from ....tools.tool_function import Function, Invocation, ItemReporter, Outcome, ToolError, callers_of, chat_function
from ....tools.tool_history import ToolHistory
from ..containers.access import ContainerAccess
from ..containers.choice import ContainerChoice, described
from ..containers.entries import file_id, files
from ..kinds import FORM, OUTPUTS, PYTHON
from ..sandbox import DATA
from ..sandbox.container import CodeResult

_SHOWN_FILES: Final = 50
_HEADING: Final = re.compile(rf"^{OPENS}(f\d+){CLOSES} ({DATA}/[^\n]+)$", re.MULTILINE)

_DESCRIPTION: Final = (
    "Runs Python code in a sandbox{}, and returns what it prints and the value of its last line. "
    f"Variables are kept between calls. Files are read from and written to {DATA}."
)
_PARAMETERS: Final = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The code to run."}},
    "required": ["code"],
    "additionalProperties": False,
}


class CodeInterpreterTool(NeedsPreparation, NeedsCheck, Cites):
    """A `{type: code_interpreter, container}` tool of a request.

    Args:
        declared: the tool's entry.
        request: the whole request.
        access: access to containers.
        installed: a sentence that lists the packages that the code can import; empty if there are none.
    """

    def __init__(self, declared: Json, request: CreateRequest, *, access: ContainerAccess, installed: str) -> None:
        self._installed = installed
        self._choice = ContainerChoice(access, declared["container"], "container")
        self._shows_outputs = OUTPUTS in request.include
        self._callers = callers_of(declared)
        self._files = _NumberedFiles()

    async def check(self) -> None:
        """Check the skills of the container."""
        await self._choice.check()

    async def prepare(self, history: ToolHistory, _: ItemReporter) -> None:
        """Choose the container, check its skills, and restore the files that the model knows."""
        await self._choice.choose(await in_thread_if_large(partial(_last_container, history.items), history.items))
        await history.learn([FORM.type], self._files.learn)

    def functions(self) -> Sequence[Function]:
        """Return the single function. It is not repeatable: a call that may have run may have changed files."""
        kind = CallKind(FORM, self._fields, decoder=partial(ArgumentText, "code"), hosted=True)
        description = described(_DESCRIPTION, self._installed, self._choice)
        chat = chat_function(PYTHON, description, _PARAMETERS)
        return (Function(chat, kind, self._run, callers=self._callers),)

    def handles(self) -> Collection[str]:
        """Return the handle of its type."""
        return ("code_interpreter",)

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names the tool's type."""
        return [PYTHON] if choice["type"] == "code_interpreter" else []

    def cite(self, key: str, _: str) -> Citation | None:
        """Return the citation of the file with this number."""
        if (path := self._files.get(key)) is None:
            return None
        name = path.rpartition("/")[2]
        citation = {"container_id": self._choice.container_id, "file_id": file_id(path), "filename": name}
        return Citation(f"[{name}](sandbox:{quote(path)})", {"type": "container_file_citation", **citation})

    def _fields(self, _: str, __: str) -> Json:
        return {"container_id": self._choice.container_id}

    async def _run(self, invocation: Invocation) -> Outcome:
        invocation.advance("interpreting")
        async with self._choice.opened() as entry:
            before = {(file.path, file.written_at) for file in await files(entry)}
            ran = await entry.container.run(invocation.item["code"])
            after = await files(entry)
        written = [file.path for file in after if (file.path, file.written_at) not in before]
        # A program gets the outputs of its calls from their items.
        shows = self._shows_outputs or invocation.call.program is not None
        fields = {"outputs": _outputs(ran)} if shows else {}
        report = _report(ran, [self._files.heading(path) for path in written[:_SHOWN_FILES]])
        if ran.stopped:
            raise ToolError(report, fields)
        return Outcome(report, fields, failed=ran.failed)


class _NumberedFiles:
    """The files that the model knows in one conversation, by marker key: `f1`, `f2` and so on. A file keeps its key."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def learn(self, result: Any) -> None:
        """Restore the files listed in an earlier output of the tool."""
        self._paths |= dict(_HEADING.findall(result)) if isinstance(result, str) else {}

    def heading(self, path: str) -> str:
        """Return the line that lists a file for the model; `learn` parses it."""
        known = (key for key, each in self._paths.items() if each == path)
        key = next(known, f"f{len(self._paths) + 1}")
        self._paths[key] = path
        return f"{OPENS}{key}{CLOSES} {path}"

    def get(self, key: str) -> str | None:
        """Return the path of the file with this key."""
        return self._paths.get(key)


def _last_container(items: Sequence[Json]) -> str | None:
    """Return the id of the container that the last call of a conversation used."""
    return next((item["container_id"] for item in reversed(items) if item["type"] == FORM.type), None)


def _outputs(ran: CodeResult) -> list[Json]:
    logs = [{"type": "logs", "logs": ran.printed}] if ran.printed else []
    return [*logs, *({"type": "image", "url": f"data:image/png;base64,{image}"} for image in ran.images)]


def _report(ran: CodeResult, written: Sequence[str]) -> str:
    """Return the model's view of a run."""
    parts = [ran.printed.rstrip()] if ran.printed.strip() else []
    if ran.stopped:
        parts.append(f"The code was stopped. {ran.stopped} All variables are gone; the files are still there.")
    if count := len(ran.images):
        drawn = "1 figure was drawn, and is" if count == 1 else f"{count} figures were drawn, and are"
        parts.append(f"({drawn} shown to the user.)")
    if written:
        parts += ["Files written (put a file's marker where you mention it, and the user can open it):", *written]
    return "\n".join(parts) or "(The code ended without printing anything.)"
