"""Secrets and signatures of webhooks, as Standard Webhooks has them."""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Final

from .settings import PREFIX

_BYTES: Final = 32
_HINT_CHARACTERS: Final = 4


def new_secret() -> str:
    """Return a new signing secret: `whsec_` and 256 random bits in base64."""
    return PREFIX + b64encode(os.urandom(_BYTES)).decode()


def hint_of(secret: str) -> str:
    """Return what is shown of a secret after its creation."""
    return f"{PREFIX}...{secret[-_HINT_CHARACTERS:]}"


def signed_headers(message_id: str, at: int, body: bytes, secrets: Iterable[str]) -> Mapping[str, str]:
    """Return the headers by which a receiver verifies a message.

    Args:
        message_id: the same for each attempt to deliver the message.
        at: the time of the attempt, in seconds since the epoch.
        secrets: those that are valid; there is a signature for each.
    """
    signed = b"%s.%d.%s" % (message_id.encode(), at, body)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{_signature(secret, signed)}" for secret in secrets),
    }


def _signature(secret: str, signed: bytes) -> str:
    key = b64decode(secret.removeprefix(PREFIX))
    return b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
