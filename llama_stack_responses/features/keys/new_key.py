"""What a new key may be, for commands and routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from ...core.errors import ApiError, bad_request
from ...core.limited_amounts import LimitedAmounts
from ...core.owner import Owner
from ...store.access_keys import AccessKey, NewKey

_MAX_CHARACTERS: Final = 256
_MAX_ROLES: Final = 32
_MAX_MODELS: Final = 64
_MAX_SECONDS: Final = 100 * 366 * 86_400


def checked(new: NewKey) -> NewKey:
    """Return what a new key is to have.

    Raises:
        ApiError: 400, a value cannot be used; `param` names it.
    """
    for name, text in (("owner", new.owner.principal), ("name", new.name), ("tenant", new.owner.tenant)):
        _check_text(name, text, may_be_empty=name == "tenant")
    _check_text("team", new.team, may_be_empty=True)
    _check_texts("roles", new.roles, _MAX_ROLES)
    if new.models is not None:
        if not new.models:
            raise bad_request("'models' names no model: leave it out to allow all.", "models", "invalid_value")
        _check_texts("models", new.models, _MAX_MODELS)
        if any("*" in each[:-1] for each in new.models):
            raise bad_request("'models' has a '*' that is not at the end of a name.", "models", "invalid_value")
    _check_limits(new.limits)
    seconds = new.seconds
    if seconds is not None and not 1 <= seconds <= _MAX_SECONDS:
        message = f"'expires_in_seconds' is not 1 to {_MAX_SECONDS}: leave it out for a key that does not expire."
        raise bad_request(message, "expires_in_seconds", "invalid_value")
    return replace(new, roles=list(dict.fromkeys(new.roles)))


def bounded(new: NewKey, lead: Owner) -> NewKey:
    """Return a new key with at most the limits and models that its team's lead has by their own key.

    What the new key does not name is the lead's.

    Raises:
        ApiError: 403, it would have more.
    """
    try:
        amounts = LimitedAmounts.model_validate(dict(each.partition("=")[::2] for each in lead.limits)).amounts
    except ValidationError:
        raise _beyond_lead("it has limits that this server does not know") from None
    limits = {**amounts, **new.limits}
    for name, most in amounts.items():
        if limits[name] > most:
            raise _beyond_lead(f"{name} {most}")
    allowed = list(lead.models)
    for each in new.models or ():
        if allowed and not any(_covers(other, each) for other in allowed):
            raise _beyond_lead(f"the models {', '.join(allowed)}")
    return replace(new, limits=limits, models=new.models or allowed or None)


def check_covered(key: AccessKey, lead: Owner) -> None:
    """Check that a key has at most the limits and models that its team's lead has by their own key.

    Raises:
        ApiError: 403, it has more.
    """
    least = bounded(NewKey(key.name, key.owner, models=key.models, limits=key.limits), lead)
    if least.limits != key.limits:
        raise _beyond_lead(", ".join(sorted(least.limits.keys() - key.limits.keys())))
    if least.models != key.models:
        raise _beyond_lead(f"the models {', '.join(lead.models)}")


def _covers(allowed: str, model: str) -> bool:
    """Return whether a model, or each of those for which it stands, is one of the allowed ones."""
    return model.startswith(allowed[:-1]) if allowed.endswith("*") else model == allowed


def _beyond_lead(bound: str) -> ApiError:
    message = (
        "The lead of a team may create and rotate keys with at most what their own key allows "
        f"({bound}): ask an operator."
    )
    return ApiError(403, message, code="insufficient_permissions")


def _check_texts(name: str, texts: Sequence[str], most: int) -> None:
    if len(texts) > most:
        raise bad_request(f"'{name}' has more than {most} values.", name, "invalid_value")
    for each in texts:
        _check_text(name, each)


def _check_text(name: str, text: str, *, may_be_empty: bool = False) -> None:
    if may_be_empty and not text:
        return
    # A name in a log or on a terminal must not look like something else.
    if not 1 <= len(text) <= _MAX_CHARACTERS or not text.isprintable() or text != text.strip():
        message = f"'{name}' is not 1 to {_MAX_CHARACTERS} printable characters without spaces around them."
        raise bad_request(message, name, "invalid_value")


def _check_limits(limits: Mapping[str, Any]) -> None:
    for name in limits:
        if name not in LimitedAmounts.model_fields:
            known = ", ".join(LimitedAmounts.model_fields)
            raise bad_request(f"'limits' has the entry {name[:80]!r}: it may have {known}.", "limits", "invalid_value")
    try:
        LimitedAmounts.model_validate(limits, strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]
        message = f"'limits' has a wrong value of {wrong['loc'][0]!r}: {wrong['msg'][0].lower()}{wrong['msg'][1:]}."
        raise bad_request(message, "limits", "invalid_value") from None
