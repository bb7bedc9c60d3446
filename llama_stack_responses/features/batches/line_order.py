"""Which lines of a batch begin next: those of each model in their order, whatever the other models do."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import BinaryIO, Final, NamedTuple

from .input_lines import LineReader, RawLine, value_of

_MODELS: Final = 8
"""A batch has so many times as many lines at a time as one model of it has."""
_ASIDE: Final = 100_000
"""Lines that may be set aside until there is room for their model."""
_TOGETHER_BYTES: Final = 2**20
_TOGETHER: Final = 64
"""Bytes and lines of those set aside that are read again together."""

Begun = Callable[[Sequence[int]], Awaitable[Collection[int]]]
"""Returns which of these numbers are those of lines that were begun before."""


class Place(NamedTuple):
    """Where a line is.

    Attributes:
        number: its number, from 1.
        start: where it begins in the file, in bytes.
    """

    number: int
    start: int


class InputChanged(Exception):  # noqa: N818 (the batch fails)
    """A line that was begun before is not in the file."""


class Room:
    """How many lines may begin.

    Args:
        begun: the models of the lines that are queued, run or are tried again.
        per_model: how many lines of one model may do so.
        most: how many of all models may do so.
    """

    def __init__(self, begun: Iterable[str], per_model: int, most: int) -> None:
        self._begun, self._per_model, self._most = Counter(begun), per_model, most

    @property
    def is_full(self) -> bool:
        """Whether no line of any model may begin."""
        return self._begun.total() >= self._most

    def take(self, model: str) -> bool:
        """Take the place of a line of a model; return False if there is none."""
        if self.is_full or self._begun[model] >= self._per_model:
            return False
        self._begun[model] += 1
        return True


class LineOrder:
    """The order of a batch's lines. A line without room for its model is set aside, and the lines after it begin.

    Args:
        source: the input file.
        line_bytes: maximum size of a line.
        model: the model of all lines; None if they name several.
        first: the first line that may not have begun.
    """

    def __init__(self, source: BinaryIO, line_bytes: int, model: str | None, first: Place) -> None:
        self._source, self._line_bytes, self._model, self._next = source, line_bytes, model, first
        self._reader = LineReader(source, line_bytes, *first)
        self._aside: dict[str, deque[Place]] = {}
        self._models: dict[int, str] = {}
        self._known = [Place(1, 0), first]

    @property
    def first(self) -> Place:
        """The first line that was not taken."""
        return min([self._next, *(places[0] for places in self._aside.values())])

    async def room(self, begun: Collection[int], per_model: int) -> Room:
        """Return the room beside lines that have begun.

        Raises:
            InputChanged: one of them is not in the file.
        """
        if self._model is not None:
            return Room([self._model] * len(begun), per_model, per_model)
        self._models = {number: model for number, model in self._models.items() if number in begun}
        for number in begun:
            if number not in self._models:
                self._models[number] = await _model_of(await self.text_of(number))
        return Room(self._models.values(), per_model, _MODELS * per_model)

    async def take(self, room: Room, begun: Begun) -> AsyncIterator[list[RawLine]]:
        """Yield the next lines for which there is room, some at a time."""
        async for lines in self._from_aside(room):
            yield lines
        while not room.is_full and sum(map(len, self._aside.values())) < _ASIDE and (page := await self._reader.page()):
            known = await begun([line.number for line in page])
            taken = [line for line in page if line.number not in known and await self._is_next(line, room)]
            self._next = Place(page[-1].number + 1, page[-1].end)
            self._known.append(self._next)
            if taken:
                yield taken

    async def text_of(self, number: int) -> bytes | bytearray:
        """Return the text of a line that was begun before.

        Raises:
            InputChanged: it is not in the file.
        """
        place = max(place for place in self._known if place.number <= number)
        reader = LineReader(self._source, self._line_bytes, *place)
        while page := await reader.page():
            if text := next((each.text for each in page if each.number == number), None):
                return text
            self._known.append(Place(page[-1].number + 1, page[-1].end))
        raise InputChanged

    async def _is_next(self, line: RawLine, room: Room) -> bool:
        """Return whether a line may begin; set it aside otherwise."""
        model = self._model if self._model is not None else await _model_of(line.text)
        if room.take(model):
            self._models[line.number] = model
            return True
        self._aside.setdefault(model, deque()).append(Place(line.number, line.start))
        return False

    async def _from_aside(self, room: Room) -> AsyncIterator[list[RawLine]]:
        for model in list(self._aside):
            places, lines = self._aside[model], list[RawLine]()
            while places and room.take(model):
                self._models[places[0].number] = model
                lines += await LineReader(self._source, self._line_bytes, *places.popleft()).page(1)
                if len(lines) == _TOGETHER or sum(len(each.text) for each in lines) >= _TOGETHER_BYTES:
                    yield lines
                    lines = []
            if not places:
                del self._aside[model]
            if lines:
                yield lines


async def _model_of(text: bytes | bytearray) -> str:
    model: str = (await value_of(text))["body"]["model"]
    return model
