"""The settings of web search."""

from __future__ import annotations

from typing import Final, Literal

from ...core.feature_settings import ProfileSettings

PRESENTED: Final[ProfileSettings[str]] = ProfileSettings(
    "web_search",
    Literal["functions", "browser"],
    default=lambda: "functions",
    description="How web search is presented to the model: as `functions` for any model, or as the `browser` tool on "
    "which gpt-oss was trained.",
)
