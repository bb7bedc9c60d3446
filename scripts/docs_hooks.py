"""Additions to the built documentation, and checks of it; with `--strict`, a warning of mkdocs fails the build."""

import logging
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File

log: Final = logging.getLogger("mkdocs.hooks.docs")

LOADED: Final = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'\s>]*""")
"""A resource that a browser would load from another host."""

TEMPLATE: Final = "../templates/annotated/config.yaml"
"""How pages link to this template, from the folder of the documentation, of which it lies outside."""
PAGE: Final = "reference/annotated-config.md"
"""The page of the site that shows it."""


def on_files(files: Any, config: Any) -> Any:
    """Add the page with the annotated configuration."""
    text = (Path(config.docs_dir) / TEMPLATE).read_text()
    intro = "`llama-stack-responses init annotated DIR` writes this file."
    files.append(File.generated(config, PAGE, content=f"# Annotated config.yaml\n\n{intro}\n\n```yaml\n{text}```\n"))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead the links to the template to its page."""
    return markdown.replace(f"../{TEMPLATE})", f"../{PAGE})").replace(f"({TEMPLATE})", f"({PAGE})")


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warn of each resource that a page loads from another host: the site must work offline."""
    for found in LOADED.finditer(output):
        log.warning("%s loads a resource from another host: %s", page.file.src_uri, found[0])
    return output
