"""What `doctor` tries of the setting `archive`."""

from __future__ import annotations

from pydantic import BaseModel

from ...commands.command_error import CommandError
from .settings import NO_PACKAGE, SETTINGS


async def probe(config: BaseModel) -> str:
    """Write, read, list and delete a small object where idle responses are kept.

    Returns:
        A sentence that says so; empty without the setting.

    Raises:
        CommandError: it cannot be done; the message says what to do.
    """
    settings = SETTINGS.of(config)
    if settings is None:
        return ""
    try:
        from .trial import try_place
    except ImportError as error:
        raise CommandError(NO_PACKAGE) from error
    await try_place(settings)
    return f"Objects in {settings.url} of 'archive' can be written, read, listed and deleted."
