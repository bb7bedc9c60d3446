"""Renders Markdown as sanitised HTML. It runs in a worker process: foreign Markdown can take quadratic time."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import nh3
from markdown_it import MarkdownIt

Json = dict[str, Any]

_BLOCKS: Final = ("blockquote", "br", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "ul")
_INLINE: Final = ("a", "code", "del", "em", "s", "strong")
_TABLES: Final = ("table", "tbody", "td", "th", "thead", "tr")
_ATTRIBUTES: Final = {"a": {"href"}, "code": {"class"}, "ol": {"start"}, "td": {"align"}, "th": {"align"}}
_ALLOWED: Final = {
    "class": re.compile("language-[A-Za-z0-9_+#.-]{1,30}"),
    "start": re.compile("[0-9]{1,9}"),
    "align": re.compile("left|center|right"),
}
"""Values of attributes; others are dropped. `href` is checked by its scheme."""

_ALIGNED: Final = re.compile(r' style="text-align:(left|center|right)"')


def read(content: bytes, _: Json) -> dict[str, str]:
    """Return the HTML of a JSON list of Markdown texts, as a JSON list."""
    return {"text": json.dumps([html_of(text) for text in json.loads(content)])}


def html_of(markdown: str) -> str:
    """Return a text's HTML, which holds no elements and attributes but those named above, and no image."""
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": 30, "breaks": True})
    parser.enable(["table", "strikethrough"]).disable("image")
    # Cells say their alignment in a style, which the page's content security policy forbids.
    rendered = _ALIGNED.sub(r' align="\1"', parser.render(markdown))
    return nh3.clean(
        rendered.encode(errors="replace").decode(),  # without the halves of characters that models may write
        tags={*_BLOCKS, *_INLINE, *_TABLES},
        attributes=_ATTRIBUTES,
        attribute_filter=_kept,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
        clean_content_tags={"script", "style"},
        strip_comments=True,
    )


def _kept(_: str, name: str, value: str) -> str | None:
    """Return the value of an attribute; None drops it."""
    if name == "href":
        # A relative link would lead into the page itself.
        return value if value.split(":", 1)[0].lower() in ("http", "https", "mailto") else None
    if name in ("rel", "target"):
        return value  # those that nh3 sets itself: Markdown has none
    # nh3 lets titles and languages pass on every element.
    pattern = _ALLOWED.get(name)
    return value if pattern and pattern.fullmatch(value) else None
