"""What the host raises where something is not there, and what it means where anything else goes wrong."""

from __future__ import annotations

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.logs import get_logger

from .platform import AccessDeniedError, InvalidParameterError, ResourceNotFoundError

logger = get_logger(__name__)


def is_missing(error: Exception, *names: str) -> bool:
    """Whether the host says that something is not there, or not for this user.

    Args:
        error: what the host raised.
        names: what was asked for. The host's tables and prompts say it with a plain ValueError whose message is in
            these words; what is unreadable in a store raises others, or other messages. Of an id that cannot be one of
            its files, the host says that the parameter is invalid.
    """
    if isinstance(error, ResourceNotFoundError | AccessDeniedError):
        return True
    said = str(error)
    if isinstance(error, InvalidParameterError):
        return all(f"_id': {name}. " in said for name in names)
    return type(error) is ValueError and said.endswith(" not found") and all(name in said for name in names)


def failed(what: str, param: str, error: Exception) -> ApiError:
    """The 503 of a part of the stack that failed, and a line in the log.

    Neither repeats what the host said: it may hold addresses and keys.

    Args:
        what: the part, as in "file store".
        param: the field of the request that needs it.
        error: what the host raised.
    """
    logger.error("the stack's %s failed (%s)", what, type(error).__name__)
    return ApiError(503, f"The stack's {what} failed. Try again later.", param=param)
