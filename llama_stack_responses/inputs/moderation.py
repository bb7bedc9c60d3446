"""How the input and the output of a response are moderated. A feature does it; without one, requests for it fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from ..concurrency.large_work import LargeWork
from ..core.errors import ApiError, bad_request
from ..core.types import Json
from ..requests.request import CreateRequest
from ..stream.deltas import Delta


class OutputModeration(Protocol):
    """Moderates the output of one response."""

    @property
    def blocks(self) -> bool:
        """Whether deltas have to pass `feed`."""
        ...

    @property
    def input_refusal(self) -> str | None:
        """The text that the client reads in place of an answer to a refused input; None if it is not refused."""
        ...

    def feed(self, delta: Delta) -> AsyncGenerator[Delta]:
        """Yield the deltas that may be shown now."""
        ...

    async def moderation(self, output: list[Json]) -> Json:
        """Return the response's `moderation` at its end, given its whole output.

        Raises:
            ApiError: output could not be checked that must not be shown unchecked.
        """
        ...


class Moderation(Protocol):
    """Moderates the responses whose requests ask for it."""

    async def of_input(self, request: CreateRequest, items: Sequence[Json], large_work: LargeWork) -> Json | None:
        """Check the input of a request; return the response's `moderation` so far, None if nothing is to be checked.

        Args:
            items: what the request adds to the conversation, with references resolved.
            large_work: does the work on large inputs.

        Raises:
            ApiError: the input cannot be checked as the request demands.
        """
        ...

    def of_output(self, request: CreateRequest, response: Json) -> OutputModeration | None:
        """Return what moderates the rest of a response; None if nothing is to be checked."""
        ...


class NoModeration:
    """The moderation of a stack without moderation: nothing that is to be checked passes."""

    async def of_input(self, request: CreateRequest, items: Sequence[Json], large_work: LargeWork) -> None:  # noqa: ARG002
        """Refuse a request for moderation."""
        if request.guardrails or request.moderation:
            raise _refusal(request)

    def of_output(self, request: CreateRequest, response: Json) -> OutputModeration | None:
        """Return what lets no output pass, for a response that a server with moderation has begun."""
        return None if response["moderation"] is None else _Unchecked(_refusal(request))


class _Unchecked:
    """Lets no output pass."""

    blocks = True
    input_refusal = None

    def __init__(self, error: ApiError) -> None:
        self._error = error

    def feed(self, delta: Delta) -> AsyncGenerator[Delta]:  # noqa: ARG002
        """Raise the error."""
        raise self._error

    async def moderation(self, output: list[Json]) -> Json:  # noqa: ARG002
        """Raise the error."""
        raise self._error


def _refusal(request: CreateRequest) -> ApiError:
    kind = "guardrails" if request.guardrails else "moderation"
    return bad_request(
        f"Unsupported parameter: '{kind}' needs a moderation provider, and this stack has none. Its operator can "
        "add a safety provider, or set 'moderation.url' in the configuration of the responses provider.",
        kind,
        "unsupported_parameter",
    )
