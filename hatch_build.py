"""Builds the description of the package from README.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE: Final = re.compile(r"!\[[^\]]*\]\((?!https?://)[^)]*\)\n*")
_LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")
_FOLDER: Final = "docs/"
_WHERE: Final = "\nThe files in `docs/` are part of the installed package: `llama_stack_responses/docs`.\n"


class ReadmeHook(MetadataHookInterface):
    """Names the files that README.md links to, and omits its pictures: relative links are broken on a package index."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets `readme`, the description of the package."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": _LINK.sub(_name, _IMAGE.sub("", text)) + _WHERE}


def _name(link: re.Match[str]) -> str:
    text, target = link.groups()
    return f"`{target}`" if text == target or text.startswith((_FOLDER, "`")) else f"{text} (`{target}`)"
