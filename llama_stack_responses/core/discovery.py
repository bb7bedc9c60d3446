"""Finds what the features bring. The core knows no feature, only the names of the modules that a feature may have."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Final

_FOLDER: Final = Path(__file__).parents[1] / "features"
_PACKAGE: Final = f"{__name__.partition('.')[0]}.features"


def feature_names() -> list[str]:
    """Return the names of the features of this installation, which are those of their folders."""
    return sorted(found.name for found in iter_modules([str(_FOLDER)]) if found.ispkg)


def modules_of_features(name: str) -> dict[str, ModuleType]:
    """Return the modules with this name of all features, by the name of the feature; not every feature has one."""
    paths = {feature: f"{_PACKAGE}.{feature}.{name}" for feature in feature_names()}
    return {feature: import_module(path) for feature, path in paths.items() if find_spec(path)}
