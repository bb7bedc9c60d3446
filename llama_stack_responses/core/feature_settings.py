"""The settings that a feature brings to the provider's configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pydantic import BaseModel, BeforeValidator

__all__ = ["FeatureSettings", "absent_without"]


@dataclass(frozen=True, slots=True)
class FeatureSettings[Value]:
    """Settings of a feature, under one key of the configuration.

    Attributes:
        key: the key.
        annotation: the type of the value, with its validators.
        default: returns the value without the key.
    """

    key: str
    annotation: Any
    default: Callable[[], Value]

    def of(self, config: BaseModel) -> Value:
        """Return the settings in a configuration."""
        value: Value = getattr(config, self.key)
        return value


def settings_of(module: ModuleType) -> list[FeatureSettings[Any]]:
    """Return all settings that a feature's `settings.py` has."""
    return [each for each in vars(module).values() if isinstance(each, FeatureSettings)]


def absent_without(name: str) -> BeforeValidator:
    """Return a validator that takes settings as absent if the environment variable of this one of them is not set."""

    def check(given: Any) -> Any:
        return None if isinstance(given, dict) and name in given and not given[name] else given

    return BeforeValidator(check)
