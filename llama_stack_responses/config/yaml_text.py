"""YAML, read by libyaml where PyYAML has it: a tenth of the time, which each start and each command spends."""

from __future__ import annotations

from typing import Any, Final

import yaml

YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parsed_yaml(text: str) -> Any:
    """Return the value of a YAML document.

    Raises:
        yaml.YAMLError: it is none.
    """
    return yaml.load(text, YAML_LOADER)  # noqa: S506 (both loaders are safe)
