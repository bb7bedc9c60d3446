"""A file of a user, and the error for an unreadable one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..core.media_formats import is_pdf


@dataclass(frozen=True, slots=True)
class Document:
    """A file.

    Attributes:
        name: its name, which need not match its type.
        media_type: its declared type; empty if unknown.
        charset: the declared charset of a text, if known.
    """

    name: str
    media_type: str
    content: bytes
    charset: str | None = None

    @property
    def is_pdf(self) -> bool:
        """Whether it is a PDF."""
        return is_pdf(self.content)


class Unreadable(Exception):  # noqa: N818 (the answer, not a defect)
    """The file has no text that this server can read; the message continues a sentence after "The file"."""


class Processor(Protocol):
    """A reader for more kinds of files than this package supports.

    Attributes:
        keeps: whether it stores files or their text.
    """

    @property
    def keeps(self) -> bool: ...

    async def text(self, document: Document) -> str:
        """Return the text of a file.

        Raises:
            Unreadable: it cannot read this file.
        """
        ...
