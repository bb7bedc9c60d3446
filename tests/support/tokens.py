"""Signed tokens of users. The hosts' `oauth2_token` auth verifies them with a key that it reads once.

with Issuer() as issuer:
    config["server"]["auth"] = {"provider_config": issuer.provider_config}
    token = issuer.token("bob", teams=["blue"])
"""

import json
import time
from typing import Any, Final, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tests.support.web import Web

type Json = dict[str, Any]

_ALGORITHM: Final = "ES256"
_AUDIENCE: Final = "tests"
_KEY: Final = "key-1"
_LIFE: Final = 86_400


class Issuer:
    """Signs tokens, and serves their public key during the `with` block."""

    def __init__(self) -> None:
        """Generate a key."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._web = Web()

    def __enter__(self) -> Self:
        """Serve the key."""
        public = json.loads(ECAlgorithm.to_jwk(self._key.public_key()))
        self._web.say_json("/keys", {"keys": [{**public, "kid": _KEY, "use": "sig", "alg": _ALGORITHM}]})
        self._web.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self._web.__exit__()

    @property
    def provider_config(self) -> Json:
        """The host's `server.auth.provider_config`."""
        return {"type": "oauth2_token", "audience": _AUDIENCE, "jwks": {"uri": self._web.url("/keys")}}

    def token(self, user: str, *teams: str) -> str:
        """Return a token of this user, valid for a day."""
        claims = {"sub": user, "team": list(teams), "aud": _AUDIENCE, "exp": int(time.time()) + _LIFE}
        return jwt.encode(claims, self._key, _ALGORITHM, {"kid": _KEY})
