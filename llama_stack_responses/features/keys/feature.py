"""The keys of a stack."""

from __future__ import annotations

from ...feature import Feature, Stack
from ...store.access_keys import AccessKeys
from .authentication import KeyAuthentication
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return what authenticates users by their keys; nothing without the setting."""
    settings = SETTINGS.of(stack.config)
    if settings is None:
        return Feature()
    keys = AccessKeys(stack.records)
    return Feature(authenticate=KeyAuthentication(keys, settings.use_seconds).authenticate)
