"""Limits the models of the host to those that the key of a request may use.

The host asks the access policy of its table of models before it lists, finds or uses one, also for models that it does
not list. So the table gets a policy that begins with a rule of its own for a user whose attribute `models` names some.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..core.lru_cache import LruCache
from .platform import AccessRule, default_policy, get_authenticated_user

_MAX_RULES: Final = 256
_ACTIONS: Final = ("create", "read", "update", "delete")


class PolicyOfKeys(list[AccessRule]):
    """An access policy after a rule that forbids all models which the current user's key may not use.

    Args:
        policy: the rules of the stack; empty for the host's default policy.
    """

    def __init__(self, policy: Sequence[AccessRule]) -> None:
        super().__init__(policy or default_policy())
        self._rules: LruCache[tuple[str, ...], AccessRule] = LruCache(_MAX_RULES)

    def __iter__(self) -> Iterator[AccessRule]:
        """Yield the rule of the current user's key, if there is one, and then those of the stack."""
        if allowed := _allowed():
            yield self._rule(allowed)
        yield from super().__iter__()

    def allows(self, model: str) -> bool:
        """Return whether the current user's key may use a model."""
        allowed = _allowed()
        return not allowed or re.fullmatch(_pattern(allowed), model) is not None

    def _rule(self, allowed: tuple[str, ...]) -> AccessRule:
        if (rule := self._rules.get(allowed)) is None:
            others = f"regex:model::(?!(?:{_pattern(allowed)})\\Z)"
            rule = AccessRule(forbid={"actions": list(_ACTIONS), "resource": others}, description="not of this key")
            self._rules.set(allowed, rule)
        return rule


def limit_models(table: Any) -> None:
    """Have the host's table of models ask the key of each request."""
    table.policy = PolicyOfKeys(table.policy)


def may_use(table: Any, model: str) -> bool:
    """Return whether the current user's key may use a model, given the host's table of models."""
    policy = getattr(table, "policy", None)
    return not isinstance(policy, PolicyOfKeys) or policy.allows(model)


def _allowed() -> tuple[str, ...]:
    user = get_authenticated_user()
    attributes = getattr(user, "attributes", None) or {}
    return tuple(attributes.get("models") or ())


def _pattern(allowed: Sequence[str]) -> str:
    """Return the regular expression of these names."""
    return "|".join(f"{re.escape(each[:-1])}[\\s\\S]*" if each.endswith("*") else re.escape(each) for each in allowed)
