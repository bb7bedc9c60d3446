"""The check of the `network_policy` of a new container."""

from __future__ import annotations

from typing import Final

from ....core.shapes import array, object_of, string, tagged

_MAX_DOMAINS: Final = 100
_DOMAIN: Final = string(1, 253)
_VALUE: Final = string(1, 16_384, "[!-~]([ -~]*[!-~])?")
"""A secret is sent in a header: printable ASCII, without spaces around it."""

_SECRET: Final = object_of(
    {"domain": _DOMAIN, "name": string(1, 128, "[A-Za-z_][A-Za-z0-9_]*"), "value": _VALUE}, "domain", "name", "value"
)

NETWORK_POLICY: Final = tagged(
    {
        "disabled": object_of({}),
        "allowlist": object_of(
            {
                "allowed_domains": array(_DOMAIN, low=1, high=_MAX_DOMAINS),
                "domain_secrets": array(_SECRET, low=1, high=_MAX_DOMAINS),
            },
            "allowed_domains",
        ),
    }
)
