"""The access of a server without authentication."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from llama_stack_responses.core.access import Action, Kind
from llama_stack_responses.core.owner import ANONYMOUS, Owner


class SingleUserAccess:
    """One user with all permissions, as `Access`."""

    def __init__(self, user: Owner = ANONYMOUS) -> None:
        """Let all be done by this user."""
        self._user = user

    def current_user(self) -> Owner:
        """Return the user."""
        return self._user

    def provider_credentials(self) -> Mapping[str, Any]:
        """Return no keys."""
        return {}

    def acting_for(self, owner: Owner, keys: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Do nothing: there is only one user."""
        return nullcontext()

    def allows(self, action: Action, kind: Kind, identifier: str, owner: Owner) -> bool:
        """Return true."""
        return True
