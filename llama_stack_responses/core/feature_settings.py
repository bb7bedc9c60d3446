"""The settings that a feature brings to the provider's configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pydantic import BaseModel, BeforeValidator, Field, create_model

from .discovery import modules_of_features

__all__ = ["FeatureSettings", "ProfileSettings", "absent_without"]


@dataclass(frozen=True, slots=True)
class FeatureSettings[Value]:
    """Settings of a feature, under one key of the configuration.

    Attributes:
        key: the key.
        annotation: the type of the value, with its validators.
        default: returns the value without the key.
        description: what it is, if its class does not say it.
    """

    key: str
    annotation: Any
    default: Callable[[], Value]
    description: str | None = None

    def of(self, config: BaseModel) -> Value:
        """Return the settings in a configuration."""
        value: Value = getattr(config, self.key)
        return value


class ProfileSettings[Value](FeatureSettings[Value]):
    """Settings of a feature for single models: under one key of an entry of `profiles`."""

    __slots__ = ()


def settings_of(module: ModuleType, kind: type[FeatureSettings[Any]] = FeatureSettings) -> list[FeatureSettings[Any]]:
    """Return all settings of one kind that a feature's `settings.py` has."""
    return [each for each in vars(module).values() if type(each) is kind]


def with_features[Model: BaseModel](
    model: type[Model], kind: type[FeatureSettings[Any]] = FeatureSettings
) -> type[Model]:
    """Return the model with the settings of one kind of all features too."""
    found = [each for module in modules_of_features("settings").values() for each in settings_of(module, kind)]
    fields: Any = {
        each.key: (each.annotation, Field(default_factory=each.default, description=each.description)) for each in found
    }
    return create_model(model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields)


def absent_without(name: str) -> BeforeValidator:
    """Return a validator that takes settings as absent if the environment variable of this one of them is not set."""

    def check(given: Any) -> Any:
        return None if isinstance(given, dict) and name in given and not given[name] else given

    return BeforeValidator(check)
