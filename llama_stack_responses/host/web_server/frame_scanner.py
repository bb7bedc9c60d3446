"""Finds the frames in the bytes of a WebSocket (RFC 6455, section 5.2), and splits large ones into fragments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNIT: Final = 65_536
"""Largest payload of a unit in bytes; a multiple of four, so that the mask of a frame fits each of its parts."""

_FIN: Final = 0x80
_MASKED: Final = 0x80
_OPCODE: Final = 0x0F
_RESERVED: Final = 0x70
_CONTROL: Final = 0x8
_KNOWN: Final = frozenset({0x0, 0x1, 0x2, 0x8, 0x9, 0xA})
_MAX_CONTROL_BYTES: Final = 125
_EXTENDED: Final = {126: 2, 127: 8}
"""Bytes of the length behind the head, by the length in the head."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of decoding.

    Attributes:
        data: a whole frame, or a part of a large one as a separate frame.
        payload: the bytes that it adds to a message; 0 for a control frame.
    """

    data: bytes
    payload: int


class FrameScanner:
    """Takes one unit after the other from a buffer.

    Args:
        max_bytes: maximum payload of a frame.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._left = 0
        self._last = 0
        self._opcode = 0
        self._mask = b""
        self._broken = False

    def next_unit(self, buffer: bytearray) -> Unit | None:
        """Remove the next unit from the buffer and return it; None if it is not there completely.

        From a frame that breaks the protocol on, all bytes are one unit, for the decoder to refuse.
        """
        if self._left:
            return self._part(buffer)
        if self._broken or len(buffer) < 2:
            return self._removed(buffer, len(buffer), 0) if self._broken and buffer else None
        more = _EXTENDED.get(buffer[1] & ~_MASKED, 0)
        head = 2 + more + 4
        if len(buffer) < 2 + more:
            return None
        length = int.from_bytes(buffer[2 : 2 + more]) if more else buffer[1] & ~_MASKED
        if not self._is_valid(buffer, length):
            self._broken = True
            return self._removed(buffer, len(buffer), 0)
        if length <= UNIT:
            control = buffer[0] & _CONTROL
            return (
                self._removed(buffer, head + length, 0 if control else length) if len(buffer) >= head + length else None
            )
        if len(buffer) < head:
            return None
        self._left, self._last, self._opcode = length, buffer[0] & _FIN, buffer[0] & _OPCODE
        self._mask = bytes(buffer[head - 4 : head])
        del buffer[:head]
        return self._part(buffer)

    def _is_valid(self, buffer: bytearray, length: int) -> bool:
        opcode = buffer[0] & _OPCODE
        max_bytes = _MAX_CONTROL_BYTES if opcode & _CONTROL else self._max_bytes
        return bool(buffer[1] & _MASKED and not buffer[0] & _RESERVED and opcode in _KNOWN and length <= max_bytes)

    def _part(self, buffer: bytearray) -> Unit | None:
        size = min(self._left, UNIT)
        if len(buffer) < size:
            return None
        self._left -= size
        first = self._opcode | (0 if self._left else self._last)
        self._opcode = 0
        head = bytes((first, _MASKED | 127)) + size.to_bytes(8) + self._mask
        data = head + buffer[:size]
        del buffer[:size]
        return Unit(data, size)

    @staticmethod
    def _removed(buffer: bytearray, size: int, payload: int) -> Unit:
        data = bytes(buffer[:size])
        del buffer[:size]
        return Unit(data, payload)
