"""Renders Markdown as sanitised HTML. It runs in a worker process: foreign Markdown can take quadratic time."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

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


_MATH: Final = {r"\(": r"\)", r"\[": r"\]", "$$": "$$"}
"""The ends of formulas in LaTeX, by their beginnings."""

_MATH_CHARACTERS: Final = 10_000
"""Maximum number of characters of a formula; a longer one is Markdown."""


def read(content: bytes, _: Json) -> dict[str, str]:
    """Return the HTML of a JSON list of Markdown texts, as a JSON list."""
    return {"text": json.dumps([html_of(text) for text in json.loads(content)])}


def html_of(markdown: str) -> str:
    """Return a text's HTML, which holds no elements and attributes but those named above, and no image."""
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": 30, "breaks": True})
    parser.enable(["table", "strikethrough"]).disable("image")
    parser.inline.ruler.before("escape", "math", _math_inline)
    parser.block.ruler.before("code", "math", _math_block, {"alt": ["paragraph", "blockquote", "list"]})
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


def _math_inline(state: StateInline, silent: bool) -> bool:
    """Take a formula as it is: its backslashes, stars and underscores are no Markdown."""
    begin = state.src[state.pos : state.pos + 2]
    if begin not in _MATH:
        return False
    found = state.src.find(_MATH[begin], state.pos + 2, min(state.posMax, state.pos + _MATH_CHARACTERS))
    if found < 0:
        return False
    if not silent:
        state.push("text", "", 0).content = state.src[state.pos : found + 2]
    state.pos = found + 2
    return True


def _math_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take lines from one that begins a formula to the one that ends it; they are no lists and no headings."""
    if state.is_code_block(start):
        return False
    first = state.bMarks[start] + state.tShift[start]
    begin = state.src[first : first + 2]
    if begin not in (r"\[", "$$"):
        return False
    found = state.src.find(_MATH[begin], first + 2, min(state.eMarks[end - 1], first + _MATH_CHARACTERS))
    last = next((line for line in range(start, end) if found + 2 <= state.eMarks[line]), end)
    if found < 0 or last == end or state.src[found + 2 : state.eMarks[last]].strip():
        return False
    if silent:
        return True
    lines = state.getLines(start, last + 1, state.blkIndent, False)
    html = "<br>\n".join(escapeHtml(line.strip()) for line in lines.split("\n"))
    state.push("html_block", "", 0).content = f"<p>{html}</p>\n"
    state.line = last + 1
    return True


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
