"""A file of a user, and why it may not be readable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """A file.

    Attributes:
        name: its name, which need not say what it is.
        media_type: what whoever gave it calls it; empty if nobody said.
        charset: of a text, if somebody said.
    """

    name: str
    media_type: str
    content: bytes
    charset: str | None = None

    @property
    def is_pdf(self) -> bool:
        """Whether it is a PDF, which may have up to a kilobyte of anything before it."""
        return b"%PDF-" in self.content[:1024]


class Unreadable(Exception):  # noqa: N818 (it is the answer, and no error of ours)
    """The file has no text that this server can read; the message goes on after "The file"."""


class Processor(Protocol):
    """Something that reads more kinds of files than this package does.

    Attributes:
        keeps: whether it stores files, or what it reads in them.
    """

    @property
    def keeps(self) -> bool: ...

    async def text(self, document: Document) -> str:
        """The text of a file.

        Raises:
            Unreadable: it cannot read this one.
        """
        ...
