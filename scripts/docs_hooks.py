"""Checks of the built documentation, which mkdocs runs; with `--strict` a warning fails the build."""

import logging
import re
from typing import Any, Final

log: Final = logging.getLogger("mkdocs.hooks.docs")

LOADED: Final = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'\s>]*""")
"""A resource that a browser would load from another host."""


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warn of each resource that a page loads from another host: the site must work offline."""
    for found in LOADED.finditer(output):
        log.warning("%s loads a resource from another host: %s", page.file.src_uri, found[0])
    return output
