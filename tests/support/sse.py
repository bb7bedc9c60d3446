"""A strict parser of the Responses API's server-sent events."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tests.support.conform import WireError

type Event = dict[str, Any]
type Frame = tuple[str, Event]


class Frames(list[Frame]):
    """The frames of a whole stream, `(event name, data)`, and the number of keep-alive comments between them."""

    comments = 0

    @property
    def events(self) -> list[Event]:
        """The data of each frame."""
        return [data for _, data in self]


class SseReader:
    """An incremental parser that returns each frame as soon as it is complete."""

    def __init__(self) -> None:
        """Create a parser."""
        self.comments = 0
        self.done = False
        self._pending: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes."""
        self._pending.append(data)
        if b"\n" not in data:
            return  # no frame ends here: a large one is searched once, not with each of its pieces
        *blocks, rest = b"".join(self._pending).replace(b"\r\n", b"\n").split(b"\n\n")
        self._pending = [rest]
        for block in blocks:
            yield from self._block(block.decode())

    def close(self) -> None:
        """End the stream: WireError unless `[DONE]` was the last frame."""
        if pending := b"".join(self._pending):
            raise WireError(f"the stream ends within a frame: {pending!r:.200}")
        if not self.done:
            raise WireError("the stream ends without `data: [DONE]`")

    def _block(self, block: str) -> Iterator[Frame]:
        if self.done:
            raise WireError(f"after `data: [DONE]` comes {block!r:.200}")
        lines = block.split("\n")
        if all(line.startswith(":") for line in lines):
            self.comments += 1
        elif lines == ["data: [DONE]"]:
            self.done = True
        else:
            yield _frame(lines)


def _frame(lines: list[str]) -> Frame:
    """Parse a frame, which must be `event: NAME` and `data: JSON` with the `type` NAME, and nothing else."""
    if len(lines) != 2 or not lines[0].startswith("event: ") or not lines[1].startswith("data: "):
        raise WireError(f"not `event: NAME` and `data: JSON`: {lines!r:.200}")
    name, payload = lines[0].removeprefix("event: "), lines[1].removeprefix("data: ")
    try:
        data = json.loads(payload)
    except ValueError as problem:
        raise WireError(f"{name}: the data is not JSON: {payload!r:.200}") from problem
    if not isinstance(data, dict) or data.get("type") != name:
        raise WireError(f"`event: {name}` has other data: {payload!r:.200}")
    return name, data


def iter_sse(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Yield the frames of a stream as they arrive; WireError where a strict client would stop."""
    reader = SseReader()
    for chunk in chunks:
        yield from reader.feed(chunk)
    reader.close()


def read_sse(raw: bytes | Iterable[bytes]) -> Frames:
    """Return every frame of a stream, which must end with `[DONE]`."""
    reader, frames = SseReader(), Frames()
    for chunk in [raw] if isinstance(raw, bytes) else raw:
        frames.extend(reader.feed(chunk))
    reader.close()
    frames.comments = reader.comments
    return frames
