"""Requests within the limits of their users: those for responses, and those that only ask a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from ..chat.reported_usage import reported_usage
from ..core.access import Access
from ..core.errors import ApiError
from ..core.ids import new_id
from ..core.owner import Owner
from ..core.types import Json
from ..generation.dependencies import Admit, Permit, PlainRequest
from ..requests.request import CreateRequest
from ..store.archive import Archive
from ..store.ends import Ended
from ..stream.usage import known


class LimitedRequests:
    """Admits requests, and counts what those use that create no response.

    Args:
        admit: admits them; None if no feature does.
        archive: writes what they have used.
        access: the identity of the caller.
    """

    def __init__(self, admit: Admit | None, archive: Archive, access: Access) -> None:
        self._admit, self._archive, self._access = admit, archive, access

    async def admit(self, request: CreateRequest | PlainRequest) -> Permit | None:
        """Admit a request of the current user; return what it may use, or None if that is not limited.

        Raises:
            ApiError: 429, a limit is reached. 403, limits of the key cannot be enforced.
        """
        user = self._access.current_user()
        if self._admit:
            return await self._admit(user, request)
        if user.limits:
            message = "The key of this request has limits, which this server cannot enforce: use another key."
            raise ApiError(403, message, code="insufficient_permissions")
        return None

    async def begin(self, model: str) -> CountedRequest:
        """Begin a request of the current user that asks a model and creates no response.

        Raises:
            ApiError: as for `admit`.
        """
        permit = await self.admit(PlainRequest(model))
        return CountedRequest(self._archive, permit, self._access.current_user(), model)


class CountedRequest:
    """A request that asks a model and creates no response. It is ended once, or released, as a `with` block does.

    Args:
        archive: writes what it has used.
        permit: what it may use; None if that is not limited.
        owner: whose it is.
        model: the model.
    """

    def __init__(self, archive: Archive, permit: Permit | None, owner: Owner, model: str) -> None:
        self._archive, self._permit, self._owner, self._model = archive, permit, owner, model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def counts(self) -> bool:
        """Whether what it uses is counted."""
        return self._permit is not None and self._permit.counts

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer that say what is left."""
        return self._permit.headers if self._permit else {}

    def release(self) -> None:
        """Hold nothing for it any longer. May be repeated."""
        if self._permit:
            self._permit.release()

    async def end(self, usage: Any, error: ApiError | None = None) -> None:
        """Release it, and count what it has used.

        Args:
            usage: the `usage` that the model server has reported; None if there is none.
            error: why it has failed. A request that was wrong is not counted.
        """
        self.release()
        if not self.counts or (error and error.status < 500):
            return
        used: Json = {
            "id": new_id("chatcmpl"),
            "model": self._model,
            "status": "failed" if error else "completed",
            "error": error.response_error() if error else None,
            "usage": known(reported_usage(usage, None)) if usage else None,
            "background": False,
        }
        await self._archive.ends.unstored(Ended(used, self._owner, None, self._archive.clock()))
