"""Classification of the host's errors: not found, or failed."""

from __future__ import annotations

from ..core.errors import ApiError
from ..logs import get_logger
from .platform import AccessDeniedError, InvalidParameterError, ResourceNotFoundError

logger = get_logger(__name__)


def is_missing(error: Exception, *names: str) -> bool:
    """Return whether an error of the host means that an object does not exist, or not for this user.

    Args:
        error: the error that the host raised.
        names: the requested names. The host's tables and prompts raise a plain ValueError whose message has these names
            and ends with "not found"; corrupt data in a store raises other types or messages. For an id that is not
            valid for its files, the host reports an invalid parameter.
    """
    if isinstance(error, ResourceNotFoundError | AccessDeniedError):
        return True
    text = str(error)
    if isinstance(error, InvalidParameterError):
        return all(f"_id': {name}. " in text for name in names)
    return type(error) is ValueError and text.endswith(" not found") and all(name in text for name in names)


def failed(what: str, param: str, error: Exception) -> ApiError:
    """Log the failure of a part of the stack, and return the 503 for it.

    Neither repeats the host's message, which may contain addresses and keys.

    Args:
        what: the part, as in "file store".
        param: the field of the request that needs it.
        error: the error that the host raised.
    """
    logger.error("stack API failed: %s (%s)", what, type(error).__name__)
    return ApiError(503, f"The stack's {what} failed. Try again later.", param=param)
