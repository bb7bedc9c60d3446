"""Finds what the features bring. The core knows no feature, only the names of the modules that a feature may have.

A feature of another distribution is a package that an entry point of the group `llama_stack_responses.features` names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

FEATURES: Final = "llama_stack_responses.features"
"""The group of entry points that name the features of other distributions."""

_FOLDER: Final = Path(__file__).parents[1] / "features"
_PACKAGE: Final = f"{__name__.partition('.')[0]}.features"


def _found() -> dict[str, str]:
    own = {found.parent.name: f"{_PACKAGE}.{found.parent.name}" for found in sorted(_FOLDER.glob("*/__init__.py"))}
    return dict(_foreign()) | own


def _foreign() -> Iterator[tuple[str, str]]:
    """Yield the names and the packages of features of other distributions."""
    # `importlib.metadata` would make an object of each distribution, and parse the entry points of all.
    for file in (found for folder in dict.fromkeys(sys.path) for found in Path(folder).glob("*-info/entry_points.txt")):
        if FEATURES in file.read_text("utf-8"):
            found = Distribution.at(file.parent).entry_points.select(group=FEATURES)
            yield from ((each.name, each.value) for each in found)


_PACKAGES: Final[Mapping[str, str]] = _found()
"""The packages of the features of this installation, by the names of these."""


def feature_names() -> list[str]:
    """Return the names of the features of this installation: of their folders, and of those of other distributions."""
    return sorted(_PACKAGES)


def features_with(name: str) -> list[str]:
    """Return the names of the features that have a module with this name, which is not imported."""
    return [feature for feature in feature_names() if find_spec(f"{_PACKAGES[feature]}.{name}")]


def folders_of_features(name: str) -> dict[str, Path]:
    """Return the folders with this name in those of the features, by the name of the feature."""
    specs = {feature: find_spec(package) for feature, package in _PACKAGES.items()}
    places = {feature: list(spec.submodule_search_locations or ()) for feature, spec in specs.items() if spec}
    folders = {feature: Path(place) / name for feature, found in places.items() for place in found}
    return {feature: folder for feature, folder in folders.items() if folder.is_dir()}


def modules_of_features(name: str) -> dict[str, ModuleType]:
    """Return the modules with this name of all features, by the name of the feature; not every feature has one."""
    return {feature: import_module(f"{_PACKAGES[feature]}.{name}") for feature in features_with(name)}
