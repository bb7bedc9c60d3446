"""Reads the front matter of a skill's manifest, in a worker process: YAML may take any amount of time."""

from __future__ import annotations

import yaml

from ....core.types import Json


def read(content: bytes, _: Json) -> dict[str, str]:
    """Return the `name`, and the description as `text`; or as `problem` what is wrong."""
    try:
        fields = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return {"problem": "yaml"}
    if not isinstance(fields, dict):
        return {"problem": "mapping"}
    for field in ("name", "description"):
        if not isinstance(fields.get(field), str) or not fields[field].strip():
            return {"problem": field}
    return {"name": fields["name"].strip(), "text": fields["description"].strip()}
