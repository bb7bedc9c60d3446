"""A package of another distribution, with a feature and a store."""

from pathlib import Path
from typing import Final

THIRD_PARTY: Final = Path(__file__).parents[1] / "third_party"
"""The folder that has the package and its metadata, as if it were installed there."""
