"""Fields that many declarations of tools have."""

from __future__ import annotations

from typing import Final

from .item_fields import TEXT
from .shapes import array, object_of, one_of

CALLERS: Final = array(one_of("direct", "programmatic"))
"""Check of the `allowed_callers` of a tool."""

_SKILL: Final = object_of({"name": TEXT, "description": TEXT, "path": TEXT}, "name", "description", "path")

LOCAL_ENVIRONMENT: Final = object_of({"skills": array(_SKILL)})
"""Check of the `environment` of a shell on the client's machine."""
