"""Types without a module of their own."""

from typing import Any

Json = dict[str, Any]
"""A decoded JSON object."""
