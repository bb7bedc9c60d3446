"""The failure of a call of an image server."""

from __future__ import annotations


class ImageFailed(Exception):  # noqa: N818 (the answer, not a defect)
    """The image server made no image.

    Args:
        message: one sentence or two for the model, which says what is wrong.
        reason: a few words for the log, without text of the server; None if its operator can do nothing about it.
        blocked: whether the server's moderation blocked the call.
    """

    def __init__(self, message: str, reason: str | None, *, blocked: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.blocked = blocked
