"""The error of a command."""

from __future__ import annotations


class CommandError(Exception):
    """A command failed; the message is one sentence for the user.

    Attributes:
        code: exit code of the command.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code
