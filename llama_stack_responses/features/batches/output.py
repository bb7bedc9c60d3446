"""Writes the results of a batch to its output file and its error file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryFile
from typing import BinaryIO, Final

from ...concurrency.offloading import in_thread
from ...concurrency.tasks import gather_or_cancel
from ...core.json_blocks import dumps
from ...core.types import Json
from ...inputs.large_files import LargeFiles
from .objects import line_object
from .rows import Batch, Line, Named, Result
from .stored_batches import StoredBatches

_AT_ONCE: Final = 64
"""Lines whose results are read together."""
_LINE_ENDS: Final = "\u0085\u2028\u2029"
"""What ends a line for Unicode, such as for Python's `str.splitlines`, and is allowed in JSON."""
_LOADED: Final = 8
"""Responses that are read at the same time."""

_Ended = tuple[Named, Result | None, Json | None]
"""A line, what it ended with, and its stored response."""

Load = Callable[[str], Awaitable[Json | None]]
"""Returns a stored response; None if it is not stored any more."""


@dataclass(slots=True)
class _Files:
    """The two files while they are written.

    Attributes:
        completed, failed: the lines that they have.
    """

    output: BinaryIO
    error: BinaryIO
    completed: int = 0
    failed: int = 0

    def add(self, batch: Batch, lines: Iterable[_Ended]) -> None:
        """Write lines."""
        for named, result, response in lines:
            shown = line_object(Line(batch.id, named.number), named.custom_id, result, response, batch.end)
            succeeded = shown["error"] is None and shown["response"]["status_code"] == 200
            (self.output if succeeded else self.error).write(_text(shown))
            self.completed += succeeded
            self.failed += not succeeded


def _text(line: Json) -> bytes:
    """Return the text of a line, which has no other character that some programs read as the end of a line."""
    text = dumps(line)
    for character in _LINE_ENDS:
        text = text.replace(character.encode(), b"\\u%04x" % ord(character))
    return text + b"\n"


class Output:
    """Writes the files of batches.

    Args:
        batches: the batches.
        files: the file store.
        load: returns stored responses.
    """

    def __init__(self, batches: StoredBatches, files: LargeFiles, load: Load) -> None:
        self._batches, self._files, self._load = batches, files, load

    async def write(self, batch: Batch) -> Batch:
        """Write the files of a batch of which no line runs any more, as the current user.

        Returns:
            The batch with them and with what they count.

        Raises:
            ApiError: the store or the file store does not answer.
        """
        with TemporaryFile() as output, TemporaryFile() as error:
            files = _Files(output, error)
            async for lines in self._batches.named(batch.id):
                for start in range(0, len(lines), _AT_ONCE):
                    await self._write_some(batch, lines[start : start + _AT_ONCE], files)
            return replace(
                batch,
                completed=files.completed,
                failed=files.failed,
                output_file_id=await self._stored(batch, "output", files.output, files.completed),
                error_file_id=await self._stored(batch, "error", files.error, files.failed),
            )

    async def _stored(self, batch: Batch, name: str, file: BinaryIO, lines: int) -> str | None:
        if not lines:
            return None
        await in_thread(file.flush)
        return await self._files.write(f"{batch.id}_{name}.jsonl", file, batch.output_seconds)

    async def _write_some(self, batch: Batch, lines: Sequence[Named], files: _Files) -> None:
        results = await self._batches.results([Line(batch.id, each.number) for each in lines])
        most = _LOADED if results else _AT_ONCE
        for start in range(0, len(lines), most):
            some = [(each, results.get(each.number)) for each in lines[start : start + most]]
            loaded = await gather_or_cancel(self._response_of(result) for _, result in some)
            await in_thread(files.add, batch, [(*each, response) for each, response in zip(some, loaded, strict=True)])

    async def _response_of(self, result: Result | None) -> Json | None:
        if result is None or result.response is None or result.status == 0 or result.body is not None:
            return None
        return await self._load(result.response)
